"""What would start waiting work now, when it will start, and what would come of work that somebody
means to submit. Changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from scheduler_bridge.engine.board import Board
from scheduler_bridge.engine.estimates import Estimates
from scheduler_bridge.engine.fitting import pending
from scheduler_bridge.errors import Refused
from scheduler_bridge.model.outlook import Change, Estimate, Variant
from scheduler_bridge.model.phases import DEADLINES, Kind, Phase
from scheduler_bridge.model.what_if import Outlook
from scheduler_bridge.model.workload import Workload, WorkloadId, WorkloadSpec
from scheduler_bridge.policy.alternatives import Alternative, alternatives
from scheduler_bridge.policy.estimates import estimate
from scheduler_bridge.policy.exact import ExactRooms
from scheduler_bridge.policy.outlook_words import change_sentence, change_values
from scheduler_bridge.policy.passing import Desk
from scheduler_bridge.policy.trials import Bench, Moment, Outcome, State, Tried
from scheduler_bridge.policy.values import Pending, Wait, WaitReason
from scheduler_bridge.policy.wording import wait_remedy, wait_sentence

GUARANTEES: Final = (0.0, 900.0, 8 * 3600.0)
"""Seconds of protection whose price is told before submitting."""

MOST_VARIANTS: Final = 16
_HYPOTHETICAL: Final = "what-if"
_PATIENCE: Final = 8
"""Kinds of work without a place that are looked at again before an answer, if passes are behind."""

ESTIMATED_AT_MOST: Final = 50
"""Of how many of a queue's rows it is told when they start."""


class Outlooks:
    """Asked between passes. `check` raises `Refused` for what would not be admitted."""

    def __init__(
        self, board: Board, estimates: Estimates, check: Callable[[WorkloadSpec], object]
    ) -> None:
        self._board, self._books = board, board.books
        self._estimates, self._check = estimates, check
        self._known: State | None = None
        self._books.changed.append(lambda _events: self._forget())

    def _forget(self) -> None:
        self._known = None

    def estimate(self, workload: Workload, wait: Wait) -> Estimate:
        """When a queued workload starts."""

        def make() -> Estimate:
            item = self._considered(workload)
            if item is None or not item.is_allocated:
                return self._estimate_waiting(workload, wait, None)
            state = self._state()
            moment = Bench(state.without(item.id)).moment(item)
            return self._estimate_waiting(workload, wait, _promised(state, item, moment))

        return self._estimates.give(workload.id, make)

    def tell(
        self, workload: Workload, wait: Wait, teams: Iterable[str]
    ) -> tuple[tuple[Change, ...], Estimate]:
        """What would start a queued workload now, the smallest change first, and the moment at which it
        starts as it is; and when it starts."""
        found, starts_by = tuple[Alternative, ...](), None
        if (item := self._considered(workload)) is not None:
            state = self._state()
            found = self._alternatives(state, item, teams)
            starts_by = _promised(state, item, _moment(found))
        told = self._estimates.give(
            workload.id, lambda: self._estimate_waiting(workload, wait, starts_by)
        )
        return tuple(map(_change, found)), told

    def what_if(
        self, spec: WorkloadSpec, variants: Sequence[Variant], teams: Iterable[str]
    ) -> tuple[Outlook, ...]:
        """The spec as it is, then each variant; without variants, the price of other guarantees.
        `teams` are those of its user."""
        if len(variants) > MOST_VARIANTS:
            raise Refused(
                f"variants: at most {MOST_VARIANTS} at once; there are {len(variants)}.",
                remedy="Ask in several steps.",
            )
        asked = [spec, *(_varied(spec, each) for each in variants or _guarantees(spec))]
        state, known = self._state(), tuple(teams)
        return tuple(self._outlook(state, each, known) for each in asked)

    # -- one workload ------------------------------------------------------------------------

    def _state(self) -> State:
        """After all that a pass would do now."""
        board, now = self._board, self._books.clock.now()
        groups = board.refresh(now)
        rules = board.rules
        known = self._known
        if known and (known.now, known.rules) == (now, rules) and known.columns is board.columns:
            return known
        exact = ExactRooms(board.devices)
        desk = Desk(board.columns, rules, now, exact)
        desk.run(groups, patience=_PATIENCE)
        board.devices.fixed.clear()
        reservations = tuple(desk.reservations)
        self._known = State(board.columns, rules, now, reservations, dict(desk.owed), exact)
        return self._known

    def _outlook(self, state: State, spec: WorkloadSpec, teams: tuple[str, ...]) -> Outlook:
        try:
            self._check(spec)
        except Refused as refused:
            return Outlook(spec, "refused", "refused", str(refused), refused.remedy)
        item = _hypothetical(spec, state.now)
        try:
            tried = Bench(state).try_(item)
        finally:
            self._board.devices.fixed.clear()
        if tried.outcome is Outcome.NOW:
            return Outlook(spec, tried.outcome.value)
        reason, evidence = _reason(tried)
        found = self._alternatives(state, item, teams)
        starts_by = _promised(state, item, _moment(found))
        told = self._estimate(item, reason, evidence, starts_by)
        return Outlook(
            spec,
            tried.outcome.value,
            reason.value,
            wait_sentence(reason, evidence),
            wait_remedy(reason),
            starts_by,
            self._estimates.measured(told),
            tuple(_change(each) for each in found),
        )

    def _considered(self, workload: Workload) -> Pending | None:
        """As it stands in the queue, if the planner alone decides about it and promised it nothing."""
        columns = self._board.columns
        item = columns.queue.items.get(workload.id)
        return None if item is None or item.blocked or item.id in columns.promised else item

    def _alternatives(
        self, state: State, item: Pending, teams: Iterable[str]
    ) -> tuple[Alternative, ...]:
        try:
            return alternatives(state, item, teams)
        finally:
            self._board.devices.fixed.clear()

    def _estimate_waiting(
        self, workload: Workload, wait: Wait, starts_by: float | None
    ) -> Estimate:
        item = self._board.columns.queue.items.get(workload.id)
        if item is None or item.blocked is not None:
            return Estimate(self._books.clock.now(), reason="held_back")
        return self._estimate(item, wait.reason, dict(wait.evidence), starts_by)

    def _estimate(
        self, item: Pending, reason: WaitReason, evidence: dict[str, Any], starts_by: float | None
    ) -> Estimate:
        return estimate(
            item,
            reason,
            self._estimates.history,
            self._books.clock.now(),
            ahead=self._estimates.ahead(item.id, item.gpus * item.nodes),
            starts_by=starts_by,
            freed_by=self._freed_by(evidence.get("from", ())),
        )

    def _freed_by(self, holders: Iterable[str]) -> float | None:
        """By when those that were asked to leave have left or were ended."""
        now = self._books.clock.now()
        ends = [
            _left_by(workload, now)
            for name in holders
            if (workload := self._books.workloads.get(name)) is not None
        ]
        return max(ends, default=None)


def _moment(found: Iterable[Alternative]) -> Moment | None:
    return next((each.moment for each in found if each.moment is not None), None)


def _promised(state: State, item: Pending, moment: Moment | None) -> float | None:
    """When it starts at the latest, if it has a reservation or would get one."""
    owners = {each.owner for each in state.reservations}
    is_reserved = item.id in owners or len(owners) < state.rules.reservations
    return moment.at if moment and item.is_allocated and is_reserved else None


def _left_by(workload: Workload, now: float) -> float:
    is_session = workload.spec.kind is Kind.SESSION
    leaving = Phase.SUSPENDING if is_session else Phase.PREEMPTING
    since = workload.phase_since if workload.phase is leaving else now
    grace = 0.0 if is_session else workload.spec.grace_seconds
    return max(now, since + DEADLINES[workload.spec.kind][leaving].seconds + grace)


def _reason(tried: Tried) -> tuple[WaitReason, dict[str, Any]]:
    if tried.reason is None or tried.evidence is None:
        raise AssertionError("whoever does not start at once waits for a reason")
    return tried.reason, tried.evidence


def _change(change: Alternative) -> Change:
    item, moment = change.asked, change.moment
    return Change(
        change.kind.value,
        change_sentence(change),
        change_values(item, change.item),
        change.outcome is Outcome.MAKES_ROOM,
        moment.at if moment else None,
        moment.last if moment else (),
    )


def _hypothetical(spec: WorkloadSpec, now: float) -> Pending:
    workload = Workload(
        id=WorkloadId(_HYPOTHETICAL),
        key="",
        spec=spec,
        phase=Phase.QUEUED,
        phase_since=now,
        created_at=now,
        version=0,
    )
    return pending(workload)


def _guarantees(spec: WorkloadSpec) -> list[Variant]:
    asked = spec.min_runtime_seconds
    return [Variant(min_runtime_seconds=each) for each in GUARANTEES if each != asked]


def _varied(spec: WorkloadSpec, variant: Variant) -> WorkloadSpec:
    changes = {
        name: value for name in Variant.__slots__ if (value := getattr(variant, name)) is not None
    }
    return replace(spec, **changes)
