"""Before the programs end: every session is suspended, and none is lost if that does not work.

The scheduler is asked first. Where it does not answer, the supervisors are told directly: they
suspend on SIGTERM with everything else down.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from hub_config.children import Record
from hub_config.paths import StateFolder
from hub_config.settings import LocalSettings
from scheduler_bridge.client import SchedulerClient
from scheduler_bridge.errors import SchedulerError, Unavailable
from scheduler_bridge.model.phases import HOLDS_LEASE, Desired, Kind, Phase
from scheduler_bridge.model.workload import Workload
from scheduler_bridge.plugin import SchedulerPlugin
from spawner.supervisor.status import Status, read_status

log = logging.getLogger(__name__)

ACTOR = "hubernate up"
REASON = "Hubernate is being stopped on this machine."
WAIT_SECONDS = 180.0
_AWAY = frozenset({Phase.SUSPENDED, Phase.STOPPED, Phase.FAILED, Phase.QUEUED})

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Leave:
    """What became of the sessions: how many were suspended, and what still runs, by name."""

    suspended: int = 0
    left_running: tuple[str, ...] = ()


async def suspend_all(
    settings: LocalSettings, token: str, tell: Tell, *, wait_seconds: float = WAIT_SECONDS
) -> Leave:
    """Suspend every session and wait for the commits, at most `wait_seconds`. Never raises."""
    scheduler = SchedulerClient(settings.scheduler_url, token)
    try:
        async with asyncio.timeout(wait_seconds + 10):
            return await suspend_through(scheduler, tell, wait_seconds=wait_seconds)
    except (Unavailable, TimeoutError) as error:
        tell(f"The scheduler does not answer ({error or 'time is up'}); supervisors are told.")
        return await suspend_by_signal(settings.folder(), tell, wait_seconds=wait_seconds)
    except SchedulerError as error:
        tell(f"Sessions were not suspended and go on: {error}")
        return Leave()
    finally:
        await scheduler.aclose()


async def suspend_through(scheduler: SchedulerPlugin, tell: Tell, *, wait_seconds: float) -> Leave:
    """Ask the scheduler to suspend all sessions that run, and wait until none holds a lease."""
    live = [work for work in await scheduler.list() if work.phase in HOLDS_LEASE]
    sessions = [work for work in live if work.spec.kind is Kind.SESSION]
    if jobs := len(live) - len(sessions):
        tell(f"{jobs} job(s) go on and are found again by `hubernate up`.")
    if not sessions:
        return Leave()
    tell(f"Suspending {len(sessions)} session(s); another Ctrl-C leaves the rest running.")
    for session in sessions:
        await scheduler.desire(session.id, Desired.SUSPENDED, actor=ACTOR, reason=REASON)
    deadline = monotonic() + wait_seconds
    results = await asyncio.gather(
        *(_await_end(scheduler, one, deadline, tell) for one in sessions)
    )
    left = tuple(name(one) for one, gone in zip(sessions, results, strict=True) if not gone)
    if left:
        tell(f"{', '.join(left)}: running on, and found again by `hubernate up`.")
    return Leave(sum(results), left)


async def _await_end(
    scheduler: SchedulerPlugin, session: Workload, deadline: float, tell: Tell
) -> bool:
    """Whether the session left its lease before the deadline; if not, says why."""
    begun = monotonic()
    while (left := deadline - monotonic()) > 0:
        session = await scheduler.wait(
            session.id, version=session.version, timeout=max(0.1, min(20.0, left))
        )
        if session.phase in _AWAY:
            tell(f"{name(session)}: {session.phase.value} after {monotonic() - begun:.1f} s")
            return True
        if session.phase is Phase.RUNNING and session.desired is not Desired.SUSPENDED:
            tell(f"{name(session)} cannot be suspended: {session.last_error or 'no reason given'}")
            return False
    tell(f"{name(session)} was not suspended in time ({session.phase.value})")
    return False


def name(session: Workload) -> str:
    """A session as a person knows it."""
    return f"{session.spec.user}/{session.spec.server or 'default'}"


async def suspend_by_signal(folder: StateFolder, tell: Tell, *, wait_seconds: float) -> Leave:
    """Tell each live session supervisor to suspend, and wait for their processes to end."""
    live = live_supervisors(folder)
    for _, record in live:
        with contextlib.suppress(ProcessLookupError):
            os.kill(record.pid, signal.SIGTERM)
    deadline = monotonic() + wait_seconds
    # Other programs' children: their ends raise no event here.
    while any(record.is_alive() for _, record in live) and monotonic() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(0.2)
    left = tuple(status.workload_id for status, record in live if record.is_alive())
    for workload_id in left:
        tell(f"{workload_id} goes on; it is found again by `hubernate up`.")
    return Leave(len(live) - len(left), left)


def live_supervisors(folder: StateFolder) -> list[tuple[Status, Record]]:
    """Supervisors of sessions that run now, as their status files say (jobs have no port)."""
    found = []
    for path in sorted(folder.run.glob("*/status.json")):
        status = _status(path.parent)
        if status is None or status.supervisor is None or not status.host_port:
            continue
        record = supervisor_record(status.supervisor.pid, status.supervisor.started)
        if record is not None:
            found.append((status, record))
    return found


def supervisor_record(pid: int, started_ticks: int) -> Record | None:
    """The process if it is the one that started at that clock tick since boot, else None."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    ticks = int(text.rpartition(")")[2].split()[19])
    if ticks != started_ticks:
        return None
    import psutil

    try:
        return Record(pid, psutil.Process(pid).create_time(), "")
    except psutil.Error:
        return None


def _status(directory: Path) -> Status | None:
    try:
        return read_status(directory)
    except ValueError:
        log.warning("%s has a status file that cannot be read", directory)
        return None
