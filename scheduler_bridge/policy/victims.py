"""Who has to yield: a set of running work that makes room for a whole gang at the least GPU-seconds
lost, and of which nobody can be spared.

Who may be asked, and what it costs:
1. idle preemptible sessions of any team cost almost nothing, the longest idle the least;
2. work without protection yields to any work with it;
3. inside a team lower priority yields to higher, and work of the same priority to a session that
   comes back;
4. borrowed GPUs go back to the team they are guaranteed to;
5. after its protection a turn ends for a team that is owed more, and inside a team for whoever has
   waited for the whole turn.
Nobody is asked before `yields_from`. What is lost is the time since the last checkpoint, and what
bringing it back takes; work that never reported one counts as if it did so every hour.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Candidates:
    """`reason[row]` indexes PreemptionReason, -1 for who may not be asked; `cost[row]` is inf there.
    Shapes (rows,)."""

    reason: Ints
    cost: Floats

    def reason_of(self, row: int) -> PreemptionReason:
        """Why this one yields."""
        return _REASONS[int(self.reason[row])]


def candidates(
    item: Pending, work: Work, accounts: Accounts, now: float, *, whenever: bool = False
) -> Candidates:
    """Who may be asked to yield to `item`; with `whenever` also those still protected."""
    rows = len(work.ids)
    reason = np.full(rows, _NOBODY)
    open_ = work.preemptible[:rows] & ~work.leaving[:rows] & (work.gpus[:rows] > 0)
    if not whenever:
        open_ &= work.yields_from[:rows] <= now
    session = work.session[:rows]
    jobs = open_ & ~session & (work.preemptions[:rows] < accounts.rules.max_preemptions)
    for why, mask in reversed(_kinds(item, work, accounts, jobs)):
        reason[mask] = _REASONS.index(why)
    reason[open_ & session & ~np.isnan(work.idle_since[:rows])] = _REASONS.index(
        PreemptionReason.IDLE
    )
    return Candidates(reason, _costs(work, reason, now))


def _kinds(
    item: Pending, work: Work, accounts: Accounts, jobs: Bools
) -> list[tuple[PreemptionReason, Bools]]:
    rows = len(jobs)
    same = work.team[:rows] == work.teams.get(item.team, _NOBODY)
    priority, allocated = work.priority[:rows], work.allocated[:rows]
    equal = same & (priority == item.priority)
    kinds = [(PreemptionReason.OUTRANKED, jobs & same & (priority < item.priority))]
    if item.returning:
        kinds.append((PreemptionReason.RETURNING_SESSION, jobs & equal))
    if item.is_allocated:
        kinds.insert(0, (PreemptionReason.UNALLOCATED, jobs & ~allocated))
        if accounts.claims(item):
            over = _by_team(work, lambda n: accounts.allocated[n] > accounts.team(n).guaranteed)
            kinds.append((PreemptionReason.GUARANTEE, jobs & ~same & over))
        waited = equal & (item.since <= work.since[:rows])
        kinds.append(
            (PreemptionReason.TURN_ENDED, jobs & (waited | _owed_less(item, work, accounts)))
        )
    return kinds


def _owed_less(item: Pending, work: Work, accounts: Accounts) -> Bools:
    margin = accounts.rules.slice_margin * item.gpus * item.nodes
    mine = accounts.balance(item.team)
    return _by_team(work, lambda name: name != item.team and accounts.balance(name) + margin < mine)


def _by_team(work: Work, holds: Callable[[str], bool]) -> Bools:
    flags = np.array([holds(name) for name in work.teams], np.bool_)
    return flags[work.team[: len(work.ids)]]


def _costs(work: Work, reason: Ints, now: float) -> Floats:
    """GPU-seconds lost, dearer kinds far dearer; inf for who may not be asked."""
    rows = len(reason)
    since = work.since[:rows]
    saved = np.fmax(work.saved_at[:rows], since)
    lost = np.where(
        np.isnan(work.saved_at[:rows]), np.minimum(now - since, UNREPORTED_SECONDS), now - saved
    )
    each = np.maximum(lost, 0.0) + work.restore[:rows]
    idle = reason == _REASONS.index(PreemptionReason.IDLE)
    free_ride = reason == _REASONS.index(PreemptionReason.UNALLOCATED)
    each += np.where(free_ride, 0.0, _LATER + work.priority[:rows] * (_LATER / 1e3))
    with np.errstate(invalid="ignore"):
        for_idle = 1.0 / (2.0 + now - work.idle_since[:rows])
    each = np.where(idle, np.nan_to_num(for_idle), each)
    return np.where(reason == _NOBODY, np.inf, each * work.gpus[:rows])


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
    hopeful = within & pools.ready & (available + gain >= item.gpus)
    offers = _offers(item, work, found, available, hopeful, entries)
    chosen = _cheapest(item, pools, offers)
    return _without_spares(item, pools, work, found, available, within, chosen)


@dataclass(frozen=True, slots=True)
class _Offer:
    cost: float
    rows: tuple[int, ...]
    pool: int


def _offers(
    item: Pending, work: Work, found: Candidates, available: Ints, hopeful: Bools, entries: Ints
) -> list[_Offer]:
    """What each pool would cost, the cheapest first, as far as they can matter."""
    missing = item.gpus - available
    row, pool = work.entry_row[entries], work.entry_pool[entries]
    density = found.cost[row] / work.entry_gpus[entries]
    least = np.full(len(available), np.inf)
    np.minimum.at(least, pool, density)
    bound = np.where(missing <= 0, 0.0, least * np.maximum(missing, 1))
    order = np.flatnonzero(hopeful)
    order = order[np.argsort(bound[order], kind="stable")]
    by_pool: dict[int, list[int]] = {}
    for entry in entries[np.isin(pool, order)]:
        by_pool.setdefault(int(work.entry_pool[entry]), []).append(int(entry))
    offers: list[_Offer] = []
    for each in order:
        if (
            len(offers) >= item.nodes
            and bound[each] > sorted(o.cost for o in offers)[item.nodes - 1]
        ):
            break
        offers.append(
            _offer(int(each), int(missing[each]), work, found, by_pool.get(int(each), []))
        )
    return sorted(offers, key=lambda offer: (offer.cost, offer.pool))


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


def _cheapest(item: Pending, pools: Pools, offers: list[_Offer]) -> list[_Offer]:
    """One machine each, all of one cluster."""
    best: tuple[float, list[_Offer]] | None = None
    for cluster in sorted({int(pools.cluster[offer.pool]) for offer in offers}):
        taken: dict[str, _Offer] = {}
        for offer in offers:
            if pools.cluster[offer.pool] == cluster and len(taken) < item.nodes:
                taken.setdefault(pools.node_of[offer.pool], offer)
        cost = sum(offer.cost for offer in taken.values())
        if len(taken) == item.nodes and (best is None or cost < best[0]):
            best = (cost, list(taken.values()))
    return best[1] if best else offers


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
