"""Carries phase changes to the scheduler, in order, however long that takes."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from scheduler_bridge.errors import SchedulerError, Unavailable
from scheduler_bridge.model.phases import Phase
from scheduler_bridge.model.workload import SnapshotRef
from scheduler_bridge.plugin import SchedulerPlugin

_log = logging.getLogger(__name__)

FIRST_RETRY_SECONDS, LAST_RETRY_SECONDS = 0.5, 5.0


@dataclass(frozen=True, slots=True)
class Move:
    """One phase change to report; see `SchedulerPlugin.move`."""

    target: Phase
    cause: str
    evidence: dict[str, Any] = field(default_factory=dict)
    snapshot: SnapshotRef | None = None
    exit_code: int | None = None


class Courier:
    """A queue of moves with one carrier (`run`).

    A move that nobody answered is tried again before anything behind it. One that the scheduler
    refuses (the world moved on there) is logged and dropped: what happened here stays true, is in
    `status.json`, and the scheduler's reconciler reads it.
    """

    def __init__(self, scheduler: SchedulerPlugin, lease_id: str, credential: str) -> None:
        self._scheduler = scheduler
        self._lease_id = lease_id
        self._credential = credential
        self._waiting: deque[tuple[Move, asyncio.Future[bool]]] = deque()
        self._wake = asyncio.Event()

    def post(self, move: Move) -> asyncio.Future[bool]:
        """Queue a move. The future tells whether the scheduler accepted it."""
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append((move, done))
        self._wake.set()
        return done

    async def deliver(self, move: Move, *, within: float) -> bool:
        """Queue a move and wait `within` seconds for the answer. False: refused, or not answered
        yet (it stays queued)."""
        answer = self.post(move)
        await asyncio.wait({answer}, timeout=within)
        return answer.done() and answer.result()

    def nudge(self) -> None:
        """The scheduler was just heard from: try again now."""
        self._wake.set()

    async def run(self) -> None:
        """Carry moves until cancelled."""
        pause = FIRST_RETRY_SECONDS
        while True:
            self._wake.clear()
            if not self._waiting:
                await self._wake.wait()
                continue
            if await self._carry():
                pause = FIRST_RETRY_SECONDS
                continue
            await self._rest(pause)
            pause = min(2 * pause, LAST_RETRY_SECONDS)

    async def _rest(self, seconds: float) -> None:
        jitter = random.uniform(0.7, 1.3)  # noqa: S311
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds * jitter):
                await self._wake.wait()

    async def _carry(self) -> bool:
        """Send the first move. False: nobody answered, it stays first."""
        move, done = self._waiting[0]
        try:
            await self._send(move)
        except Unavailable as error:
            _log.warning("move to %s waits: %s", move.target, error)
            return False
        except SchedulerError as error:
            _log.error("move to %s was refused: %s", move.target, error)
            accepted = False
        else:
            _log.info("moved to %s: %s", move.target, move.cause)
            accepted = True
        self._waiting.popleft()
        if not done.done():
            done.set_result(accepted)
        return True

    async def _send(self, move: Move) -> None:
        await self._scheduler.move(
            self._lease_id,
            self._credential,
            move.target,
            cause=move.cause,
            evidence=dict(move.evidence),
            snapshot=move.snapshot,
            exit_code=move.exit_code,
        )
