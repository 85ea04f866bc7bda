"""The date on which a suspended session's memory is deleted: shown first, carried out later.

Whoever decides about it (a retention policy) asks here, and here it is made sure that nothing goes
without a date that its owner could see for a week.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from scheduler_bridge.engine.scheduler import Scheduler
from scheduler_bridge.errors import Conflict, Refused
from scheduler_bridge.model.phases import Phase
from scheduler_bridge.model.workload import EXPIRY_NOTICE_SECONDS, Expiry, Workload

_TOLERANCE: Final = 60.0
"""Between the clock of whoever chose the date and ours, in seconds."""


def announce(
    scheduler: Scheduler, workload_id: str, expiry: Expiry | None, *, actor: str
) -> Workload:
    """Show the date (None: take it back). Writes only when something changed."""
    with scheduler.books.draft() as draft:
        workload = draft.workload(workload_id)
        known = workload.deletion
        if expiry is None:
            if workload.expiry is None:
                return workload
            changed = draft.put(replace(workload, expiry=None))
            if known is not None:
                draft.note("expiry_withdrawn", changed, cause="kept after all", actor=actor)
            return changed
        _check_suspended(workload, expiry.snapshot)
        shown = draft.now
        if known is not None and expiry.at >= known.at:
            shown = known.announced_at
        if expiry.at < shown + EXPIRY_NOTICE_SECONDS - _TOLERANCE:
            raise Refused(
                "at: the owner must be able to see the date for a week.",
                remedy="Choose a later date.",
            )
        expiry = replace(expiry, announced_at=shown)
        if expiry == known:
            return workload
        changed = draft.put(replace(workload, expiry=expiry))
        is_warning = known is not None and expiry.warned != known.warned
        draft.note(
            "expiry_warning" if is_warning else "expiry",
            changed,
            cause=f"its memory is deleted on {_day(expiry.at)}: {expiry.reason}",
            actor=actor,
            evidence={"at": expiry.at, "rule": expiry.rule, "snapshot": expiry.snapshot},
        )
    return scheduler.get(workload_id)


def expire(scheduler: Scheduler, workload_id: str, *, snapshot: str, actor: str) -> Workload:
    """End a suspended session whose date has come. Raises `Conflict`, having changed nothing, when it
    was resumed meanwhile, or no date was shown for long enough."""
    with scheduler.books.draft() as draft:
        workload = draft.workload(workload_id)
        _check_suspended(workload, snapshot)
        expiry = workload.deletion
        if expiry is None or draft.now < max(
            expiry.at, expiry.announced_at + EXPIRY_NOTICE_SECONDS - _TOLERANCE
        ):
            raise Conflict(f"The date for {workload_id} has not come.", remedy="Announce it.")
        draft.move(
            workload,
            Phase.STOPPED,
            cause=f"its memory was deleted: {expiry.reason}",
            actor=actor,
            evidence={"rule": expiry.rule, "snapshot": snapshot},
        )
    scheduler.wake()
    return scheduler.get(workload_id)


def _day(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d}"


def _check_suspended(workload: Workload, snapshot: str) -> None:
    current = workload.snapshot.key if workload.snapshot else ""
    if workload.phase is not Phase.SUSPENDED or current != snapshot:
        raise Conflict(
            f"{workload.id} is {workload.phase.value} and not suspended as {snapshot}.",
            remedy="Look again.",
        )
