"""The smallest changes with which a waiting workload would start now: each was tried by the planner in
the same state, and every smaller one of its kind was tried or cannot do.

Kinds: more clusters, more GPU models, another team, a shorter protection (or one, for work that has
none), fewer GPUs on each machine, fewer machines; and the moment at which it can start as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import islice
from math import floor
from typing import Final

import numpy as np

from scheduler_bridge.policy.columns import Ints
from scheduler_bridge.policy.trials import Bench, Moment, Outcome, State
from scheduler_bridge.policy.values import DEBUG_GPUS, DEBUG_SECONDS, Pending

MOST: Final = 4
_TRIES: Final = 12
_MINUTE: Final = 60.0
_ADDED_PROTECTION: Final = 0.5


class ChangeKind(StrEnum):
    """What would be different."""

    CLUSTER = "cluster"
    MODEL = "gpu_model"
    TEAM = "team"
    PROTECTION = "min_runtime"
    GPUS = "gpus"
    NODES = "nodes"
    MOMENT = "moment"


@dataclass(frozen=True, slots=True)
class Alternative:
    """`item` is the workload as it would be instead of as `asked`; `share` how much of that is given
    up, from 0 to 1. Of a moment the workload is as it was."""

    kind: ChangeKind
    asked: Pending
    item: Pending
    outcome: Outcome
    share: float = 0.0
    moment: Moment | None = None


def alternatives(
    state: State, item: Pending, teams: Iterable[str] = (), *, most: int = MOST
) -> tuple[Alternative, ...]:
    """The smallest first, at most `most` of them and then the moment. `teams` are those of its owner.
    Nothing for a workload that would start, or that something else than the planner holds back."""
    if item.blocked is not None or item.id in state.columns.promised:
        return ()
    bench = Bench(state.without(item.id))
    if bench.outcome(item) is not Outcome.WAITS:
        return ()
    reach = None if item.demands else _Reach(bench, item)
    found = [
        change
        for kind, steps in _ways(bench, item, reach, sorted(set(teams) - {item.team}))
        if (change := _first(bench, item, kind, steps)) is not None
    ]
    found.sort(key=lambda each: each.share)
    moment = bench.moment(item)
    later = (
        [Alternative(ChangeKind.MOMENT, item, item, Outcome.WAITS, 1.0, moment)] if moment else []
    )
    return (*found[:most], *later)


_Ways = list[tuple[ChangeKind, Iterable[Pending]]]


def _ways(bench: Bench, item: Pending, reach: _Reach | None, teams: Sequence[str]) -> _Ways:
    """The changes of each kind, the smallest first. What a snapshot demands cannot be changed."""
    ways: _Ways = [(ChangeKind.TEAM, (replace(item, team=team) for team in teams))]
    if reach is None:
        return ways
    pools = bench.state.columns.pools
    if item.clusters:
        others = sorted(set(pools.cluster_of) - set(item.clusters))
        wider = (replace(item, clusters=(*item.clusters, name)) for name in others)
        ways.append((ChangeKind.CLUSTER, wider))
    if item.models:
        others = sorted(set(pools.models) - {"", *item.models})
        ways.append(
            (ChangeKind.MODEL, (replace(item, models=(*item.models, name)) for name in others))
        )
    ways.append((ChangeKind.PROTECTION, _protections(bench.state, item)))
    ways.append((ChangeKind.GPUS, reach.fewer_gpus()))
    ways.append((ChangeKind.NODES, reach.fewer_nodes()))
    return ways


def _first(
    bench: Bench, item: Pending, kind: ChangeKind, steps: Iterable[Pending]
) -> Alternative | None:
    for changed in islice(steps, _TRIES):
        outcome = bench.outcome(changed)
        if outcome is not Outcome.WAITS:
            return Alternative(kind, item, changed, outcome, _given_up(item, changed))
    return None


def _given_up(item: Pending, changed: Pending) -> float:
    gpus = 1.0 - _size(changed) / _size(item)
    if changed.min_runtime > item.min_runtime:
        return _ADDED_PROTECTION
    protection = 1.0 - changed.min_runtime / item.min_runtime if item.min_runtime else 0.0
    return max(gpus, protection)


def _size(item: Pending) -> int:
    """GPUs, or machines of work without any."""
    return max(item.gpus, 1) * item.nodes


def _protections(state: State, item: Pending) -> Iterator[Pending]:
    """In whole minutes. Only what ends before others' reservations and what makes it debug work can
    change anything. Work that has none is offered that of debug work: enough for a short run."""
    if not item.is_allocated:
        if item.max_runtime > DEBUG_SECONDS:
            yield replace(item, min_runtime=DEBUG_SECONDS)
        return
    now = state.now
    asked = min(item.min_runtime, item.max_runtime)
    before = {floor((each.at - now) / _MINUTE) * _MINUTE for each in state.reservations}
    before.add(DEBUG_SECONDS)
    for seconds in sorted((each for each in before if 0 < each < asked), reverse=True):
        yield replace(item, min_runtime=seconds)
    yield replace(item, min_runtime=0.0)


class _Reach:
    """What could be free for a workload at most: everything of those that might yield to the least
    of its kind. Changes that do not fit even there need not be tried."""

    def __init__(self, bench: Bench, item: Pending) -> None:
        self._item, self._desk = item, bench.desk()
        desk, columns = self._desk, bench.state.columns
        self._pools, work = columns.pools, columns.work
        least = replace(item, gpus=1, nodes=1)
        # debug work, which it may become, has rules of its own, and so has what is too large
        small = replace(item, gpus=min(item.gpus, DEBUG_GPUS + 1), nodes=1)
        yields = np.zeros(len(work.ids), np.bool_)
        for probe in {(each.gpus, each.nodes): each for each in (least, small, item)}.values():
            yields |= np.isfinite(desk.yielders.candidates(probe).cost)
        entries = np.flatnonzero(work.entry_gpus)
        entries = entries[yields[work.entry_row[entries]]]
        back = np.bincount(
            work.entry_pool[entries], work.entry_gpus[entries], minlength=len(self._pools)
        )
        reach = desk.open_to(item, desk.free + desk.leaving) + back.astype(np.int64)
        self._reach: Ints = np.where(desk.within(least) & self._pools.ready, reach, 0)
        own = work.team[: len(yields)] == work.teams.get(item.team, -1)
        mine = int(work.gpus[: len(yields)][own & yields].sum())
        self._given_back = mine

    def fewer_gpus(self) -> Iterator[Pending]:
        """Each machine less."""
        for gpus in range(self._item.gpus - 1, 0, -1):
            changed = replace(self._item, gpus=gpus)
            if self._machines(gpus) >= changed.nodes and self._is_allowed(changed):
                yield changed

    def fewer_nodes(self) -> Iterator[Pending]:
        """Fewer machines."""
        for nodes in range(min(self._item.nodes - 1, self._machines(self._item.gpus)), 0, -1):
            changed = replace(self._item, nodes=nodes)
            if self._is_allowed(changed):
                yield changed

    def _machines(self, gpus: int) -> int:
        """Of the cluster that has most with so many."""
        there = self._pools.cluster[self._reach >= gpus]
        return int(np.bincount(there).max()) if there.size else 0

    def _is_allowed(self, changed: Pending) -> bool:
        """Whether limits let it in, or would if the team's own gave back all that they can."""
        accounts = self._desk.accounts
        refusal = accounts.refusal(changed, accounts.going[changed.team])
        return refusal is None or (refusal.over is not None and refusal.over <= self._given_back)
