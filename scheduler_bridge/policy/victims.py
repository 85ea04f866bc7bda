"""Who has to yield: a set of running work that makes room for a whole gang at the least GPU-seconds
lost, and of which nobody can be spared.

Who may be asked, and what it costs:
1. idle preemptible sessions of any team cost almost nothing, the longest idle the least;
2. work without protection yields to any work with it, once it had a moment;
3. inside a team lower priority yields to higher, and work of the same priority to a session that
   comes back;
4. borrowed GPUs go back to the team they are guaranteed to;
5. after its protection a turn ends, if little is lost with it or for a gang, whose machines are never
   saved all at once: for a team that is owed more, and inside a team for whoever has waited for the
   whole turn. Debug work neither ends turns nor has them ended.
Nobody is asked before `yields_from`, nor by somebody whom it had to make room for today. What is lost is
the time since the last checkpoint, and what bringing it back takes. Among victims, work that never
reported a checkpoint counts as if it did so every hour, so that silence is no shield; what it really
loses counts against the budget of losses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from scheduler_bridge.policy.accounts import Accounts
from scheduler_bridge.policy.columns import Bools, Floats, Ints, Pools, Takes, Work
from scheduler_bridge.policy.rooms import room
from scheduler_bridge.policy.values import Pending, PreemptionReason

UNREPORTED_SECONDS: Final = 3600.0
_LATER: Final = 1e9
"""Per GPU: one who is asked only if nobody of the kinds before will do."""

_REASONS: Final[tuple[PreemptionReason, ...]] = tuple(PreemptionReason)
_NOBODY: Final = -1
_IDLE: Final = _REASONS.index(PreemptionReason.IDLE)
_UNALLOCATED: Final = _REASONS.index(PreemptionReason.UNALLOCATED)
_TURN_ENDED: Final = _REASONS.index(PreemptionReason.TURN_ENDED)
_GUARANTEE: Final = _REASONS.index(PreemptionReason.GUARANTEE)


_CHARGED: Final = frozenset({_UNALLOCATED, _TURN_ENDED, _GUARANTEE})


@dataclass(frozen=True, slots=True)
class Candidates:
    """`reason[row]` indexes PreemptionReason, -1 for who may not be asked; `cost[row]` is inf there,
    `loss[row]` GPU-seconds of work that would really be lost. Shapes (rows,)."""

    reason: Ints
    cost: Floats
    loss: Floats

    def reason_of(self, row: int) -> PreemptionReason:
        """Why this one yields."""
        return _REASONS[int(self.reason[row])]

    def without(self, rows: Bools) -> Candidates:
        """The same, without these."""
        reason = np.where(rows, _NOBODY, self.reason)
        return Candidates(reason, np.where(rows, np.inf, self.cost), self.loss)

    def charged(self, rows: tuple[int, ...]) -> float:
        """What these take from the budget of losses: idle sessions lose nothing, and what a team does
        to its own work for its own priorities is its own affair."""
        return sum(float(self.loss[row]) for row in rows if self.reason[row] in _CHARGED)

    def affordable(self, budget: float) -> Candidates:
        """Only those whose loss the budget covers; what is guaranteed is not asked what it costs."""
        asked = (self.reason == _UNALLOCATED) | (self.reason == _TURN_ENDED)
        return self.without((self.loss > budget) & asked)


@dataclass(slots=True)
class Yielders:
    """What can be said of running work without knowing for whom, worked out once for a pass."""

    work: Work
    accounts: Accounts
    now: float
    _loss: Floats = field(init=False)
    _each: Floats = field(init=False)
    _idle_cost: Floats = field(init=False)
    _turns: Bools = field(init=False)
    _turns_from: Floats = field(init=False)
    _known: dict[tuple[object, ...], Candidates] = field(default_factory=dict)

    def __post_init__(self) -> None:
        work, now, rows = self.work, self.now, len(self.work.ids)
        since, saved = work.since[:rows], work.saved_at[:rows]
        silent = np.isnan(saved)
        ran = np.maximum(now - since, 0.0)
        lost = np.where(silent, ran, np.maximum(now - np.fmax(saved, since), 0.0))
        gpus, restore = work.gpus[:rows], work.restore[:rows]
        self._loss = (lost + restore) * gpus
        self._each = np.where(silent, np.minimum(lost, UNREPORTED_SECONDS), lost) + restore
        idle_since = work.idle_since[:rows]
        self._idle_cost = np.where(np.isnan(idle_since), 0.0, 1.0 / (2.0 + now - idle_since))
        protection = work.yields_from[:rows] - since
        little = lost + restore <= self.accounts.rules.turn_loss * ran
        self._turns = np.where(silent, ran >= 2 * protection, little) & ~work.debug[:rows]
        # When the next checkpoint comes nobody knows; hourly is what silence is taken for, too.
        sometime = np.maximum(work.yields_from[:rows], now) + UNREPORTED_SECONDS
        later = np.where(silent, since + 2 * protection, sometime)
        self._turns_from = np.where(self._turns, work.yields_from[:rows], later)

    def forget(self) -> None:
        """Something was given away: balances and guarantees are not what they were."""
        self._known.clear()

    def moments(self, item: Pending, found: Candidates) -> Floats:
        """From when on each of those `found` (`whenever`) yields to `item` or has ended, in UNIX
        seconds; inf where nobody knows. Shape (rows,)."""
        work, rows = self.work, len(found.cost)
        slack = work.since[:rows] + self.accounts.rules.slack_turn
        when = np.where(found.reason == _NOBODY, np.inf, work.yields_from[:rows])
        when = np.where(found.reason == _UNALLOCATED, np.maximum(when, slack), when)
        if item.nodes == 1:
            when = np.where(found.reason == _TURN_ENDED, self._turns_from, when)
        when = np.minimum(when, work.ends_by[:rows])
        return np.where(work.leaving[:rows], self.now, np.maximum(when, self.now))

    def candidates(self, item: Pending, *, whenever: bool = False) -> Candidates:
        """Who may be asked to yield to `item`; with `whenever` also those still protected."""
        waited = item.since if item.is_allocated and not item.is_debug else 0.0
        key = (
            *(item.team, item.priority, item.is_allocated, item.returning, item.is_debug),
            *(item.gpus, item.nodes, item.yielded_to, waited, whenever),
        )
        if key not in self._known:
            self._known[key] = self._find(item, whenever=whenever)
        return self._known[key]

    def _find(self, item: Pending, *, whenever: bool) -> Candidates:
        work, rows = self.work, len(self.work.ids)
        reason = np.full(rows, _NOBODY)
        open_ = work.preemptible[:rows] & ~work.leaving[:rows] & (work.gpus[:rows] > 0)
        if not whenever:
            open_ &= work.yields_from[:rows] <= self.now
        for name in item.yielded_to:
            if (row := work.row_of.get(name)) is not None:
                open_[row] = False
        if open_.any():
            session = work.session[:rows]
            jobs = open_ & ~session
            jobs &= work.preemptions[:rows] < self.accounts.rules.max_preemptions
            if jobs.any():
                for why, mask in reversed(self._kinds(item, jobs, whenever)):
                    reason[mask] = _REASONS.index(why)
            reason[open_ & session & ~np.isnan(work.idle_since[:rows])] = _IDLE
        return Candidates(reason, self._costs(reason), self._loss)

    def _kinds(
        self, item: Pending, jobs: Bools, whenever: bool
    ) -> list[tuple[PreemptionReason, Bools]]:
        work, accounts, rows = self.work, self.accounts, len(jobs)
        same = work.team[:rows] == work.teams.get(item.team, _NOBODY)
        priority, allocated = work.priority[:rows], work.allocated[:rows]
        equal = same & (priority == item.priority)
        kinds = [(PreemptionReason.OUTRANKED, jobs & same & (priority < item.priority))]
        if item.returning:
            kinds.append((PreemptionReason.RETURNING_SESSION, jobs & equal))
        if item.is_allocated:
            claims = accounts.claims(item)
            slack = jobs & ~allocated
            if not claims and not whenever:
                slack &= work.since[:rows] + accounts.rules.slack_turn <= self.now
            kinds.insert(0, (PreemptionReason.UNALLOCATED, slack))
            if claims:
                over = self._by_team(lambda n: accounts.allocated[n] > accounts.team(n).guaranteed)
                kinds.append((PreemptionReason.GUARANTEE, jobs & ~same & over))
            if not item.is_debug:
                waited = equal & (item.since <= work.since[:rows])
                # Many machines never have their checkpoints at the same moment.
                at_once = item.nodes > 1 or whenever
                turns = jobs & ~work.debug[:rows] if at_once else jobs & self._turns
                ends = turns & (waited | self._owed_less(item))
                kinds.append((PreemptionReason.TURN_ENDED, ends))
        return kinds

    def _owed_less(self, item: Pending) -> Bools:
        accounts = self.accounts
        least = accounts.balance(item.team) - accounts.rules.slice_margin * item.gpus * item.nodes
        return self._by_team(lambda name: name != item.team and accounts.balance(name) < least)

    def _by_team(self, holds: Callable[[str], bool]) -> Bools:
        flags = np.array([holds(name) for name in self.work.teams], np.bool_)
        of_rows: Bools = flags[self.work.team[: len(self.work.ids)]]
        return of_rows

    def _costs(self, reason: Ints) -> Floats:
        """GPU-seconds lost, dearer kinds far dearer; inf for who may not be asked."""
        rows = len(reason)
        later = _LATER + self.work.priority[:rows] * (_LATER / 1e3)
        each = self._each + np.where(reason == _UNALLOCATED, 0.0, later)
        each = np.where(reason == _IDLE, self._idle_cost, each)
        return np.where(reason == _NOBODY, np.inf, each * self.work.gpus[:rows])


@dataclass(frozen=True, slots=True)
class Making:
    """Rows that are to yield, and the room that this makes."""

    rows: tuple[int, ...]
    takes: Takes


def choose(
    item: Pending, pools: Pools, work: Work, found: Candidates, available: Ints, within: Bools
) -> Making | None:
    """The cheapest victims and the whole gang's place among what they leave, or None."""
    entries = np.flatnonzero(work.entry_gpus > 0)
    entries = entries[np.isfinite(found.cost[work.entry_row[entries]])]
    gain = np.zeros(len(pools), np.int64)
    np.add.at(gain, work.entry_pool[entries], work.entry_gpus[entries])
    if room(pools, item, available + gain, within) is None:
        return None
    hopeful = np.flatnonzero(within & pools.ready & (available + gain >= item.gpus))
    best: list[_Offer] | None = None
    for cluster in np.unique(pools.cluster[hopeful]):
        inside = hopeful[pools.cluster[hopeful] == cluster]
        offers = list(_offers(item, pools, work, found, available, inside, entries).values())
        if len(offers) == item.nodes and (best is None or _cost(offers) < _cost(best)):
            best = offers
    if best is None:
        return None
    return _without_spares(item, pools, work, found, available, within, best)


def _cost(offers: list[_Offer]) -> float:
    return sum(offer.cost for offer in offers)


@dataclass(frozen=True, slots=True)
class _Offer:
    cost: float
    rows: tuple[int, ...]
    pool: int


def _offers(
    item: Pending,
    pools: Pools,
    work: Work,
    found: Candidates,
    available: Ints,
    hopeful: Ints,
    entries: Ints,
) -> dict[str, _Offer]:
    """The cheapest machines of one cluster: as many as the gang needs, or fewer if it has not so many.
    `hopeful` are its pools that have room if all yield."""
    missing = item.gpus - available
    pool = work.entry_pool[entries]
    density = found.cost[work.entry_row[entries]] / work.entry_gpus[entries]
    least = np.full(len(available), np.inf)
    np.minimum.at(least, pool, density)
    bound = np.where(missing <= 0, 0.0, least * np.maximum(missing, 1))
    by_pool: dict[int, list[int]] = {}
    for entry in entries[np.isin(pool, hopeful)]:
        by_pool.setdefault(int(work.entry_pool[entry]), []).append(int(entry))
    best: dict[str, _Offer] = {}
    for each in hopeful[np.argsort(bound[hopeful], kind="stable")]:
        costs = sorted(offer.cost for offer in best.values())
        if len(costs) >= item.nodes and bound[each] > costs[item.nodes - 1]:
            break
        mine = by_pool.get(int(each), [])
        offer = _offer(int(each), int(missing[each]), work, found, mine)
        name = pools.node_of[each]
        if name not in best or offer.cost < best[name].cost:
            best[name] = offer
    cheapest = sorted(best.items(), key=lambda entry: (entry[1].cost, entry[1].pool))
    return dict(cheapest[: item.nodes])


def _offer(pool: int, missing: int, work: Work, found: Candidates, entries: list[int]) -> _Offer:
    """The cheapest victims that free `missing` GPUs of one pool: exact, by dynamic programming."""
    best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}
    if missing > 0:
        for entry in sorted(entries, key=lambda e: work.ids[work.entry_row[e]]):
            row, gpus = int(work.entry_row[entry]), int(work.entry_gpus[entry])
            for have, (cost, rows) in list(best.items()):
                if have < missing:
                    total = min(have + gpus, missing)
                    offer = (cost + float(found.cost[row]), (*rows, row))
                    if total not in best or offer[0] < best[total][0]:
                        best[total] = offer
    cost, rows = best[max(missing, 0)]
    return _Offer(cost, rows, pool)


def _without_spares(
    item: Pending,
    pools: Pools,
    work: Work,
    found: Candidates,
    available: Ints,
    within: Bools,
    chosen: list[_Offer],
) -> Making | None:
    rows = {row for offer in chosen for row in offer.rows}
    room_then = available.copy()
    for row in rows:
        for pool, gpus in work.takes[row]:
            room_then[pool] += gpus
    for row in sorted(rows, key=lambda r: (-found.cost[r], work.ids[r])):
        fewer = room_then.copy()
        for pool, gpus in work.takes[row]:
            fewer[pool] -= gpus
        if room(pools, item, fewer, within) is not None:
            rows.discard(row)
            room_then = fewer
    takes = room(pools, item, room_then, within)
    return None if takes is None else Making(tuple(sorted(rows)), takes)
