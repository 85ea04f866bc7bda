"""Opening a session: from what exists (nothing, a queue entry, a snapshot, a live tree) to a server
that answers. Knows scheduler and host, not JupyterHub.

Whatever ends an opening early (an error, a timeout, a cancel), `give_back` leaves neither a lease
nor a queue entry behind that nobody wants; only `StillQueued` keeps its place on purpose.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from scheduler_bridge.errors import Conflict, NotFound, Refused, SchedulerError, Unavailable
from scheduler_bridge.model.phases import Desired, Phase
from scheduler_bridge.model.workload import Grant, Report, Workload, WorkloadSpec
from scheduler_bridge.plugin import SchedulerPlugin
from spawner.hosting import NOTHING_SEEN, Launch, LaunchFailed, NotReachable, Seen, SessionHost
from spawner.progress import ProgressLog, phase_line
from spawner.steps import Step, next_step
from spawner.supervisor.status import Outcome, Status

LONG_POLL_SECONDS: Final = 5.0
GIVE_BACK_SECONDS: Final = 10.0

Clock = Callable[[], float]
MakeLaunch = Callable[[str, Workload, Grant], Awaitable[Launch]]


class StillQueued(Exception):
    """The wait is over and it is not this session's turn yet. Its place is kept."""

    def __init__(self, workload: Workload) -> None:
        super().__init__(f"{workload.id} is still {workload.phase}")
        self.workload = workload


class OtherSize(Exception):
    """The session that exists has another size or team than asked for, and memory that would be
    lost. `why` is set where the team that was asked for cannot have it."""

    def __init__(self, workload: Workload, *, why: str = "") -> None:
        super().__init__(why or f"{workload.id} has another size")
        self.workload = workload
        self.why = why


class Ended(Exception):
    """The session ended while it was being opened."""

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy


@dataclass(frozen=True, slots=True)
class Opened:
    """A session that answers. `is_continued`: processes from before this opening live in it."""

    workload_id: str
    status: Status
    is_continued: bool


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to be opened. `known_id` is the workload the Hub remembers, if any."""

    key: str
    spec: WorkloadSpec
    actor: str
    known_id: str = ""


class Opening:
    """One attempt. Use once; `run`, and `give_back` if `run` did not return."""

    def __init__(
        self,
        plugin: SchedulerPlugin,
        host: SessionHost,
        log: ProgressLog,
        *,
        make_launch: MakeLaunch,
        clock: Clock,
    ) -> None:
        self._plugin = plugin
        self._host = host
        self._log = log
        self._make_launch = make_launch
        self._clock = clock
        self._workload: Workload | None = None
        self._grant: Grant | None = None
        self._mode = ""
        self._has_asked = False
        self._keeps_place = False

    @property
    def workload_id(self) -> str:
        """The workload being opened, as soon as there is one."""
        return self._workload.id if self._workload else ""

    @property
    def launched(self) -> Step | None:
        """START, RESUME or ADOPT once this opening has started a supervisor."""
        return Step(self._mode) if self._mode else None

    @property
    def _version(self) -> int:
        return self._workload.version if self._workload else 0

    @property
    def has_memory(self) -> bool:
        """Whether there is something to lose: a snapshot, or a tree from before."""
        return self._workload is not None and self._workload.snapshot is not None

    async def run(self, wish: Wish, *, queue_wait: float, ready_wait: float) -> Opened:
        """Bring the session up.

        Raises `StillQueued`, `OtherSize`, `Ended`, `LaunchFailed`, `SchedulerError`.

        `queue_wait` bounds the time in the queue, `ready_wait` the time from a place to an answer;
        both in seconds.
        """
        patience = self._clock() + queue_wait
        while True:
            workload = await self._look(wish)
            if workload is None and self._has_asked:
                raise Ended("The session was ended before it could be opened.", "Start it again.")
            seen = self._host.observe(workload.id) if workload else NOTHING_SEEN
            if workload is not None:
                self._workload = workload
                self._log.say(*phase_line(workload))
            opened = await self._take(next_step(workload, seen), wish, patience, ready_wait)
            if opened is not None:
                return opened

    async def attach(self, workload_id: str, seen: Seen) -> Opened | None:
        """The session as this machine shows it, for when the scheduler cannot be asked."""
        if not seen.is_ready or seen.status is None:
            return None
        self._log.say(85, "Your session is running. Connecting.")
        return Opened(workload_id, seen.status, is_continued=True)

    async def _look(self, wish: Wish) -> Workload | None:
        """The workload as it is. One without memory in the queue yields to a new size or team; a
        suspended one comes back in the team that is wished for."""
        workload = await self._plugin.find(wish.key)
        if workload is None or _same(workload.spec, wish.spec):
            return workload
        if workload.phase is Phase.SUSPENDED and _same_size(workload.spec, wish.spec):
            try:
                return await self._plugin.submit(wish.spec, key=wish.key)
            except Refused as problem:
                raise OtherSize(workload, why=str(problem)) from problem
        if workload.phase is not Phase.QUEUED or workload.snapshot is not None:
            raise OtherSize(workload)
        await self._plugin.desire(
            workload.id, Desired.STOPPED, actor=wish.actor, reason="another size or team was chosen"
        )
        return None

    async def _take(
        self, step: Step, wish: Wish, patience: float, ready_wait: float
    ) -> Opened | None:
        workload = self._workload
        if step is Step.SUBMIT or workload is None:
            self._log.say(5, "Asking for a place.")
            self._workload = await self._plugin.submit(wish.spec, key=wish.key)
            self._has_asked = True
        elif step is Step.ASK_TO_RUN:
            await self._ask_to_run(workload, wish)
        elif step is Step.ATTACH:
            return await self._await_ready(workload.id, ready_wait, is_continued=True)
        elif step in (Step.START, Step.RESUME, Step.ADOPT):
            return await self._launch(step, workload, ready_wait)
        else:
            await self._wait(workload, patience)
        return None

    async def _ask_to_run(self, workload: Workload, wish: Wish) -> None:
        if self._has_asked and workload.desired is not Desired.RUNNING:
            why = workload.desired_reason or "no reason was given"
            raise Ended(f"Opening was ended by {workload.desired_by}: {why}.")
        try:
            await self._plugin.desire(
                workload.id, Desired.RUNNING, actor=wish.actor, reason="opened by its owner"
            )
            self._has_asked = True
        except Conflict:
            await self._plugin.wait(workload.id, version=workload.version, timeout=1.0)

    async def _wait(self, workload: Workload, patience: float) -> None:
        left = patience - self._clock()
        if left <= 0:
            self._keeps_place = True
            raise StillQueued(workload)
        await self._plugin.wait(
            workload.id, version=workload.version, timeout=min(left, LONG_POLL_SECONDS)
        )

    async def _launch(self, step: Step, workload: Workload, ready_wait: float) -> Opened | None:
        try:
            self._grant = await self._plugin.take(workload.id)
        except (Conflict, NotFound):
            # the place went to somebody else between looking and taking: look again
            await self._plugin.wait(workload.id, version=workload.version, timeout=1.0)
            return None
        handle = await self._host.launch(await self._make_launch(step.value, workload, self._grant))
        self._mode = step.value
        await self._tell_who_was_started(self._grant, workload.phase, handle)
        return await self._await_ready(workload.id, ready_wait, is_continued=step is not Step.START)

    async def _tell_who_was_started(
        self, grant: Grant, phase: Phase, handle: Mapping[str, Any]
    ) -> None:
        """A supervisor that dies before its first word can then be proven gone. Whether the
        scheduler hears of it decides nothing else."""
        report = Report(grant.lease.epoch, phase, handle=dict(handle))
        with suppress(SchedulerError):
            await self._plugin.heartbeat(grant.lease.id, grant.credential, report)

    async def _await_ready(
        self, workload_id: str, ready_wait: float, *, is_continued: bool
    ) -> Opened | None:
        """None: the session was suspended before it could be attached to; look again."""
        deadline = self._clock() + ready_wait
        while True:
            seen = self._host.observe(workload_id)
            if seen.is_ready and seen.status is not None:
                self._log.say(90, "Your session answers.")
                return Opened(workload_id, seen.status, is_continued)
            if not seen.supervisor_alive:
                if not self._mode and seen.outcome is Outcome.SUSPENDED:
                    await self._plugin.wait(workload_id, version=self._version, timeout=1.0)
                    return None
                raise _ended(seen)
            if self._clock() > deadline:
                raise Ended(
                    f"The session did not answer within {ready_wait:.0f} s.",
                    "Try again; if it happens twice, its log tells why.",
                )
            await self._host.wait_news(workload_id, seen)

    async def give_back(self, *, actor: str, reason: str) -> None:
        """Undo what `run` has booked. Bounded; failures leave it to the scheduler's own checks
        (a lease whose holder is silent expires) and are raised for the caller's log."""
        if self._workload is None or self._keeps_place:
            return
        async with asyncio.timeout(GIVE_BACK_SECONDS):
            if self._grant is not None and not self._mode:
                # A tree that was to be adopted still runs on the lease: it is not ours to return.
                if not self._host.observe(self.workload_id).is_live:
                    await self._return_lease(self._grant, reason)
            elif self._mode in (Step.START, Step.RESUME):
                await self._end_launched(actor, reason)
            elif self._workload.phase is Phase.QUEUED:
                await self._leave_queue(actor, reason)

    def _to_be(self) -> Desired:
        return Desired.SUSPENDED if self.has_memory else Desired.STOPPED

    async def _return_lease(self, grant: Grant, reason: str) -> None:
        """Nothing was started on the lease, so the sandbox is empty by construction."""
        target = Phase.SUSPENDED if self.has_memory else Phase.STOPPED
        await self._plugin.move(grant.lease.id, grant.credential, target, cause=reason)

    async def _end_launched(self, actor: str, reason: str) -> None:
        seen = self._host.observe(self.workload_id)
        if not seen.is_live and seen.outcome is not None:
            return
        await self._plugin_desire(actor, reason)
        if self._mode == Step.START:
            try:
                await self._host.ask(self.workload_id, "stop", actor=actor, reason=reason)
            except NotReachable:
                return  # it hears of the desired state in its next heartbeat

    async def _leave_queue(self, actor: str, reason: str) -> None:
        await self._plugin_desire(actor, reason)

    async def _plugin_desire(self, actor: str, reason: str) -> None:
        self._workload = await self._plugin.desire(
            self.workload_id, self._to_be(), actor=actor, reason=reason
        )


def _same(have: WorkloadSpec, want: WorkloadSpec) -> bool:
    return _same_size(have, want) and have.team == want.team


def _same_size(have: WorkloadSpec, want: WorkloadSpec) -> bool:
    return (have.profile, have.gpus) == (want.profile, want.gpus)


def _ended(seen: Seen) -> Ended:
    status = seen.status
    if status is not None and status.error:
        return Ended(status.error, status.remedy)
    if status is not None and status.outcome is Outcome.SUSPENDED:
        return Ended("The session was suspended again while it was being opened.", "Resume it.")
    if status is not None and status.outcome is not None:
        return Ended(f"The session ended at once ({status.outcome}).", "Its log tells why.")
    return Ended(
        "The session's supervisor ended without saying why.", "Its log (supervisor.log) tells more."
    )


__all__ = [
    "Ended",
    "LaunchFailed",
    "Opened",
    "Opening",
    "SchedulerError",
    "StillQueued",
    "Unavailable",
    "Wish",
]
