"""The scheduler over HTTP, as everybody else uses it.

    scheduler = SchedulerClient("http://127.0.0.1:8003", token)
    workload = await scheduler.submit(spec, key="job:alice/1")

Supervisors need no token: a lease's credential is enough for what they do.
"""

from __future__ import annotations

import asyncio
import builtins
import os
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, TypeVar
from urllib.parse import quote

import httpx
from pydantic import TypeAdapter, ValidationError

from scheduler_bridge import wire
from scheduler_bridge.errors import (
    Conflict,
    NotAllowed,
    NotFound,
    Refused,
    SchedulerError,
    TooOften,
    Unavailable,
)
from scheduler_bridge.model.nodes import Losses, NodeRecord, NodeStatus
from scheduler_bridge.model.outlook import Variant
from scheduler_bridge.model.phases import Desired, Kind, Phase
from scheduler_bridge.model.queue import QueueView
from scheduler_bridge.model.teams import ChangeSet, Proposal, TeamsView
from scheduler_bridge.model.usage import UsageQuestion, UsageReport
from scheduler_bridge.model.what_if import Outlook
from scheduler_bridge.model.workload import (
    Event,
    Expiry,
    Explanation,
    FleetView,
    Fork,
    Grant,
    Idleness,
    Instruction,
    Output,
    Pause,
    Report,
    SnapshotRef,
    Workload,
    WorkloadSpec,
)

URL_VARIABLE: Final = "HUBERNATE_URL"
TOKEN_VARIABLES: Final = ("HUBERNATE_TOKEN", "JUPYTERHUB_API_TOKEN")
LONGEST_POLL_SECONDS: Final = 60.0
SILENCE_SECONDS: Final = 45.0
_RECONNECT_SECONDS: Final = (0.2, 0.5, 1.0, 2.0, 5.0)
_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")

Value = TypeVar("Value")

_ERRORS: Final[Mapping[int, type[SchedulerError]]] = {
    401: NotAllowed,
    403: NotAllowed,
    404: NotFound,
    409: Conflict,
    413: Refused,
    422: Refused,
}


class SchedulerClient:
    """Implements `plugin.SchedulerPlugin`. Belongs to one event loop. Retries nothing but the
    stream of events: only the caller knows how long it can wait."""

    def __init__(self, url: str, token: str = "", *, timeout: float = 10.0) -> None:
        base = httpx.URL(url.rstrip("/") + wire.PREFIX)
        self._url = url.rstrip("/")
        self._timeout = timeout
        self._client = httpx.AsyncClient(
            base_url=base,
            timeout=timeout,
            headers={"Authorization": f"Bearer {token}"} if token else {},
            # no proxy stands between programs of one machine; reading certificates costs a while
            trust_env=base.host not in _LOOPBACK,
            verify=base.scheme == "https",
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=20),
        )

    @classmethod
    def from_environment(cls) -> SchedulerClient:
        """From HUBERNATE_URL and HUBERNATE_TOKEN or JUPYTERHUB_API_TOKEN. Raises `Unavailable`."""
        url = os.environ.get(URL_VARIABLE, "")
        token = next((t for name in TOKEN_VARIABLES if (t := os.environ.get(name, ""))), "")
        if not url or not token:
            missing = URL_VARIABLE if not url else " or ".join(TOKEN_VARIABLES)
            raise Unavailable(
                f"{missing} is not set, so the scheduler is not known.",
                remedy="Inside a session both are set; elsewhere take them from the Hub.",
            )
        return cls(url, token)

    async def submit(self, spec: WorkloadSpec, *, key: str) -> Workload:
        body = wire.SUBMIT.dump_json(wire.SubmitBody(spec, key))
        return await self._call(wire.WORKLOAD, "POST", "/workloads", body)

    async def fork(
        self,
        workload_id: str,
        *,
        new: Fork,
        snapshot: SnapshotRef,
        source_snapshot: str,
        actor: str,
    ) -> Workload:
        body = wire.FORK.dump_json(wire.ForkBody(new, snapshot, source_snapshot, actor))
        return await self._call(
            wire.WORKLOAD, "POST", f"/workloads/{_part(workload_id)}/fork", body
        )

    async def get(self, workload_id: str) -> Workload:
        return await self._call(wire.WORKLOAD, "GET", f"/workloads/{_part(workload_id)}")

    async def find(self, key: str) -> Workload | None:
        return await self._call(wire.FOUND, "GET", "/workloads/by-key", query={"key": key})

    async def list(
        self, *, kind: Kind | None = None, user: str | None = None, live: bool = True
    ) -> builtins.tuple[Workload, ...]:
        query = {"live": str(live).lower()}
        if kind is not None:
            query["kind"] = kind.value
        if user is not None:
            query["user"] = user
        return await self._call(wire.WORKLOADS, "GET", "/workloads", query=query)

    async def wait(self, workload_id: str, *, version: int, timeout: float) -> Workload:
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout
        while True:
            slice_seconds = max(0.0, min(end - loop.time(), LONGEST_POLL_SECONDS))
            workload = await self._call(
                wire.WORKLOAD,
                "GET",
                f"/workloads/{_part(workload_id)}/wait",
                query={"version": str(version), "timeout": f"{slice_seconds:.3f}"},
                patience=slice_seconds,
            )
            if workload.version != version or loop.time() >= end:
                return workload

    async def desire(
        self, workload_id: str, desired: Desired, *, actor: str, reason: str
    ) -> Workload:
        body = wire.DESIRE.dump_json(wire.DesireBody(desired, reason, actor))
        path = f"/workloads/{_part(workload_id)}/desired"
        return await self._call(wire.WORKLOAD, "POST", path, body)

    async def take(self, workload_id: str) -> Grant:
        return await self._call(wire.GRANT, "POST", f"/workloads/{_part(workload_id)}/take")

    async def heartbeat(
        self, lease_id: str, credential: str, report: Report, *, wait: float = 0.0
    ) -> Instruction:
        return await self._call(
            wire.INSTRUCTION,
            "POST",
            f"/leases/{_part(lease_id)}/heartbeat",
            wire.HEARTBEAT.dump_json(wire.HeartbeatBody(report, wait)),
            credential=credential,
            patience=wait,
        )

    async def move(
        self,
        lease_id: str,
        credential: str,
        target: Phase,
        *,
        cause: str,
        evidence: dict[str, object] | None = None,
        snapshot: SnapshotRef | None = None,
        exit_code: int | None = None,
    ) -> Workload:
        body = wire.MoveBody(target, cause, evidence or {}, snapshot, exit_code)
        return await self._call(
            wire.WORKLOAD,
            "POST",
            f"/leases/{_part(lease_id)}/move",
            wire.MOVE.dump_json(body),
            credential=credential,
        )

    async def set_idleness(self, workload_id: str, idleness: Idleness) -> None:
        path = f"/workloads/{_part(workload_id)}/idleness"
        await self._send("PUT", path, wire.IDLENESS.dump_json(idleness))

    async def announce_expiry(self, workload_id: str, expiry: Expiry | None) -> None:
        path = f"/workloads/{_part(workload_id)}/expiry"
        await self._send("PUT", path, wire.EXPIRY.dump_json(expiry))

    async def expire(self, workload_id: str, *, snapshot: str) -> Workload:
        path = f"/workloads/{_part(workload_id)}/expire"
        body = wire.EXPIRE.dump_json(wire.ExpireBody(snapshot))
        return await self._call(wire.WORKLOAD, "POST", path, body)

    async def what_if(
        self, spec: WorkloadSpec, variants: Sequence[Variant] = ()
    ) -> builtins.tuple[Outlook, ...]:
        body = wire.WHAT_IF.dump_json(wire.WhatIfBody(spec, (*variants,)))
        return await self._call(wire.OUTLOOKS, "POST", "/what-if", body)

    async def queue(self) -> QueueView:
        return await self._call(wire.QUEUE, "GET", "/queue")

    async def nodes(self) -> builtins.tuple[NodeStatus, ...]:
        return await self._call(wire.NODES, "GET", "/nodes")

    async def losses_of_node(self, name: str) -> Losses:
        return await self._call(wire.LOSSES, "GET", f"/nodes/{_part(name)}/losses")

    async def declare_dead(
        self,
        name: str,
        *,
        reason: str,
        actor: str,
        at_once: bool = False,
        given_up: builtins.tuple[str, ...] | None = None,
    ) -> NodeRecord:
        body = wire.GIVE_UP.dump_json(wire.GiveUpBody(reason, actor, at_once, given_up))
        path = f"/nodes/{_part(name)}/declare-dead"
        return await self._call(wire.NODE_RECORD, "POST", path, body)

    async def revive(self, name: str, *, reason: str, actor: str) -> NodeRecord:
        body = wire.REVIVE.dump_json(wire.ReviveBody(reason, actor))
        return await self._call(wire.NODE_RECORD, "POST", f"/nodes/{_part(name)}/revive", body)

    async def losses_of_session(self, workload_id: str) -> Losses:
        return await self._call(wire.LOSSES, "GET", f"/workloads/{_part(workload_id)}/losses")

    async def force_stop(
        self,
        workload_id: str,
        *,
        reason: str,
        actor: str,
        given_up: builtins.tuple[str, ...] | None = None,
    ) -> Workload:
        body = wire.GIVE_UP.dump_json(wire.GiveUpBody(reason, actor, given_up=given_up))
        path = f"/workloads/{_part(workload_id)}/force-stop"
        return await self._call(wire.WORKLOAD, "POST", path, body)

    async def history(self, workload_id: str) -> builtins.tuple[Event, ...]:
        return await self._call(wire.EVENTS, "GET", f"/workloads/{_part(workload_id)}/history")

    async def output(self, workload_id: str, *, position: int = 0, serial: int = 0) -> Output:
        query = {"position": str(position), "serial": str(serial)}
        path = f"/workloads/{_part(workload_id)}/output"
        return await self._call(wire.OUTPUT, "GET", path, query=query)

    async def fleet(self) -> FleetView:
        return await self._call(wire.FLEET, "GET", "/fleet")

    async def why(self, workload_id: str) -> Explanation:
        return await self._call(wire.EXPLANATION, "GET", f"/workloads/{_part(workload_id)}/why")

    async def pause(self, scope: str, *, seconds: float, reason: str, actor: str) -> Pause:
        body = wire.PAUSE_BODY.dump_json(wire.PauseBody(seconds, reason, actor))
        return await self._call(wire.PAUSE, "PUT", f"/pauses/{_part(scope)}", body)

    async def teams(self) -> TeamsView:
        return await self._call(wire.TEAMS, "GET", "/teams")

    async def usable_teams(self, user: str, groups: Collection[str]) -> builtins.tuple[str, ...]:
        query = {"user": user, "group": sorted(groups)}
        return await self._call(wire.NAMES, "GET", "/teams/usable", query=query)

    async def team_changes(self) -> builtins.tuple[ChangeSet, ...]:
        return await self._call(wire.CHANGE_SETS, "GET", "/teams/changes")

    async def change_teams(self, proposal: Proposal, *, actor: str) -> ChangeSet:
        body = wire.CHANGE_TEAMS.dump_json(wire.ChangeTeamsBody(proposal, actor))
        return await self._call(wire.CHANGE_SET, "POST", "/teams/changes", body)

    async def undo_teams(self, change_id: str, *, reason: str, actor: str) -> ChangeSet:
        body = wire.UNDO_TEAMS.dump_json(wire.UndoTeamsBody(reason, actor))
        path = f"/teams/changes/{_part(change_id)}/undo"
        return await self._call(wire.CHANGE_SET, "POST", path, body)

    async def events(self, *, after: int = 0) -> AsyncIterator[Event]:
        """Connects again by itself and goes on after the last event; gives up (`Unavailable`) when
        several attempts in a row bring no connection."""
        failures = 0
        while True:
            try:
                async for frame in self._stream(after):
                    failures = 0
                    if frame is not None:
                        after = frame.id
                        yield frame
            except Unavailable:
                if failures >= len(_RECONNECT_SECONDS):
                    raise
            pause = _RECONNECT_SECONDS[min(failures, len(_RECONNECT_SECONDS) - 1)]
            failures += 1
            await asyncio.sleep(pause)

    async def _stream(self, after: int) -> AsyncIterator[Event | None]:
        """Events of one connection; None for each line that only shows that it lives."""
        timeout = httpx.Timeout(self._timeout, read=SILENCE_SECONDS)
        try:
            async with self._client.stream(
                "GET", "/events", headers={"Last-Event-ID": str(after)}, timeout=timeout
            ) as response:
                if response.status_code != 200:
                    await response.aread()
                    raise _error_of(response)
                async for line in response.aiter_lines():
                    is_event = line.startswith("data:")
                    yield _parse(wire.EVENT, line[5:].encode()) if is_event else None
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error

    async def usage(self, question: UsageQuestion) -> UsageReport:
        query = {"group_by": str(question.group_by)}
        if question.bucket is not None:
            query["bucket"] = str(question.bucket)
        for name, at in (("from", question.since), ("to", question.until)):
            if at is not None:
                query[name] = _moment(at)
        return await self._call(wire.USAGE, "GET", "/usage", query=query)

    async def aclose(self) -> None:
        await self._client.aclose()

    async def _call(
        self,
        adapter: TypeAdapter[Value],
        method: str,
        path: str,
        body: bytes | None = None,
        **how: Any,
    ) -> Value:
        response = await self._send(method, path, body, **how)
        return _parse(adapter, response.content)

    async def _send(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        query: Mapping[str, str | builtins.list[str]] | None = None,
        credential: str = "",
        patience: float = 0.0,
    ) -> httpx.Response:
        headers = {"Content-Type": "application/json"} if body is not None else {}
        if credential:
            headers["Authorization"] = f"Bearer {credential}"
        try:
            response = await self._client.request(
                method,
                path,
                params=query,
                content=body,
                headers=headers,
                timeout=httpx.Timeout(self._timeout, read=self._timeout + patience),
            )
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        if not response.is_success:
            raise _error_of(response)
        return response

    def _unreachable(self, error: httpx.HTTPError) -> Unavailable:
        what = str(error) or type(error).__name__
        return Unavailable(
            f"The scheduler at {self._url} does not answer ({what}).", remedy="Try again soon."
        )


def _part(text: str) -> str:
    """A value as one part of a path."""
    return quote(text, safe="")


def _moment(at: float) -> str:
    """UNIX seconds as ISO 8601. Raises `Refused` for what is no time."""
    try:
        return datetime.fromtimestamp(at, UTC).isoformat()
    except (ValueError, OverflowError, OSError) as error:
        raise Refused(f"{at} seconds is no time between 1970 and 9999.") from error


def _parse(adapter: TypeAdapter[Value], content: bytes) -> Value:
    try:
        return adapter.validate_json(content)
    except ValidationError as error:
        raise Unavailable(
            "The scheduler's answer makes no sense; is it of another version?"
        ) from error


def _error_of(response: httpx.Response) -> SchedulerError:
    make = _ERRORS.get(response.status_code, Unavailable)
    try:
        problem = wire.PROBLEM.validate_json(response.content)
    except ValidationError:
        # a proxy's page, not ours: it says nothing about the workload
        return Unavailable(f"The scheduler's address answered {response.status_code}.")
    if response.status_code == 429:
        rest = response.headers.get("Retry-After", "")
        seconds = int(rest) if rest.isdecimal() else 0
        return TooOften(problem.message, remedy=problem.remedy, retry_after=seconds)
    return make(problem.message, remedy=problem.remedy)
