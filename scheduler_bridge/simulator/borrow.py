"""Quotas with borrowing, and reclaim with the newest victim first, as Kueue's; it knows no protection.

Every team has a nominal quota, its share of all GPUs, and may borrow whatever others leave unused. In
one cycle the best of each team's queue is looked at: who stays within the quota first, then by
priority, then by age; what does not fit is put aside until something is freed. A team within its quota
takes back what others have borrowed: of work of borrowers, lowest priority first, then newest, as many
as it needs, and then as many back as were not needed. Whoever that was done for stays at the head of
its team's queue.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Iterable
from math import floor

from scheduler_bridge.simulator.contract import Decisions, Setting
from scheduler_bridge.simulator.fitting import Board, Counts, Held, best_fit
from scheduler_bridge.simulator.jobs import JobSpec, Takes

_Group = tuple[int, int, int]
"""Priority (negative), GPUs, nodes: if one of a group does not fit, none of it does."""
_Head = tuple[bool, int, tuple[float, str], JobSpec, _Group]
"""Whether it borrows, priority (negative), (age, id)."""


class Borrow:
    """The preempting reference."""

    name = "borrow"
    promises_protection = False

    def __init__(self, setting: Setting) -> None:
        fleet = setting.fleet
        self.capacity = fleet.capacity
        self.nominal = {name: floor(share * fleet.capacity) for name, share in fleet.shares.items()}
        self.board = Board(fleet)
        self.coming: Counts = self.board.free.copy()
        """What is free or being freed, less what this pass has spoken for."""
        self.used: Counter[str] = Counter()
        self.staying: Counter[str] = Counter()
        """The same without those who were asked to leave."""
        self.leaving: dict[str, Held] = {}
        self.queues: dict[str, dict[_Group, list[tuple[float, str]]]] = {}
        self.specs: dict[str, tuple[JobSpec, float]] = {}
        self.aside: set[tuple[str, _Group]] = set()
        """What did not fit since something was freed for the last time."""
        self.sticky: dict[str, _Group] = {}
        """For whom others were asked to leave: they stay at the head of their team's queue."""
        self._freed = False
        self._since: dict[str, float] = {}

    def submit(self, job: JobSpec, now: float) -> None:
        """See `SimPolicy`. What was evicted keeps its age."""
        since = self._since.setdefault(job.id, now)
        self.specs[job.id] = (job, since)
        group = (-job.priority, job.gpus, job.nodes)
        queue = self.queues.setdefault(job.team, {})
        insort(queue.setdefault(group, []), (since, job.id))

    def finished(self, job_id: str, now: float) -> None:
        """See `SimPolicy`."""
        self._leave(job_id)
        del self._since[job_id]

    def yielded(self, job_id: str, now: float) -> None:
        """See `SimPolicy`."""
        self._leave(job_id)

    def next_wake(self, now: float) -> float | None:
        """Only events change anything."""
        return None

    def decide(self, now: float) -> Decisions:
        """Cycles until nothing more fits."""
        if self._freed:
            self._begin_anew()
        starts: list[tuple[str, Takes]] = []
        preempt: list[tuple[str, str]] = []
        while heads := self._heads():
            for _, _, _, job, group in heads:
                takes = self._admit(job, now)
                if takes is not None:
                    starts.append((job.id, takes))
                    self._dequeue(job, group)
                    continue
                self.aside.add((job.team, group))
                victims = self._make_room(job, now)
                if victims:
                    self.sticky[job.team] = group
                preempt += [(victim, job.id) for victim in victims]
        return Decisions(tuple(starts), tuple(preempt))

    def _begin_anew(self) -> None:
        """Something was freed: everybody is looked at again."""
        self._freed = False
        self.aside.clear()
        self.coming = self.board.free.copy()
        for held in self.leaving.values():
            _give_back(self.coming, held.takes)

    def _heads(self) -> list[_Head]:
        """The best of each team that is not put aside, in the order of the cycle."""
        heads = []
        for team, groups in self.queues.items():
            best: tuple[int, tuple[float, str], _Group] | None = None
            for group, items in groups.items():
                if (team, group) in self.aside:
                    continue
                if self._is_hopeless(team, group):
                    self.aside.add((team, group))
                elif self.sticky.get(team) == group:
                    best = (group[0], items[0], group)
                    break
                elif best is None or (group[0], items[0]) < best[:2]:
                    best = (group[0], items[0], group)
            if best is not None:
                priority, first, group = best
                job = self.specs[first[1]][0]
                heads.append(
                    (not self._within(self.used, team, job.size), priority, first, job, group)
                )
        return sorted(heads, key=lambda head: head[:3])

    def _is_hopeless(self, team: str, group: _Group) -> bool:
        """Too large for what is free and for what the quota still allows."""
        _, gpus, nodes = group
        size = gpus * nodes
        return size > self.board.free_gpus and not self._within(self.staying, team, size)

    def _within(self, held: Counter[str], team: str, size: int) -> bool:
        """Whether `size` more GPUs keep the team within its quota."""
        return held[team] + size <= self.nominal.get(team, 0)

    def _admit(self, job: JobSpec, now: float) -> Takes | None:
        if job.size > self.board.free_gpus:
            return None
        takes = best_fit(self._unclaimed(), job.gpus, job.nodes)
        if takes is not None:
            self.board.start(job, takes, now)
            self.used[job.team] += job.size
            self.staying[job.team] += job.size
            for node, gpus in takes:
                self.coming[node] -= gpus
        return takes

    def _unclaimed(self) -> Counts:
        free = self.board.free.copy()
        free[self.coming < free] = self.coming[self.coming < free]
        return free

    def _dequeue(self, job: JobSpec, group: _Group) -> None:
        if self.sticky.get(job.team) == group:
            del self.sticky[job.team]
        items = self.queues[job.team][group]
        items.remove((self._since[job.id], job.id))
        if not items:
            del self.queues[job.team][group]
        del self.specs[job.id]

    def _leave(self, job_id: str) -> None:
        self._freed = True
        held = self.board.leave(job_id)
        if self.leaving.pop(job_id, None) is None:
            self.staying[held.spec.team] -= held.spec.size
        self.used[held.spec.team] -= held.spec.size

    # -- preemption --------------------------------------------------------------------------

    def _make_room(self, job: JobSpec, now: float) -> list[str]:
        """Whom to ask to yield. What is being freed already is taken first, and then is spoken for."""
        if not self._within(self.staying, job.team, job.size):
            return []
        takes = best_fit(self.coming, job.gpus, job.nodes)
        victims: list[Held] = []
        if takes is None:
            found = self._search(job, now)
            if found is None:
                return []
            victims, takes = found
        for held in victims:
            held.leaving = True
            self.leaving[held.spec.id] = held
            self.staying[held.spec.team] -= held.spec.size
            _give_back(self.coming, held.takes)
        for node, gpus in takes:
            self.coming[node] -= gpus
        return [held.spec.id for held in victims]

    def _search(self, job: JobSpec, now: float) -> tuple[list[Held], Takes] | None:
        """Remove in order until it fits; then give back in reverse what is not needed."""
        coming, staying = self.coming.copy(), Counter(self.staying)
        victims: list[Held] = []
        for held in self._candidates(now):
            team = held.spec.team
            if staying[team] > self.nominal.get(team, 0):
                victims.append(held)
                staying[team] -= held.spec.size
                _give_back(coming, held.takes)
                if takes := best_fit(coming, job.gpus, job.nodes):
                    return _minimal(job, victims, coming, takes)
        return None

    def _candidates(self, now: float) -> list[Held]:
        """Work of teams that borrow: lowest priority, then newest. What this cycle has admitted is none."""
        borrowers = {
            team for team, held in self.staying.items() if held > self.nominal.get(team, 0)
        }
        found = [
            held
            for held in self.board.held.values()
            if held.spec.team in borrowers and not held.leaving and held.since < now
        ]
        return sorted(found, key=lambda held: (held.spec.priority, -held.since, held.spec.id))


def _minimal(
    job: JobSpec, victims: list[Held], coming: Counts, takes: Takes
) -> tuple[list[Held], Takes]:
    needed = list(victims)
    for held in reversed(victims[:-1]):
        fewer = coming.copy()
        _take(fewer, held.takes)
        if found := best_fit(fewer, job.gpus, job.nodes):
            needed.remove(held)
            coming, takes = fewer, found
    return needed, takes


def _give_back(free: Counts, takes: Iterable[tuple[int, int]]) -> None:
    for node, gpus in takes:
        free[node] += gpus


def _take(free: Counts, takes: Iterable[tuple[int, int]]) -> None:
    for node, gpus in takes:
        free[node] -= gpus
