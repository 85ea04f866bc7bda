"""Making room for work that finds none: who yields, within every limit and what may be lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from scheduler_bridge.policy.accounts import Refusal
from scheduler_bridge.policy.columns import Takes
from scheduler_bridge.policy.demands import is_exact
from scheduler_bridge.policy.rooms import room
from scheduler_bridge.policy.values import Pending
from scheduler_bridge.policy.victims import Candidates, Making, choose

if TYPE_CHECKING:
    from scheduler_bridge.policy.passing import Desk


def make_room(desk: Desk, item: Pending) -> tuple[Making, Candidates, float] | None:
    """Who is to yield to it and where it goes then, why they are chosen, and the GPU-seconds that this
    takes from what may be lost; None if nobody yields, or in vain. Asks nobody."""
    found = candidates(desk, item)
    making = _within_limits(desk, item, found) if np.isfinite(found.cost).any() else None
    if making is None:
        return None
    cost = found.charged(making.rows)
    if cost > _may_cost(desk, item) or not _is_allowed(desk, item, making):
        return None
    return making, found, cost


def candidates(desk: Desk, item: Pending, *, whenever: bool = False) -> Candidates:
    """Who may be asked to yield to it and was not yet; with `whenever` also those still protected,
    whatever is lost."""
    found = desk.yielders.candidates(item, whenever=whenever)
    if desk.yielding:
        asked = np.zeros(len(found.cost), np.bool_)
        asked[list(desk.yielding)] = True
        found = found.without(asked)
    return found if whenever else found.affordable(_may_cost(desk, item))


def _may_cost(desk: Desk, item: Pending) -> float:
    """GPU-seconds that others may lose for it. A gang may take more than is saved up, if anything is:
    it would never find so much there. It is made up for before the next one."""
    if desk.accounts.claims(item) or (item.nodes > 1 and desk.budget > 0):
        return np.inf
    return desk.budget


def _is_allowed(desk: Desk, item: Pending, making: Making) -> bool:
    """Whether every limit lets it have its place when all are gone that yield or leave."""
    work = desk.columns.work
    leaving = map(int, np.flatnonzero(work.leaving[: len(work.ids)]))
    gone = [work.running[row] for row in {*making.rows, *desk.yielding, *leaving}]
    held = {it.id: sum(gpus for _, gpus in work.takes[work.row_of[it.id]]) for it in gone}
    return desk.accounts.allows_after(
        item, [(it.team, held[it.id], it.priority, it.is_allocated) for it in gone]
    )


def _within_limits(desk: Desk, item: Pending, found: Candidates) -> Making | None:
    columns, accounts = desk.columns, desk.accounts
    refusal = accounts.refusal(item, accounts.going[item.team])
    available = desk.open_to(item, desk.free + desk.leaving)
    if desk.exact is not None and is_exact(item.demands):
        return None if refusal else desk.exact.making(desk, item, found, available)
    within = desk.within(item)
    if refusal is None:
        return choose(item, columns.pools, columns.work, found, available, within)
    given = _given_back(desk, item, refusal, found)
    if not given:
        return None
    after = available.copy()
    for pool, gpus in _takes(desk, given):
        after[pool] += gpus
    if (takes := room(columns.pools, item, after, within)) is not None:
        return Making(tuple(sorted(given)), takes)
    found.cost[list(given)] = 0.0  # they yield in any case
    making = choose(item, columns.pools, columns.work, found, available, within)
    return making if making is not None and given <= set(making.rows) else None


def _takes(desk: Desk, rows: set[int]) -> Takes:
    return tuple(take for row in rows for take in desk.columns.work.takes[row])


def _given_back(desk: Desk, item: Pending, refusal: Refusal, found: Candidates) -> set[int]:
    """The cheapest of the team's own whose GPUs bring it below its limit; nobody if that is not what
    it is about, or not to be had."""
    work, over = desk.columns.work, refusal.over or 0
    own = work.team[: len(work.ids)] == work.teams.get(item.team, -1)
    rows = map(int, np.flatnonzero(own & np.isfinite(found.cost)))
    given: set[int] = set()
    back = 0
    for row in sorted(rows, key=lambda r: (found.cost[r], work.ids[r])):
        if back < over:
            given.add(row)
            back += int(work.gpus[row])
    for row in sorted(given, key=lambda r: (-found.cost[r], work.ids[r])):
        if back - int(work.gpus[row]) >= over:
            given.discard(row)
            back -= int(work.gpus[row])
    return given if back >= over else set()
