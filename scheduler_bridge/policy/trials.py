"""Tries one workload, as it is or changed, in a state in which everybody else has had their turn.

Nothing outside is changed: each trial has scratch values of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from itertools import takewhile
from typing import Any

import numpy as np

from scheduler_bridge.policy.columns import Columns, Floats, Reservation, Takes
from scheduler_bridge.policy.demands import is_exact
from scheduler_bridge.policy.passing import Desk, Exact
from scheduler_bridge.policy.reasons import Reasons
from scheduler_bridge.policy.reservations import reserve
from scheduler_bridge.policy.rooms import could_hold
from scheduler_bridge.policy.values import Pending, Rules, WaitReason
from scheduler_bridge.policy.victims import Candidates


class Outcome(StrEnum):
    """What would come of a workload: it starts at once, others make room for it, or it waits."""

    NOW = "now"
    MAKES_ROOM = "makes_room"
    WAITS = "waits"


@dataclass(frozen=True, slots=True)
class State:
    """What was true after the last pass. `reservations` are that pass's; `owed` is what it spoke for:
    promises, and GPUs that are being freed and for which somebody waits."""

    columns: Columns
    rules: Rules
    now: float
    reservations: tuple[Reservation, ...] = ()
    owed: Mapping[str, Takes] = field(default_factory=dict)
    exact: Exact | None = None

    def without(self, name: str) -> State:
        """The same if a workload made no claim, and nobody behind one that has a reservation did."""
        before = takewhile(lambda each: each.owner != name, self.reservations)
        return replace(
            self,
            reservations=tuple(before),
            owed={owner: takes for owner, takes in self.owed.items() if owner != name},
        )


@dataclass(frozen=True, slots=True)
class Tried:
    """`reason` and `evidence` say why it waits, and are empty if it starts at once."""

    outcome: Outcome
    reason: WaitReason | None = None
    evidence: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Moment:
    """`at` (UNIX seconds) enough will have ended or lost its protection. `last` are the workloads
    that decide it, `ends` tells that they end then; otherwise their protection does."""

    at: float
    last: tuple[str, ...]
    ends: bool


class Bench:
    """Tries workloads one by one against the same state."""

    def __init__(self, state: State) -> None:
        self.state = state
        self._rules = replace(state.rules, reservations=0)
        self._desk: Desk | None = None
        self._spare: Desk | None = None

    def try_(self, item: Pending) -> Tried:
        """What the planner would decide, and why."""
        with self._lent() as desk:
            outcome = self._decide(desk, item)
            if outcome is not Outcome.WAITS:
                return Tried(outcome, *_said(desk, item))
            reason, evidence = _said(desk, item)
            if reason is None:
                reason, evidence = Reasons(desk).why(item)
            return Tried(outcome, reason, evidence)

    def outcome(self, item: Pending) -> Outcome:
        """What the planner would decide."""
        with self._lent() as desk:
            return self._decide(desk, item)

    def desk(self) -> Desk:
        """Scratch values, for looking only."""
        if self._desk is None:
            self._desk = self._fresh()
        return self._desk

    def moment(self, item: Pending) -> Moment | None:
        """When it can start, beside everybody else's reservation, if nobody ends earlier and nobody
        else comes; None if nobody knows."""
        desk, columns = self.desk(), self.state.columns
        if is_exact(item.demands) or desk.accounts.refusal(item) is not None:
            return None
        within = desk.within(item)
        if not item.gpus or not could_hold(columns.pools, item, within):
            return None
        found = desk.yielders.candidates(item, whenever=True)
        there = desk.free - desk.spoken
        now = self.state.now
        first = reserve(
            *(item, columns.pools, columns.work, desk.yielders.moments(item, found)),
            *(there, within, now, self.state.reservations),
        )
        # what is there now and is not given to it will not be had by waiting for that
        if first is None or first.at <= now or not self._comes_true(item, first.at):
            return None
        return self._moment(first, found)

    def _comes_true(self, item: Pending, at: float) -> bool:
        """Whether the planner would start it then, everything else being as it is."""
        columns = _later(self.state.columns, at)
        desk = Desk(columns, self._rules, at, self.state.exact)
        self._claim(desk)
        for reservation in self.state.reservations:
            for pool, gpus in reservation.takes if reservation.at <= at else ():
                desk.spoken[pool] += gpus
        return self._decide(desk, item) is not Outcome.WAITS

    def _moment(self, first: Reservation, found: Candidates) -> Moment:
        work, rows = self.state.columns.work, len(found.cost)
        protected = _protected_until(self.state.columns, found)
        when = np.maximum(np.minimum(protected, work.ends_by[:rows]), self.state.now)
        there = {pool for pool, _ in first.takes}
        last = [
            int(row)
            for row in np.flatnonzero((when == first.at) & (work.gpus[:rows] > 0))
            if any(pool in there for pool, _ in work.takes[int(row)])
        ]
        ends = bool(last) and all(work.ends_by[row] <= protected[row] for row in last)
        return Moment(first.at, tuple(sorted(work.ids[row] for row in last)), ends)

    @contextmanager
    def _lent(self) -> Iterator[Desk]:
        """A desk in the state's own condition."""
        desk = self._spare or _copy(self.desk())
        before = len(desk.placements), len(desk.preemptions), len(desk.owed)
        desk.waits.clear()
        yield desk
        is_used = before != (len(desk.placements), len(desk.preemptions), len(desk.owed))
        self._spare = None if is_used else desk

    def _fresh(self) -> Desk:
        state = self.state
        desk = Desk(state.columns, self._rules, state.now, state.exact)
        self._claim(desk)
        return desk

    def _claim(self, desk: Desk) -> None:
        """What others have from the last pass."""
        desk.reservations.extend(self.state.reservations)
        waiting = self.state.columns.queue.items
        for owner, takes in self.state.owed.items():
            if owner in waiting and owner not in desk.owed:
                desk.owed[owner] = takes
                for pool, gpus in takes:
                    desk.spoken[pool] += gpus

    def _decide(self, desk: Desk, item: Pending) -> Outcome:
        placed = len(desk.placements)
        if not desk.decide(item):
            return Outcome.WAITS
        if len(desk.placements) > placed:
            return Outcome.NOW
        reason, _ = _said(desk, item)
        return Outcome.MAKES_ROOM if reason is WaitReason.BEING_FREED else Outcome.WAITS


def _later(columns: Columns, at: float) -> Columns:
    """The same when what may run no longer has ended."""
    made, work = copy(columns), copy(columns.work)
    rows = len(work.ids)
    ended = (work.ends_by[:rows] <= at) & (work.gpus[:rows] > 0)
    made.work, made.free = work, columns.free.copy()
    work.gpus, work.entry_gpus = work.gpus.copy(), work.entry_gpus.copy()
    work.leaving = work.leaving.copy()
    work.gpus[:rows][ended], work.leaving[:rows][ended] = 0, False
    for row in np.flatnonzero(ended):
        for pool, gpus in work.takes[int(row)]:
            made.free[pool] += gpus
    work.entry_gpus[np.isin(work.entry_row, np.flatnonzero(ended))] = 0
    return made


def _copy(desk: Desk) -> Desk:
    """Another one in the same condition, as far as a pass changes it."""
    made = copy(desk)
    made.accounts = copy(desk.accounts)
    for thing in (made, made.accounts):
        for each in fields(thing):
            value = getattr(thing, each.name)
            if isinstance(value, dict | list | set | np.ndarray):
                setattr(thing, each.name, copy(value))
    return made


def _said(desk: Desk, item: Pending) -> tuple[WaitReason | None, dict[str, Any] | None]:
    wait = next((each for each in reversed(desk.waits) if each.id == item.id), None)
    return (None, None) if wait is None else (wait.reason, dict(wait.evidence))


def _protected_until(columns: Columns, found: Candidates) -> Floats:
    rows = len(found.cost)
    yields = np.where(np.isfinite(found.cost), columns.work.yields_from[:rows], np.inf)
    return np.where(columns.work.leaving[:rows], -np.inf, yields)
