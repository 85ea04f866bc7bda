"""What happens because time has passed. Frees no GPU of a sandbox that may live."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import inf
from typing import Any

from scheduler_bridge.engine.agenda import Agenda
from scheduler_bridge.engine.books import Books
from scheduler_bridge.engine.desires import desire
from scheduler_bridge.engine.moves import want
from scheduler_bridge.engine.settings import Settings
from scheduler_bridge.model.phases import (
    DEADLINES,
    HOLDS_LEASE,
    Deadline,
    Desired,
    Kind,
    Phase,
    is_legal,
)
from scheduler_bridge.model.workload import Workload
from scheduler_bridge.store.base import LeaseRecord

_ACTOR = "scheduler"
_DAY = 86400.0


class Timers:
    """Carries out what is due. Cheap however many workloads there are."""

    def __init__(self, books: Books, settings: Settings) -> None:
        self._books, self._settings = books, settings
        self._agenda = Agenda(books, self._workload_due, self._lease_due)

    def enforce(self) -> None:
        """Carry out every hold, deadline and expiry that is due."""
        workloads, leases = self._agenda.due(self._books.clock.now())
        for name in workloads:
            if (workload := self._books.workloads.get(name)) is not None:
                self._enforce(workload)
        for name in leases:
            record = self._books.leases.get(name)
            if record is not None and _is_silent_and_unknown(self._books, record, self._settings):
                with self._books.draft() as draft:
                    cause = "its holder never reported, and had to stop itself by now"
                    draft.release(record, ended_as=Phase.LOST, cause=cause, actor=_ACTOR)

    def next_due(self) -> float | None:
        """When there is something to do again, in UNIX seconds."""
        now = self._books.clock.now()
        pauses = (pause.until for pause in self._books.pauses.values() if pause.until > now)
        soonest = min(self._agenda.next(now), *pauses, inf)
        return None if soonest == inf else soonest

    def _enforce(self, workload: Workload) -> None:
        books, now = self._books, self._books.clock.now()
        record = books.current_lease(workload)
        if record is not None and record.taken_at is None:
            if workload.spec.kind is Kind.SESSION and now >= record.hold_until:
                _lapse(books, workload, record)
            return
        if now >= ends_by(workload) and workload.desired is not Desired.STOPPED:
            _end(books, workload)
            return
        deadline = _deadline(workload)
        if deadline and now >= deadline_at(workload, record, deadline):
            _pass_deadline(books, workload, deadline)
        elif record is not None and now >= record.lease.expires_at + self._settings.lease_margin:
            _lose(books, workload, record)

    def _workload_due(self, name: str, now: float) -> float:
        workload = self._books.workloads.get(name)
        if workload is None:
            return inf
        return min(_due_times(self._books, self._settings, workload, now), default=inf)

    def _lease_due(self, name: str, now: float) -> float:
        record = self._books.leases.get(name)
        if record is None or not self._books.is_lingering(record) or record.handle:
            return inf
        return record.lease.expires_at + self._settings.lease_margin


def _due_times(books: Books, settings: Settings, workload: Workload, now: float) -> Iterator[float]:
    record = books.current_lease(workload)
    if record is not None and record.taken_at is None:
        if workload.spec.kind is Kind.SESSION:
            yield record.hold_until
        return
    if deadline := _deadline(workload):
        yield deadline_at(workload, record, deadline)
    if record is not None and workload.phase is not Phase.LOST:
        yield record.lease.expires_at + settings.lease_margin
    if workload.desired is not Desired.STOPPED and (end := ends_by(workload)) < inf:
        yield end
    # Nothing is done at these but planning again.
    moments = [protected_until(workload)]
    if workload.phase is Phase.QUEUED:
        moments.append(retry_at(workload, settings))
    yield from (moment for moment in moments if now < moment < inf)


def protected_until(workload: Workload) -> float:
    """Until when it may not be asked to yield; 0 without a place."""
    if workload.lease is None:
        return 0.0
    return workload.lease.granted_at + workload.spec.min_runtime_seconds


def ends_by(workload: Workload) -> float:
    """When it is ended because it has run for as long as it may; inf if it may go on."""
    limit = workload.spec.max_runtime_seconds
    if limit is None or workload.lease is None:
        return inf
    return workload.lease.granted_at + limit


def recent(moments: Iterable[float], now: float) -> tuple[float, ...]:
    """Those of the last 24 hours."""
    return tuple(moment for moment in moments if moment > now - _DAY)


def retry_at(workload: Workload, settings: Settings) -> float:
    """When a workload whose last start failed may be placed again."""
    if workload.attempt == 0 or not workload.last_error:
        return workload.phase_since
    return workload.phase_since + settings.retry_pause * 2.0 ** min(workload.attempt - 1, 6)


def _deadline(workload: Workload) -> Deadline | None:
    return DEADLINES[workload.spec.kind].get(workload.phase)


def deadline_at(workload: Workload, record: LeaseRecord | None, deadline: Deadline) -> float:
    """A start is timed from the moment its place was taken up; an end comes after its grace."""
    since = workload.phase_since
    if record is not None and record.taken_at is not None:
        since = max(since, record.taken_at) if workload.phase in _STARTS else since
    if workload.phase in _IN_GRACE:
        return since + deadline.seconds + workload.spec.grace_seconds
    return since + deadline.seconds


_STARTS = (Phase.STARTING, Phase.RESUMING)
_IN_GRACE = (Phase.PREEMPTING, Phase.CANCELLING)


def _lapse(books: Books, workload: Workload, record: LeaseRecord) -> None:
    """Nobody came for the place: first it goes back into the queue, the second time it ends."""
    cause = "its place was held and nobody came for it"
    with books.draft() as draft:
        draft.release(record, ended_as=workload.phase, cause=cause, actor=_ACTOR)
        workload = draft.workload(workload.id)
        if workload.phase is Phase.RESUMING:
            workload = draft.move(workload, Phase.SUSPENDED, cause=cause, actor=_ACTOR)
            want(draft, workload, Desired.SUSPENDED, _ACTOR, cause)
        elif workload.attempt == 0:
            draft.move(workload, Phase.QUEUED, cause=cause, actor=_ACTOR, attempt=1)
        else:
            draft.move(
                workload,
                Phase.STOPPED,
                cause=cause,
                actor=_ACTOR,
                last_error="Its place was held twice and nobody came for it.",
                remedy="Start it again.",
            )


def _end(books: Books, workload: Workload) -> None:
    reason = f"It has run for {workload.spec.max_runtime_seconds:g} s, which is all it may."
    with books.draft() as draft:
        desire(draft, workload, Desired.STOPPED, actor=_ACTOR, reason=reason)


def _pass_deadline(books: Books, workload: Workload, deadline: Deadline) -> None:
    phase, outcome = workload.phase, deadline.outcome
    cause = f"still {phase.value} after {deadline.seconds:g} s"
    with books.draft() as draft:
        changes: dict[str, Any] = {
            "last_error": f"It was {cause}.",
            "remedy": "See its log.",
        }
        if workload.spec.kind is Kind.JOB and outcome is Phase.QUEUED:
            changes["attempt"] = workload.attempt + 1
        workload = draft.move(workload, outcome, cause=cause, actor=_ACTOR, **changes)
        if outcome is Phase.SUSPENDED:
            workload = want(draft, workload, Desired.SUSPENDED, _ACTOR, cause)
        elif outcome in (Phase.RUNNING, Phase.QUEUED) and workload.desired is Desired.SUSPENDED:
            workload = want(draft, workload, Desired.RUNNING, _ACTOR, cause)
        if outcome not in HOLDS_LEASE:
            draft.leave_behind(workload)


def _lose(books: Books, workload: Workload, record: LeaseRecord) -> None:
    """The holder is silent: it is lost, and its GPUs stay taken until it is proven gone."""
    if not is_legal(workload.spec.kind, workload.phase, Phase.LOST):
        return
    with books.draft() as draft:
        silent = draft.now - record.lease.expires_at
        draft.move(
            workload,
            Phase.LOST,
            cause="its supervisor has not reported in time",
            actor=_ACTOR,
            evidence={"overdue_seconds": round(silent, 1)},
        )


def _is_silent_and_unknown(books: Books, record: LeaseRecord, settings: Settings) -> bool:
    """A lease left behind by a holder that never said who it is. It fences itself when it cannot
    renew, and it cannot: the lease is not its workload's any more."""
    return (
        books.is_lingering(record)
        and not record.handle
        and books.clock.now() >= record.lease.expires_at + settings.lease_margin
    )
