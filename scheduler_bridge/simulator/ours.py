"""The production planner in the simulated world: the same code that decides on real machines."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from math import inf
from typing import Final

import numpy as np

from scheduler_bridge.model.phases import Kind
from scheduler_bridge.policy.columns import Columns, Group, Ints, group_of
from scheduler_bridge.policy.habits import Habits, LossBucket
from scheduler_bridge.policy.passing import Decided, Desk
from scheduler_bridge.policy.values import NodeState, Pending, Rules, Running, TeamRules
from scheduler_bridge.simulator.contract import NOTHING, Decisions, Setting
from scheduler_bridge.simulator.jobs import (
    DAY,
    JobSpec,
    SimFleet,
    Takes,
)

RACK_NODES: Final = 16


@dataclass(frozen=True, slots=True)
class Looks:
    """How the planner is used. Balances, checkpoints and turns that ended are looked at every
    `refresh` seconds, with everybody who waits; in between, only who is new and who fits into what was
    freed. A balance halves in `half_life` seconds, as the usage window's default does."""

    refresh: float = 300.0
    half_life: float = 7 * DAY
    rules: Rules = field(default_factory=Rules)
    habits: Habits = field(default_factory=Habits)


@dataclass(slots=True)
class _Team:
    """What a team is owed, what it asks for and what it holds."""

    share_gpus: float
    demand: int = 0
    held: int = 0
    balance: float = 0.0
    since: float = 0.0

    def advance(self, now: float, half_life: float) -> float:
        """The balance now."""
        passed = now - self.since
        if passed > 0:
            due = min(self.share_gpus, self.demand) - self.held
            self.balance = self.balance * 0.5 ** (passed / half_life) + due * passed
            self.since = now
        return self.balance


class Ours:
    """Budgets, time slices after protection, reservations, victims by what is really lost."""

    name = "hubernate"
    promises_protection = True

    def __init__(self, setting: Setting, looks: Looks | None = None) -> None:
        self.looks = looks or Looks()
        self.reports, self.costs = setting.reports, setting.costs
        self.columns = Columns(_nodes(setting.fleet))
        capacity = setting.fleet.capacity
        self.shares = dict(setting.fleet.shares)
        self.teams = {name: _Team(share * capacity) for name, share in self.shares.items()}
        self.specs: dict[str, JobSpec] = {}
        self.rules = self.looks.rules
        self.losses = LossBucket(self.looks.habits)
        self.capacity = capacity
        self._preempted: dict[str, deque[tuple[float, str]]] = {}
        self._new: set[Group] = set()
        self._freed = False
        self._refreshed = float("-inf")

    # -- what happens ------------------------------------------------------------------------

    def submit(self, job: JobSpec, now: float) -> None:
        """See `SimPolicy`."""
        if job.attempts == 0:
            self._team(job.team, now).demand += job.size
        self.specs[job.id] = job
        item = Pending(
            job.id,
            job.team,
            job.gpus,
            job.nodes,
            job.priority,
            now,
            min_runtime=job.min_runtime,
            attempts=job.attempts,
            yielded_to=tuple(sorted({to for _, to in self._preempted.get(job.id, ())})),
        )
        self.columns.submit(item)
        self._new.add(group_of(item))

    def finished(self, job_id: str, now: float) -> None:
        """See `SimPolicy`."""
        job = self.specs.pop(job_id)
        self._leave(job, now)
        self._team(job.team, now).demand -= job.size
        self._preempted.pop(job_id, None)

    def yielded(self, job_id: str, now: float) -> None:
        """See `SimPolicy`."""
        self._leave(self.specs[job_id], now)

    def _leave(self, job: JobSpec, now: float) -> None:
        self._team(job.team, now).held -= job.size
        self.columns.end(job.id)
        self._freed = True

    def _team(self, name: str, now: float) -> _Team:
        team = self.teams.setdefault(name, _Team(0.0, since=now))
        team.advance(now, self.looks.half_life)
        return team

    # -- decisions ---------------------------------------------------------------------------

    def decide(self, now: float) -> Decisions:
        """See `Looks`."""
        if now >= self._refreshed + self.looks.refresh:
            self._refresh(now)
            decided = self._desk(now).run()
            self._new.clear()
            return self._carry_out(decided, now)
        new = self._new - self.columns.stuck
        groups = self._hopeful(now, new)
        if not groups:
            return NOTHING
        return self._carry_out(self._desk(now).run(groups, asking=new), now)

    def _desk(self, now: float) -> Desk:
        """One pass, with what may be lost now."""
        held = sum(team.held for team in self.teams.values())
        allowance = self.losses.allowance(now, self.capacity, held)
        return Desk(self.columns, replace(self.rules, loss_budget=allowance), now)

    def _hopeful(self, now: float, new: set[Group]) -> set[Group]:
        """Who is new, and if something was freed also who may fit into that or was promised it."""
        groups = set(new)
        if self._freed:
            queue = self.columns.queue
            groups |= self._fitting(now)
            owners = (queue.items.get(owner) for owner in self.columns.promised)
            groups |= {group_of(owner) for owner in owners if owner is not None}
        self._new, self._freed = set(), False
        return groups

    def _fitting(self, now: float) -> set[Group]:
        """Who could be placed on what is free and kept for nobody else."""
        columns = self.columns
        free = columns.free.copy()
        for takes in columns.promised.values():
            _take(free, takes)
        kept = free.copy()
        for reservation in columns.reservations:
            _take(kept, reservation.takes)
        soonest = min((it.at for it in columns.reservations), default=inf) - now
        rooms = [_nodes_with(each, int(columns.pools.size.max())) for each in (free, kept)]
        left = int(np.maximum(free, 0).sum())
        found = set()
        for group, items in columns.queue.groups.items():
            debug = columns.queue.items[items[0][1]].is_debug
            limit = left if debug else left - self.rules.headroom
            room = rooms[group.min_runtime > soonest]
            size = group.gpus * group.nodes
            if size <= limit and group.gpus < len(room) and room[group.gpus] >= group.nodes:
                found.add(group)
        return found

    def next_wake(self, now: float) -> float | None:
        """While somebody waits: the next look at balances, which also sees protections that ended."""
        return self._refreshed + self.looks.refresh if self.columns.queue.items else None

    def _refresh(self, now: float) -> None:
        """What the engine learns from heartbeats and from its ledger."""
        self._refreshed = now
        self.columns.stuck.clear()
        balances = {n: team.advance(now, self.looks.half_life) for n, team in self.teams.items()}
        teams = {
            name: TeamRules(share=self.shares.get(name, 0.0), balance=balance)
            for name, balance in balances.items()
        }
        headroom = self.looks.habits.free_for_debug(self.capacity, self.columns.work.debug_gpus())
        self.rules = replace(self.looks.rules, teams=teams, headroom=headroom)
        for running in list(self.columns.work.running.values()):
            saved = self.reports.saved_at(running.id, now)
            times = self._preempted.get(running.id)
            while times and times[0][0] <= now - DAY:
                times.popleft()
            count = len(times) if times else 0
            if saved != running.saved_at or count != running.preemptions:
                self.columns.change(replace(running, saved_at=saved, preemptions=count))

    def _carry_out(self, decided: Decided, now: float) -> Decisions:
        starts: list[tuple[str, Takes]] = []
        for job_id, takes in decided.placements:
            self._start(self.specs[job_id], takes, now)
            starts.append((job_id, takes))
        self.columns.promise(decided.promised)
        self.columns.reservations = decided.reservations
        self.losses.spend(decided.lost)
        work = self.columns.work
        for asked in decided.preemptions:
            running = work.running[work.row_of[asked.victim]]
            self._preempted.setdefault(asked.victim, deque()).append((now, asked.preemptor))
            self.columns.change(replace(running, leaving=True))
        self.columns.stuck.update(decided.stuck)
        return Decisions(tuple(starts), tuple((p.victim, p.preemptor) for p in decided.preemptions))

    def _start(self, job: JobSpec, takes: Takes, now: float) -> None:
        self._team(job.team, now).held += job.size
        running = Running(
            job.id,
            Kind.JOB,
            job.team,
            (),
            job.priority,
            now,
            yields_from=now + job.min_runtime,
            is_allocated=job.is_allocated,
            restore_seconds=self.costs.restore + self.costs.start,
            ends_by=now + job.limit,
            preemptions=len(self._preempted.get(job.id, ())),
        )
        self.columns.start(running, takes)


def _take(free: Ints, takes: Takes) -> None:
    for pool, gpus in takes:
        free[pool] -= gpus


def _nodes_with(free: Ints, most: int) -> Ints:
    """How many machines have at least so many free GPUs, by that number."""
    counts = np.bincount(np.maximum(free, 0), minlength=most + 1)
    return np.cumsum(counts[::-1])[::-1]


def _nodes(fleet: SimFleet) -> list[NodeState]:
    """One pool per machine, so that pools and the world's nodes have the same numbers."""
    return [
        NodeState(
            f"node-{node:04d}",
            tuple(f"{node}:{gpu}" for gpu in range(fleet.gpus_per_node)),
            rack=f"rack-{node // RACK_NODES}",
        )
        for node in range(fleet.nodes)
    ]
