"""Starts a session's server at the Hub when its place comes after the Hub has stopped waiting."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

import httpx

from scheduler_bridge.engine.scheduler import Scheduler
from scheduler_bridge.model.phases import Kind, Phase
from scheduler_bridge.model.workload import Workload
from scheduler_bridge.store.base import LeaseRecord

_log = logging.getLogger(__name__)

PATIENCE_SECONDS: Final = 2.0
"""A Hub that waits takes the place up within that time."""

RETRY_SECONDS: Final = (5.0, 15.0, 30.0, 60.0)
ASKED_AT_ONCE: Final = 16
HUB_SERVICE: Final = "hub"
_ACTOR: Final = "scheduler"
_ACCEPTED: Final = frozenset({200, 201, 202})


@dataclass(frozen=True, slots=True)
class Attempt:
    """When a start was asked for, and how often for this lease."""

    at: float
    count: int


class HubGateway:
    """`step` asks for every start that is due. Which ones are due is seen in the books, so nothing
    is forgotten by a restart; asking twice does no harm."""

    def __init__(self, scheduler: Scheduler, api_url: str, token: str) -> None:
        self._scheduler = scheduler
        self._books = scheduler.books
        self._url = api_url.rstrip("/")
        self._attempts: dict[str, Attempt] = {}
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._client = httpx.AsyncClient(
            timeout=15.0, trust_env=False, headers={"Authorization": f"token {token}"}
        )

    async def step(self) -> None:
        """Begin to ask the Hub for each server whose place waits. The Hub answers when a server is
        up or takes long, so one does not wait for another."""
        for workload, record in self._placed():
            if self._is_due(workload, record):
                self._begin(workload, record)
        self._attempts = {k: v for k, v in self._attempts.items() if k in self._books.leases}

    async def settle(self) -> None:
        """Wait until every start that was begun is answered."""
        await asyncio.gather(*self._asking.values())

    def next_due(self) -> float | None:
        """UNIX seconds at which `step` has something to look at."""
        return min((self._due_at(record) for _, record in self._placed()), default=None)

    def _placed(self) -> list[tuple[Workload, LeaseRecord]]:
        return [
            (workload, record)
            for workload in list(self._books.workloads.values())
            if workload.spec.kind is Kind.SESSION
            and workload.phase in (Phase.STARTING, Phase.RESUMING)
            and (record := self._books.current_lease(workload)) is not None
            and record.taken_at is None
        ]

    def _due_at(self, record: LeaseRecord) -> float:
        attempt = self._attempts.get(record.lease.id)
        if attempt is None:
            return record.lease.granted_at + PATIENCE_SECONDS
        return attempt.at + RETRY_SECONDS[min(attempt.count, len(RETRY_SECONDS)) - 1]

    def _is_due(self, workload: Workload, record: LeaseRecord) -> bool:
        if record.lease.id in self._asking or len(self._asking) >= ASKED_AT_ONCE:
            return False
        waits = self._scheduler.waiters[workload.id, HUB_SERVICE] > 0
        return not waits and self._books.clock.now() >= self._due_at(record)

    def _begin(self, workload: Workload, record: LeaseRecord) -> None:
        name = record.lease.id
        known = self._attempts.get(name)
        count = 1 if known is None else known.count + 1
        self._attempts[name] = Attempt(self._books.clock.now(), count)
        task = asyncio.create_task(self._start(workload, count), name=f"start {workload.id}")
        self._asking[name] = task
        task.add_done_callback(lambda done: self._end(name, done))

    def _end(self, name: str, task: asyncio.Task[None]) -> None:
        del self._asking[name]
        if not task.cancelled() and (error := task.exception()):
            _log.error("%s failed; it is tried again", task.get_name(), exc_info=error)

    async def _start(self, workload: Workload, count: int) -> None:
        problem = await self._ask(workload)
        level = logging.WARNING if problem else logging.INFO
        _log.log(level, "asked the Hub to start %s: %s", workload.id, problem or "accepted")
        with self._books.draft() as draft:
            draft.note(
                "hub_start",
                draft.workload(workload.id),
                cause=problem or "the Hub was asked to start its server",
                actor=_ACTOR,
                evidence={"accepted": not problem, "attempt": count},
            )

    async def _ask(self, workload: Workload) -> str:
        """What went wrong, or nothing."""
        spec = workload.spec
        path = f"/users/{quote(spec.user, safe='')}/server"
        if spec.server:
            path = f"{path}s/{quote(spec.server, safe='')}"
        try:
            # no body: the Hub keeps the options that its user chose
            answer = await self._client.post(f"{self._url}{path}")
        except httpx.HTTPError as error:
            return f"the Hub does not answer ({error or type(error).__name__})"
        if answer.status_code in _ACCEPTED:
            return ""
        return f"the Hub answered {answer.status_code}: {_message(answer)}"

    async def aclose(self) -> None:
        """End what was begun and release connections."""
        asking = list(self._asking.values())
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        await self._client.aclose()


def _message(answer: httpx.Response) -> str:
    try:
        return str(answer.json().get("message", ""))[:300]
    except (ValueError, AttributeError):
        return "no reason given"
