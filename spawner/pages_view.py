"""What the Hub's pages say about sessions (pure): from workloads to JSON for the browser."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from scheduler_bridge.model.phases import Desired, Phase
from scheduler_bridge.model.workload import (
    EXPIRY_NOTICE_SECONDS,
    FleetView,
    Forecast,
    Pause,
    Workload,
)
from spawner.arrival import WAITS, Arrival, arrival
from spawner.badge import UNKNOWN, Outlook, outlook
from spawner.hosting import Seen
from spawner.names import server_title
from spawner.options import Capacity, capacity_of, count_gpus

_LIVE = frozenset({Phase.RUNNING, Phase.FILLING})
_SENTENCE = {
    Phase.STARTING: "is starting",
    Phase.RUNNING: "is running",
    Phase.SUSPENDING: "is being suspended: its memory is being stored",
    Phase.PARKED: "has given its GPU back; its memory is being stored",
    Phase.SUSPENDED: "is suspended; your work is safe",
    Phase.RESUMING: "is being brought back",
    Phase.FILLING: "is running; its memory is still arriving",
    Phase.LOST: "has not been heard of; looking for it",
}
_ACTIONS: dict[Phase, tuple[str, ...]] = {
    Phase.QUEUED: ("cancel",),
    Phase.STARTING: ("cancel",),
    Phase.RESUMING: ("cancel",),
    Phase.RUNNING: ("suspend", "stop"),
    Phase.FILLING: ("stop",),
    Phase.SUSPENDED: ("resume", "fork", "fresh", "discard"),
}
_MATTER_OF_ROOM = frozenset({"no_free_gpus", "scattered", "promised", "being_freed"})
"""Reasons to wait that are told by counting GPUs."""


@dataclass(frozen=True, slots=True)
class Row:
    """One session on the home page. Times are seconds before or after now, sizes bytes.

    `resume_now` tells whether Resume would start at once; `resume_when` says so in a sentence.
    `is_connected` is false for a session that lives but that the Hub does not route to.
    `can_suspend` is None while it is not known; `suspend_outlook` says why not, or what it costs.
    `kept_until` says when the memory of a suspended session is deleted; `goes_soon` within a week.
    """

    server: str
    title: str
    sentence: str
    phase: str
    url: str
    profile: str
    gpus: str
    age_seconds: float
    actions: tuple[str, ...]
    is_connected: bool
    stored_bytes: int = 0
    memory_bytes: int = 0
    snapshot_age_seconds: float | None = None
    idle_seconds: float | None = None
    suspend_in_seconds: float | None = None
    idle_reason: str = ""
    resume_now: bool = False
    resume_when: str = ""
    can_suspend: bool | None = None
    suspend_outlook: str = ""
    kept_until: str = ""
    goes_soon: bool = False
    notes: tuple[str, ...] = ()
    error: str = ""
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Server:
    """What the Hub itself knows of the same server."""

    url: str
    is_ready: bool
    pending: str = ""


def page(
    rows: list[Row], fleet: FleetView | None, *, now: float, is_scheduler_up: bool = True
) -> dict[str, Any]:
    """The whole answer to the page's question."""
    return {
        "sessions": [asdict(row) for row in rows],
        "pauses": pause_sentences(fleet.pauses if fleet else (), now=now),
        "scheduler": is_scheduler_up,
        "message": ""
        if is_scheduler_up
        else "The scheduler does not answer. Running sessions go on; suspended ones are safe.",
    }


def row(
    workload: Workload,
    server: Server,
    seen: Seen,
    fleet: FleetView | None,
    *,
    now: float,
    forecast: Forecast | None = None,
) -> Row:
    """One workload in words, with what its owner can do about it. `forecast`: what the
    scheduler says of a resume now, of a suspended one."""
    idle, shot = workload.idleness, workload.snapshot
    is_live = workload.phase in _LIVE
    is_suspended = workload.phase is Phase.SUSPENDED
    capacity = capacity_of(fleet) if fleet else None
    badge = _badge(workload, now)
    coming = _coming(workload, seen)
    error, remedy = _problem(workload, seen, coming)
    return Row(
        server=workload.spec.server,
        title=server_title(workload.spec.server),
        sentence=_sentence(workload, coming),
        phase=workload.phase,
        url=server.url,
        profile=workload.spec.profile,
        gpus=count_gpus(workload.spec.gpus, virtual=bool(capacity and capacity.virtual)),
        age_seconds=max(0.0, now - workload.phase_since),
        actions=_actions(workload, server, forecast),
        is_connected=server.is_ready or not is_live,
        stored_bytes=shot.stored_bytes if shot and is_suspended else 0,
        memory_bytes=shot.bytes if shot and is_suspended else 0,
        snapshot_age_seconds=max(0.0, now - shot.created_at) if shot and is_suspended else None,
        idle_seconds=_past(idle.since, now) if is_live else None,
        suspend_in_seconds=_until(idle.suspend_at, now) if is_live else None,
        idle_reason=idle.reason if is_live else "",
        resume_now=is_suspended and (forecast.now if forecast else _fits(workload, capacity)),
        resume_when=resume_when(workload, capacity, forecast) if is_suspended else "",
        can_suspend=badge.can,
        suspend_outlook=badge.sentence,
        kept_until=kept_until(workload, now=now),
        goes_soon=_goes_soon(workload, now),
        notes=seen.status.notes if seen.status else (),
        error=error,
        remedy=remedy,
    )


def _badge(workload: Workload, now: float) -> Outlook:
    if workload.phase is not Phase.RUNNING or workload.signals_at is None:
        return UNKNOWN
    return outlook(workload.signals, age_seconds=now - workload.signals_at)


def is_left_alone(workload: Workload, is_active: bool) -> bool:
    """Whether a session runs, and is to, that the Hub knows of as stopped."""
    return not is_active and workload.phase is Phase.RUNNING and workload.desired is Desired.RUNNING


def kept_until(workload: Workload, *, now: float) -> str:
    """When the memory of a suspended session is deleted, why, and what keeps it; empty if never."""
    expiry = workload.deletion
    if expiry is None:
        return ""
    date = f"{datetime.fromtimestamp(expiry.at, UTC):%Y-%m-%d %H:%M} UTC"
    why = f"{expiry.reason}; rule {expiry.rule}"
    if not _goes_soon(workload, now):
        return f"Kept until {date} ({why})."
    left = _duration(expiry.at - now)
    return f"Its memory is deleted in {left}, on {date} ({why}). Resume it to keep it."


def _goes_soon(workload: Workload, now: float) -> bool:
    expiry = workload.deletion
    return expiry is not None and expiry.at - now <= EXPIRY_NOTICE_SECONDS


def resume_when(
    workload: Workload, capacity: Capacity | None, forecast: Forecast | None = None
) -> str:
    """Before the click: whether Resume starts now, or why it will wait, or why it cannot."""
    gpus = workload.spec.gpus
    if forecast and not forecast.now and forecast.reason not in _MATTER_OF_ROOM:
        when = "Does not resume now" if forecast.possible else "Cannot be resumed"
        return f"{when}. {forecast.text} {forecast.remedy}"
    if gpus == 0:
        return "Resumes now."
    if capacity is None:
        return "Whether it can resume now is unknown: the scheduler does not answer."
    have = count_gpus(capacity.total, virtual=capacity.virtual)
    if forecast.now if forecast else _fits(workload, capacity):
        return f"Resumes now: {capacity.free} of {have} free."
    ahead = f" and {capacity.queued} waiting" if capacity.queued else ""
    return (
        f"Resumes as soon as {count_gpus(gpus)} {'is' if gpus == 1 else 'are'} free: "
        f"{capacity.free} of {have} free{ahead}."
    )


def pause_sentences(pauses: tuple[Pause, ...], *, now: float) -> list[str]:
    """One sentence per pause in force."""
    what = {"reclaim": "Suspending idle sessions", "preempt": "Preempting", "all": "All reclaiming"}
    return [
        f"{what.get(pause.scope, pause.scope)} is paused for {_duration(pause.until - now)} more "
        f"by {pause.actor}: {pause.reason}"
        for pause in pauses
        if pause.until > now
    ]


def _fits(workload: Workload, capacity: Capacity | None) -> bool:
    if workload.spec.gpus == 0:
        return True
    return capacity is not None and capacity.fits_now(workload.spec.gpus)


def _coming(workload: Workload, seen: Seen) -> Arrival | None:
    if workload.phase is not Phase.FILLING or seen.status is None:
        return None
    return arrival(seen.status.facts)


def _sentence(workload: Workload, coming: Arrival | None) -> str:
    title = server_title(workload.spec.server)
    if workload.phase is Phase.QUEUED:
        place = f" as number {workload.position}" if workload.position else ""
        why = f" {workload.wait_reason.rstrip('.')}." if workload.wait_reason else ""
        return f"{title} waits{place}.{why}"
    if workload.phase is Phase.RUNNING and workload.desired is Desired.SUSPENDED:
        return f"{title} is running and is about to be suspended."
    share = f" ({coming.words})" if coming and coming.words else ""
    return f"{title} {_SENTENCE.get(workload.phase, workload.phase)}{share}."


def _actions(
    workload: Workload, server: Server, forecast: Forecast | None = None
) -> tuple[str, ...]:
    actions = _ACTIONS.get(workload.phase, ())
    if forecast is not None and not forecast.possible:
        actions = tuple(action for action in actions if action not in ("resume", "fork"))
    if server.pending:
        return tuple(action for action in actions if action == "cancel")
    if workload.phase in _LIVE and not server.is_ready:
        return ("open", *actions)
    return actions


def _problem(workload: Workload, seen: Seen, coming: Arrival | None) -> tuple[str, str]:
    """What went wrong, and what helps. Memory that does not come is what matters now."""
    if coming and coming.trouble:
        return f"No more of its memory comes: {coming.trouble.rstrip('.')}.", WAITS
    status = seen.status
    remedy = status.remedy if status and status.error else ""
    return workload.last_error or (status.error if status else ""), workload.remedy or remedy


def _past(moment: float | None, now: float) -> float | None:
    return None if moment is None else max(0.0, now - moment)


def _until(moment: float | None, now: float) -> float | None:
    return None if moment is None else max(0.0, moment - now)


def _duration(seconds: float) -> str:
    minutes = max(1, round(seconds / 60))
    if minutes < 120:
        return f"{minutes} min"
    return f"{minutes // 60} h" if minutes < 2 * 1440 else f"{minutes // 1440} days"
