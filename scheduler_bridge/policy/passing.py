"""One planning pass over the columns: order -> guaranteed claims -> place -> wait for what is being
freed -> preempt -> reserve for the blocked -> backfill -> explain.

Precedence when rules meet: no GPU twice > protection > whole gangs > guarantee > limits > order. A
workload that does not fit neither blocks those behind it nor preempts for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from scheduler_bridge.policy.accounts import Accounts
from scheduler_bridge.policy.columns import (
    Bools,
    Columns,
    Group,
    Ints,
    Reservation,
    Takes,
    group_of,
)
from scheduler_bridge.policy.demands import is_exact
from scheduler_bridge.policy.making import candidates, make_room
from scheduler_bridge.policy.reservations import kept_for_others, reserve
from scheduler_bridge.policy.rooms import could_hold, eligible, room
from scheduler_bridge.policy.turns import Turns
from scheduler_bridge.policy.values import (
    Pending,
    Preemption,
    PreemptionReason,
    Rules,
    Wait,
    WaitReason,
)
from scheduler_bridge.policy.victims import Candidates, Making, Yielders

Answer = tuple[WaitReason, dict[str, Any]]
"""The one dominant reason why a workload waits, and the figures behind it."""
Explain = Callable[[Pending], Answer]


@dataclass(frozen=True, slots=True)
class Decided:
    """What to do now, counted in GPUs of pools. `promised` replaces the columns'; `stuck` are the
    groups of which nothing can be placed until something ends or becomes preemptible; `lost` are the
    GPU-seconds of work that the preemptions cost."""

    placements: tuple[tuple[str, Takes], ...]
    preemptions: tuple[Preemption, ...]
    waits: tuple[Wait, ...]
    promised: dict[str, Takes]
    reservations: tuple[Reservation, ...]
    stuck: frozenset[Group]
    unfinished: bool = False
    lost: float = 0.0


class Exact(Protocol):
    """Finds room for snapshots to which it matters which GPUs of a machine they get."""

    def room(self, desk: Desk, item: Pending, available: Ints, *, soon: bool) -> Takes | None:
        """Where it goes, now or with what is being freed."""
        ...

    def making(
        self, desk: Desk, item: Pending, found: Candidates, available: Ints
    ) -> Making | None:
        """Who has to yield for it."""
        ...


@dataclass(slots=True)
class Desk:
    """The scratch values of one pass. Nothing of it is seen outside."""

    columns: Columns
    rules: Rules
    now: float
    exact: Exact | None = None
    accounts: Accounts = field(init=False)
    free: Ints = field(init=False)
    leaving: Ints = field(init=False)
    promised: dict[str, Takes] = field(init=False)
    owed: dict[str, Takes] = field(init=False)
    spoken: Ints = field(init=False)
    yielding: set[int] = field(default_factory=set)
    placements: list[tuple[str, Takes]] = field(default_factory=list)
    preemptions: list[Preemption] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)
    reservations: list[Reservation] = field(default_factory=list)
    stuck: set[Group] = field(default_factory=set)
    budget: float = field(init=False)
    lost: float = 0.0
    asking: Collection[Group] | None = None
    yielders: Yielders = field(init=False)
    in_vain: dict[tuple[Any, ...], float] = field(default_factory=dict)
    nobody_yields: dict[tuple[Any, ...], Pending] = field(default_factory=dict)
    _hope: Ints | None = None
    _eligible: dict[tuple[Any, ...], Bools] = field(default_factory=dict)

    def __post_init__(self) -> None:
        pools, work = self.columns.pools, self.columns.work
        self.free = np.where(pools.ready, self.columns.free, 0)
        self.leaving = np.zeros(len(pools), np.int64)
        for row in np.flatnonzero(work.leaving[: len(work.ids)]):
            for pool, gpus in work.takes[int(row)]:
                self.leaving[pool] += gpus if pools.ready[pool] else 0
        self.accounts = Accounts.of(self.rules, int(pools.size[pools.ready].sum()), work)
        self.promised = _valid_promises(self.columns, self.free + self.leaving)
        self.reservations = self._kept(frozenset())
        self.budget = self.rules.loss_budget
        self.yielders = Yielders(work, self.accounts, self.now)
        self.owed, self.spoken = {}, np.zeros(len(pools), np.int64)
        for owner, takes in self.promised.items():
            self._speak_for(owner, takes)
            # What is promised counts to limits already: nobody else may use up the room below them.
            self.accounts.give(self.columns.queue.items[owner])

    def run(
        self,
        only: Iterable[Group] | None = None,
        *,
        explain: Explain | None = None,
        patience: int | None = None,
        asking: Collection[Group] | None = None,
    ) -> Decided:
        """Decide about every waiting workload, or about those of some groups. With `explain`,
        everybody who waits is told why; otherwise only who others make room for. With `patience` the
        pass ends, unfinished, after so many groups of which none could be placed: the next one goes
        on with those that are neither stuck nor placed. If `asking` is given, others are asked to yield
        for work of these groups only: when nothing but room has become free, who asked in vain before
        would again."""
        self.asking = asking
        if explain:
            for item in sorted(self.columns.queue.blocked.values(), key=lambda it: it.id):
                self.wait(item, item.blocked or WaitReason.RETRY_LATER, dict(item.blocked_evidence))
        groups = None if only is None else frozenset(only)
        self.reservations = self._kept(groups)
        turns = Turns(self.columns.queue, self.accounts, groups)
        unfinished = False
        expecting: set[Group] = set()  # one of them waits for what is being freed
        answers: dict[Group, Answer] = {}
        for item, group in turns:
            if group in answers and item.id not in self.promised:
                self.wait(item, *answers[group])
            elif self.decide(item):
                if item.id in self.owed:
                    expecting.add(group)
            else:
                self.stuck.add(group)
                if explain:
                    answers[group] = self._tell(item, explain)
                else:
                    turns.skip(group)
                if patience is not None and len(self.stuck) >= patience:
                    unfinished = True
                    break
        return Decided(
            tuple(self.placements),
            tuple(self.preemptions),
            tuple(self.waits),
            self.promised,
            tuple(self.reservations),
            frozenset(self.stuck - expecting),
            unfinished,
            self.lost,
        )

    def _tell(self, item: Pending, explain: Explain) -> Answer:
        """Say why the first of a group waits. Gives what holds for the others of it: the reservation is
        its alone."""
        reason, evidence = explain(item)
        self.wait(item, reason, evidence)
        return reason, {key: evidence[key] for key in evidence if key != "starts_by"}

    def _kept(self, groups: frozenset[Group] | None) -> list[Reservation]:
        """Reservations of work that still waits and that a pass over these groups does not look at."""
        items = self.columns.queue.items
        return [
            reservation
            for reservation in self.columns.reservations
            if groups is not None
            and (owner := items.get(reservation.owner)) is not None
            and group_of(owner) not in groups
        ]

    def decide(self, item: Pending) -> bool:
        """Place the workload, or make room for it. False if it has to wait and nothing is under way."""
        if item.id in self.promised:
            self.accounts.give(item, -1)
        try:
            return self._decide(item)
        finally:
            if item.id in self.promised:
                self.accounts.give(item)

    def _decide(self, item: Pending) -> bool:
        if not self._is_hopeful(item):
            return False
        takes = self._room_now(item)
        if takes is not None:
            if not self.leaves_headroom(item):
                return False
            self._place(item, takes)
            return True
        may_ask = self.asking is None or group_of(item) in self.asking
        if self._await_freed(item) or (may_ask and self._preempt(item)):
            return True
        self._reserve(item)
        return False

    def leaves_headroom(self, item: Pending) -> bool:
        """Whether enough is left free for debug work, unless it is that or is promised its place."""
        wanted = item.gpus * item.nodes
        if not wanted or not self.rules.headroom or item.is_debug or item.id in self.promised:
            return True
        return int((self.free - self.spoken).sum()) - wanted >= self.rules.headroom

    def _room_now(self, item: Pending) -> Takes | None:
        """Its place among what is free. What found none finds none later in the pass, as less and
        less is free."""
        shape = _shape(item)
        special = item.id in self.promised or bool(item.demands)
        if not special and item.stays >= self.in_vain.get(shape, np.inf):
            return None
        if self.accounts.refusal(item) is not None:
            return None
        takes = self._room(item, self.open_to(item, self.free), soon=False)
        if takes is None and not special:
            self.in_vain[shape] = item.stays
        return takes

    def _is_hopeful(self, item: Pending) -> bool:
        """A quick look: whether enough machines would have room if all yielded that may be asked now.
        Says no only to those without a chance, of whom nobody needs a reservation either."""
        if self._hope is None:
            work = self.columns.work
            rows = len(work.ids)
            yields = work.preemptible[:rows] & (work.yields_from[:rows] <= self.now)
            entries = np.flatnonzero(work.entry_gpus)
            entries = entries[yields[work.entry_row[entries]]]
            back = np.bincount(
                work.entry_pool[entries], work.entry_gpus[entries], minlength=len(self.free)
            )
            self._hope = np.sort(self.free + self.leaving + back.astype(np.int64))
        if is_exact(item.demands):  # its GPUs may be of several pools
            return True
        hopeful = len(self._hope) - int(np.searchsorted(self._hope, item.gpus))
        return hopeful >= item.nodes or len(self.reservations) < self.rules.reservations

    def open_to(self, item: Pending, gpus: Ints) -> Ints:
        """What is left of these for `item`: not what others were promised or wait for, nor what it
        would still hold when another's reservation begins."""
        left = gpus - self.spoken
        for pool, count in self.owed.get(item.id, ()):
            left[pool] += count
        pools = len(self.columns.pools)
        kept = kept_for_others(self.reservations, item, self.now, pools)
        return left if kept is None else left - kept

    def within(self, item: Pending) -> Bools:
        """The pools on which it may run."""
        key = _shape(item)
        if key not in self._eligible:
            self._eligible[key] = eligible(self.columns.pools, item)
        return self._eligible[key]

    def wait(self, item: Pending, reason: WaitReason, evidence: dict[str, Any]) -> None:
        """Say why it waits."""
        self.waits.append(Wait(item.id, len(self.waits) + 1, reason, evidence))

    def _room(self, item: Pending, available: Ints, *, soon: bool) -> Takes | None:
        if self.exact is not None and is_exact(item.demands):
            return self.exact.room(self, item, available, soon=soon)
        within = self.within(item)
        own = self.promised.get(item.id)
        if own and all(available[pool] >= gpus and within[pool] for pool, gpus in own):
            return own
        return room(self.columns.pools, item, available, within)

    def _place(self, item: Pending, takes: Takes) -> None:
        self.placements.append((item.id, takes))
        self.promised.pop(item.id, None)
        self._speak_for(item.id, ())
        self.accounts.give(item)
        self.yielders.forget()
        self.nobody_yields.clear()
        for pool, gpus in takes:
            self.free[pool] -= gpus
        self._hope = None

    def _speak_for(self, owner: str, takes: Takes) -> None:
        """Nobody behind it may count on these GPUs in this pass."""
        for pool, gpus in self.owed.pop(owner, ()):
            self.spoken[pool] -= gpus
        if takes:
            self.owed[owner] = takes
        for pool, gpus in takes:
            self.spoken[pool] += gpus

    def _await_freed(self, item: Pending) -> bool:
        """Whether GPUs that are being freed anyway will do; they are spoken for in this pass."""
        given_back = self.accounts.going[item.team]
        if not self.leaving.any() or self.accounts.refusal(item, given_back) is not None:
            return False
        takes = self._room(item, self.open_to(item, self.free + self.leaving), soon=True)
        if takes is None:
            return False
        self.wait(item, WaitReason.BEING_FREED, self._coming(item, takes))
        if item.id not in self.promised:
            self._speak_for(item.id, takes)
        return True

    def _coming(self, item: Pending, takes: Takes) -> dict[str, Any]:
        """How many of these are still held, and by whom."""
        here = np.maximum(self.open_to(item, self.free), 0)
        coming = {pool: gpus - int(here[pool]) for pool, gpus in takes if gpus > here[pool]}
        work = self.columns.work
        rows = {*map(int, np.flatnonzero(work.leaving[: len(work.ids)])), *self.yielding}
        holders = [work.ids[r] for r in rows if any(pool in coming for pool, _ in work.takes[r])]
        return {"gpus": sum(coming.values()), "from": sorted(holders)}

    def _preempt(self, item: Pending) -> bool:
        if not item.gpus or not could_hold(self.columns.pools, item, self.within(item)):
            return False
        kind = (item.team, item.is_allocated, item.is_debug, *_shape(item), item.yielded_to)
        before = self.nobody_yields.get(kind)
        # Nobody yields to a lower priority, or to who has waited for less, that would not yield before.
        if before is not None and not item.returning and _asks_no_more(item, before):
            return False
        making = make_room(self, item)
        if making is None:
            self.nobody_yields.setdefault(kind, item)
            return False
        self.nobody_yields.clear()
        chosen, found, cost = making
        work = self.columns.work
        names = sorted(work.ids[row] for row in chosen.rows)
        if not self.rules.preemption:
            self.wait(item, WaitReason.PREEMPTION_PAUSED, {"would_yield": names})
            return True
        self.budget, self.lost = self.budget - cost, self.lost + cost
        for row in sorted(chosen.rows, key=lambda row: work.ids[row]):
            self._ask(item, row, found.reason_of(row))
        self.promised[item.id] = chosen.takes
        self._speak_for(item.id, chosen.takes)
        gpus = sum(count for _, count in chosen.takes)
        self.wait(item, WaitReason.BEING_FREED, {"gpus": gpus, "from": names})
        return True

    def _ask(self, item: Pending, row: int, reason: PreemptionReason) -> None:
        work = self.columns.work
        self.yielding.add(row)
        self.preemptions.append(Preemption(work.ids[row], item.id, reason))
        self.accounts.going[work.running[row].team] += int(work.gpus[row])
        for pool, gpus in work.takes[row]:
            self.leaving[pool] += gpus if self.columns.pools.ready[pool] else 0

    def _teams_with_one(self) -> set[str]:
        """One for each team's head: those who are owed most would keep all of them for days."""
        items = self.columns.queue.items
        return {items[it.owner].team for it in self.reservations if it.owner in items}

    def _reserve(self, item: Pending) -> None:
        if (
            not item.is_allocated
            or not item.gpus
            or len(self.reservations) >= self.rules.reservations
            or item.team in self._teams_with_one()
            or self.accounts.refusal(item) is not None
            or not could_hold(self.columns.pools, item, self.within(item))
        ):
            return
        reservation = reserve(
            item,
            self.columns.pools,
            self.columns.work,
            self.yielders.moments(item, candidates(self, item, whenever=True)),
            self.open_to(item, self.free),
            self.within(item),
            self.now,
            self.reservations,
        )
        if reservation is not None:
            self.reservations.append(reservation)


def _is_whole(item: Pending, takes: Takes, node_of: list[str]) -> bool:
    if is_exact(item.demands):
        return sum(gpus for _, gpus in takes) == item.gpus * item.nodes
    nodes = {node_of[pool] for pool, _ in takes}
    return len(nodes) == item.nodes and all(gpus == item.gpus for _, gpus in takes)


def _asks_no_more(item: Pending, before: Pending) -> bool:
    return item.priority <= before.priority and item.since >= before.since


def _shape(item: Pending) -> tuple[Any, ...]:
    demands = tuple(sorted(item.demands.items()))
    return (item.gpus, item.nodes, item.models, item.clusters, demands)


def _valid_promises(columns: Columns, reachable: Ints) -> dict[str, Takes]:
    """Promises to workloads that still wait and whose whole place is free or being freed. If one
    victim could not yield after all, the rest is let go and planned anew."""
    left = reachable.copy()
    valid: dict[str, Takes] = {}
    for owner in sorted(columns.promised):
        takes, item = columns.promised[owner], columns.queue.items.get(owner)
        whole = item is not None and _is_whole(item, takes, columns.pools.node_of)
        if whole and all(left[pool] >= gpus for pool, gpus in takes):
            valid[owner] = takes
            for pool, gpus in takes:
                left[pool] -= gpus
    return valid
