"""Fleet, queue and running work as the planner reads them: NumPy columns, kept up to date by small
changes, so that one arrival into a full system costs no rebuilding.

A *pool* is what is alike on one machine: its GPUs of one model and size. Rows of pools and of running
work are numbered; what is counted are GPUs.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import nan
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scheduler_bridge.model.phases import Kind
from scheduler_bridge.policy.values import GpuKind, NodeState, Pending, Running, is_debug

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Takes = tuple[tuple[int, int], ...]
"""(pool, GPUs) of every machine of a gang; a pool occurs once."""


class Group(NamedTuple):
    """Waiting work that is alike: if one of a group cannot be placed now, none of it can."""

    team: str
    is_allocated: bool
    gpus: int
    nodes: int
    priority: int
    returning: bool
    min_runtime: float
    max_runtime: float
    models: tuple[str, ...]
    clusters: tuple[str, ...]
    demands: tuple[tuple[str, str], ...]
    yielded_to: tuple[str, ...] = ()


def group_of(item: Pending) -> Group:
    """What makes it alike to others."""
    return Group(
        item.team,
        item.is_allocated,
        item.gpus,
        item.nodes,
        item.priority,
        item.returning,
        item.min_runtime,
        item.max_runtime,
        item.models,
        item.clusters,
        tuple(sorted(item.demands.items())),
        item.yielded_to,
    )


@dataclass(frozen=True, slots=True)
class Reservation:
    """`owner` starts at `at` (UNIX seconds) at the latest, on these GPUs."""

    owner: str
    at: float
    takes: Takes


Rank = tuple[bool, int, int, float, str]


def rank(item: Pending) -> Rank:
    """Order inside a team: who comes back, priority, who was placed before, age, id."""
    return (not item.returning, -item.priority, -item.attempts, item.since, item.id)


class Pools:
    """One row per pool, in the order of the machines given."""

    def __init__(self, nodes: Iterable[NodeState]) -> None:
        self.nodes = tuple(nodes)
        rows = [(node, *kind) for node in self.nodes for kind in _kinds(node)]
        self.node_of = [node.name for node, _, _ in rows]
        self.state_of = [node for node, _, _ in rows]
        self.models = [model for _, model, _ in rows]
        self.devices = [gpus for _, _, gpus in rows]
        clusters, racks = _Codes(), _Codes()
        self.cluster = np.array([clusters[node.cluster] for node, _, _ in rows], np.int64)
        self.rack = np.array([racks[node.cluster, node.rack] for node, _, _ in rows], np.int64)
        self.size = np.array([len(gpus) for _, _, gpus in rows], np.int64)
        self.ready = np.array([node.ready for node, _, _ in rows], np.bool_)
        self.cluster_of = [node.cluster for node, _, _ in rows]
        self.is_mixed = [len(_kinds(node)) > 1 for node, _, _ in rows]

    def __len__(self) -> int:
        return len(self.node_of)


def _kinds(node: NodeState) -> list[tuple[str, tuple[str, ...]]]:
    """The machine's GPUs by kind; one empty pool for a machine without any."""
    found: dict[GpuKind | None, list[str]] = {}
    for gpu in node.gpus:
        found.setdefault(node.kinds.get(gpu), []).append(gpu)
    pools = [(kind.model if kind else "", tuple(gpus)) for kind, gpus in found.items()]
    return pools or [("", ())]


class _Codes(dict[Any, int]):
    """Numbers names as they come."""

    def __missing__(self, name: Any) -> int:
        self[name] = len(self)
        return self[name]


class Work:
    """Running work in columns. A row whose `gpus` is 0 is empty, or work without GPUs."""

    _FLOATS = ("idle_since", "yields_from", "since", "saved_at", "restore", "ends_by")
    _INTS = ("gpus", "team", "priority", "preemptions")
    _BOOLS = ("allocated", "session", "leaving", "preemptible", "debug")

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.row_of: dict[str, int] = {}
        self.takes: dict[int, Takes] = {}
        self.running: dict[int, Running] = {}
        self.teams = _Codes()
        self._vacant: list[int] = []
        self._room = 0
        self._spare_entries: list[int] = []
        self._entries_of: dict[int, list[int]] = {}
        self._entries = 0
        self._grow(64)
        self.entry_row: Ints = np.zeros(64, np.int64)
        self.entry_pool: Ints = np.zeros(64, np.int64)
        self.entry_gpus: Ints = np.zeros(64, np.int64)

    idle_since: Floats
    yields_from: Floats
    since: Floats
    saved_at: Floats
    restore: Floats
    ends_by: Floats
    gpus: Ints
    team: Ints
    priority: Ints
    preemptions: Ints
    allocated: Bools
    session: Bools
    leaving: Bools
    preemptible: Bools
    debug: Bools

    def put(self, item: Running, takes: Takes) -> int:
        """Add one, or replace what is known of it. Gives its row."""
        if item.id in self.row_of:
            self.drop(item.id)
        row = self._vacant.pop() if self._vacant else len(self.ids)
        if row == len(self.ids):
            self.ids.append(item.id)
            if row >= self._room:
                self._grow(2 * self._room)
        self.ids[row], self.row_of[item.id] = item.id, row
        self.takes[row], self.running[row] = takes, item
        self._write(row, item, sum(count for _, count in takes))
        self._entries_of[row] = [self._entry(row, pool, count) for pool, count in takes]
        return row

    def drop(self, name: str) -> Takes:
        """Forget one. Gives what it held."""
        row = self.row_of.pop(name)
        self.gpus[row], self.preemptible[row], self.leaving[row] = 0, False, False
        self.debug[row] = False
        for entry in self._entries_of.pop(row):
            self.entry_gpus[entry] = 0
            self._spare_entries.append(entry)
        self._vacant.append(row)
        del self.running[row]
        return self.takes.pop(row)

    def debug_gpus(self) -> int:
        """GPUs that debug work holds."""
        return int(self.gpus[self.debug].sum())

    def _write(self, row: int, item: Running, gpus: int) -> None:
        self.idle_since[row] = nan if item.idle_since is None else item.idle_since
        self.yields_from[row], self.since[row] = item.yields_from, item.since
        self.saved_at[row] = nan if item.saved_at is None else item.saved_at
        self.restore[row], self.ends_by[row] = item.restore_seconds, item.ends_by
        self.gpus[row], self.team[row] = gpus, self.teams[item.team]
        self.priority[row], self.preemptions[row] = item.priority, item.preemptions
        self.allocated[row], self.session[row] = item.is_allocated, item.kind is Kind.SESSION
        self.leaving[row], self.preemptible[row] = item.leaving, item.preemptible
        self.debug[row] = item.is_allocated and is_debug(item.yields_from - item.since, gpus)

    def _entry(self, row: int, pool: int, count: int) -> int:
        if self._spare_entries:
            entry = self._spare_entries.pop()
        else:
            entry, self._entries = self._entries, self._entries + 1
            if entry >= len(self.entry_row):
                for name in ("entry_row", "entry_pool", "entry_gpus"):
                    old = getattr(self, name)
                    setattr(self, name, np.concatenate([old, np.zeros_like(old)]))
        self.entry_row[entry], self.entry_pool[entry] = row, pool
        self.entry_gpus[entry] = count
        return entry

    def _grow(self, room: int) -> None:
        kinds = ((self._FLOATS, np.float64), (self._INTS, np.int64), (self._BOOLS, np.bool_))
        for names, kind in kinds:
            for name in names:
                new = np.zeros(room, kind)
                if self._room:
                    new[: self._room] = getattr(self, name)
                setattr(self, name, new)
        self._room = room


@dataclass(slots=True)
class Queue:
    """Waiting work, by group, each in its team's order."""

    items: dict[str, Pending] = field(default_factory=dict)
    groups: dict[Group, list[tuple[Rank, str]]] = field(default_factory=dict)
    teams: dict[str, set[Group]] = field(default_factory=dict)
    blocked: dict[str, Pending] = field(default_factory=dict)

    def put(self, item: Pending) -> None:
        """Add one, or replace what is known of it."""
        self.drop(item.id)
        self.items[item.id] = item
        if item.blocked is not None:
            self.blocked[item.id] = item
            return
        group = group_of(item)
        insort(self.groups.setdefault(group, []), (rank(item), item.id))
        self.teams.setdefault(item.team, set()).add(group)

    def position(self, item: Pending) -> int:
        """Its place in its team, 1 for the first."""
        mine = rank(item)
        ahead = (bisect_left(self.groups[g], (mine, item.id)) for g in self.teams[item.team])
        return 1 + sum(ahead)

    def drop(self, name: str) -> None:
        """Forget one, if it is there."""
        item = self.items.pop(name, None)
        if item is None or self.blocked.pop(name, None) is not None:
            return
        group = group_of(item)
        members = self.groups[group]
        del members[bisect_left(members, (rank(item), name))]
        if not members:
            del self.groups[group]
            self.teams[item.team].discard(group)


def _yields_sooner(before: Running, after: Running) -> bool:
    """Whether others may now get what it holds, and could not before."""
    return (
        after.leaving != before.leaving
        or after.yields_from < before.yields_from
        or after.preemptions < before.preemptions
        or (after.idle_since is not None and before.idle_since is None)
        or (after.preemptible and not before.preemptible and after.yields_from <= after.since)
    )


class Columns:
    """Everything that one pass reads. Not thread-safe; the planner changes nothing in it."""

    def __init__(self, nodes: Iterable[NodeState]) -> None:
        self.pools = Pools(nodes)
        self.free: Ints = self.pools.size.copy()
        self.work = Work()
        self.queue = Queue()
        self.promised: dict[str, Takes] = {}
        self.stuck: set[Group] = set()
        """Groups that could not be placed, and nothing has become better since."""
        self.reservations: tuple[Reservation, ...] = ()
        """Of those among them that have one."""

    def submit(self, item: Pending) -> None:
        """Somebody waits, or waits differently."""
        self.queue.put(item)

    def withdraw(self, name: str) -> None:
        """Somebody waits no longer."""
        self.queue.drop(name)
        if self.promised.pop(name, None) is not None:
            self.stuck.clear()

    def start(self, item: Running, takes: Takes) -> None:
        """Somebody holds GPUs from now on; whoever waited does not any more."""
        self.queue.drop(item.id)
        self.promised.pop(item.id, None)
        self.work.put(item, takes)
        for pool, count in takes:
            self.free[pool] -= count

    def change(self, item: Running) -> None:
        """Something else is known of running work: idle, saved, asked to leave."""
        row = self.work.row_of[item.id]
        before = self.work.running[row]
        self.work.put(item, self.work.takes[row])
        if _yields_sooner(before, item):
            self.stuck.clear()

    def end(self, name: str) -> None:
        """It holds nothing any more."""
        for pool, count in self.work.drop(name):
            self.free[pool] += count
        self.stuck.clear()

    def promise(self, promised: Mapping[str, Takes]) -> None:
        """What was made free for whom, instead of what was promised before."""
        self.promised = dict(promised)
