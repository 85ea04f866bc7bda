"""Multifactor fair share with EASY backfill, as Slurm's: no preemption.

The order is a weighted sum of the team's fair-share factor 2^(-usage/share), of age and of size,
worked out anew every few minutes from usage that decays with a half-life. The first that does not fit
gets a reservation at the moment when enough running work has reached its time limit; others pass it
only if they end before that by their own limits, or on machines that it does not need.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass
from typing import Final

import numpy as np

from scheduler_bridge.simulator.contract import Decisions, Setting
from scheduler_bridge.simulator.fitting import Board, Counts, best_fit
from scheduler_bridge.simulator.jobs import DAY, JobSpec, Takes

_TINY_SHARE: Final = 1e-4

_Entry = tuple[float, float, str, JobSpec]
"""Minus the priority, since when it waits, id."""


@dataclass(frozen=True, slots=True)
class Weights:
    """Slurm's factors and periods. `depth` is how many are looked at in one pass; ages count up to
    `oldest`; times in seconds."""

    fair_share: float = 10_000.0
    age: float = 1_000.0
    size: float = 100.0
    oldest: float = 7 * DAY
    half_life: float = 7 * DAY
    recalculated_every: float = 300.0
    depth: int = 500


@dataclass(frozen=True, slots=True)
class Reservation:
    """The blocked head's: from `at` on it needs its machines. `spare` is what it leaves free now."""

    at: float
    spare: Counts


class Usage:
    """GPU-seconds by team that decay."""

    def __init__(self, shares: dict[str, float], half_life: float) -> None:
        self.shares, self.half_life = shares, half_life
        self.used: dict[str, float] = dict.fromkeys(shares, 0.0)
        self.held: dict[str, int] = dict.fromkeys(shares, 0)
        self._now = 0.0

    def advance(self, now: float) -> None:
        """Decay what was, add what is held."""
        passed = now - self._now
        left = 0.5 ** (passed / self.half_life)
        for team, held in self.held.items():
            self.used[team] = self.used[team] * left + held * passed
        self._now = now

    def change(self, team: str, gpus: int, now: float) -> None:
        """The team holds `gpus` more."""
        self.advance(now)
        self.held[team] = self.held.get(team, 0) + gpus
        self.used.setdefault(team, 0.0)

    def factors(self) -> dict[str, float]:
        """1 for who has used nothing, 0.5 for who has used just its share, towards 0 for others."""
        total = sum(self.used.values()) or 1.0
        return {
            team: 2.0 ** -(used / total / max(self.shares.get(team, 0.0), _TINY_SHARE))
            for team, used in self.used.items()
        }


class FairShare:
    """The reference without preemption that most clusters run."""

    name = "fairshare"
    promises_protection = True

    def __init__(self, setting: Setting, weights: Weights | None = None) -> None:
        self.weights = weights or Weights()
        self.capacity = setting.fleet.capacity
        self.board = Board(setting.fleet)
        self.usage = Usage(dict(setting.fleet.shares), self.weights.half_life)
        self.specs: dict[str, tuple[JobSpec, float]] = {}
        self.order: list[_Entry] = []
        self.ends: list[tuple[float, str, Takes]] = []
        """When running work reaches its limit, soonest first."""
        self._factors = self.usage.factors()
        self._recalculate_at = 0.0

    def submit(self, job: JobSpec, now: float) -> None:
        """See `SimPolicy`."""
        self.specs[job.id] = (job, now)
        insort(self.order, self._entry(job, now, now))

    def finished(self, job_id: str, now: float) -> None:
        """See `SimPolicy`."""
        held = self.board.leave(job_id)
        spec, end = held.spec, (held.since + held.spec.limit, job_id, held.takes)
        del self.ends[bisect_left(self.ends, end)]
        self.usage.change(spec.team, -spec.size, now)

    def yielded(self, job_id: str, now: float) -> None:
        """See `SimPolicy`. It never asks for it."""
        self.finished(job_id, now)

    def next_wake(self, now: float) -> float | None:
        """Only events change anything that matters before the next one."""
        return None

    def decide(self, now: float) -> Decisions:
        """One pass of the scheduler and of its backfill."""
        if now >= self._recalculate_at:
            self._recalculate(now)
        starts: list[tuple[str, Takes]] = []
        reservation: Reservation | None = None
        failed: set[tuple[int, int, bool]] = set()
        for _, _, job_id, job in self.order[: self.weights.depth]:
            if not self.board.free_gpus:
                break
            ends_in_time = reservation is None or now + job.limit <= reservation.at
            shape = (job.gpus, job.nodes, ends_in_time)
            if shape in failed:
                continue
            takes = self._fit(job, reservation, ends_in_time)
            if takes is None:
                failed.add(shape)
                if reservation is None:
                    reservation = self._reserve(job, now)
                    failed = {(job.gpus, job.nodes, True), (job.gpus, job.nodes, False)}
                continue
            self._start(job, takes, reservation, ends_in_time, now)
            starts.append((job_id, takes))
        self._forget(starts)
        return Decisions(tuple(starts))

    def _fit(self, job: JobSpec, reservation: Reservation | None, in_time: bool) -> Takes | None:
        if job.size > self.board.free_gpus:
            return None
        free = self.board.free
        if reservation is not None and not in_time:
            free = np.minimum(free, reservation.spare)
        return best_fit(free, job.gpus, job.nodes)

    def _start(
        self, job: JobSpec, takes: Takes, held: Reservation | None, in_time: bool, now: float
    ) -> None:
        self.board.start(job, takes, now)
        insort(self.ends, (now + job.limit, job.id, takes))
        self.usage.change(job.team, job.size, now)
        if held is not None and not in_time:
            for node, gpus in takes:
                held.spare[node] -= gpus

    def _reserve(self, job: JobSpec, now: float) -> Reservation:
        """Let running work reach its limits, one after the other, until the job fits."""
        coming = self.board.free.copy()
        at, fitting = now, int((coming >= job.gpus).sum())
        for end, _, takes in self.ends:
            if fitting >= job.nodes:
                break
            at = max(now, end)
            for node, gpus in takes:
                before = coming[node]
                coming[node] += gpus
                fitting += int(before < job.gpus <= coming[node])
        for node, gpus in best_fit(coming, job.gpus, job.nodes) or ():
            coming[node] -= gpus
        return Reservation(at, np.minimum(coming, self.board.free))

    def _forget(self, starts: list[tuple[str, Takes]]) -> None:
        if starts:
            for job_id, _ in starts:
                del self.specs[job_id]
            self.order = [entry for entry in self.order if entry[2] in self.specs]

    def _recalculate(self, now: float) -> None:
        self._recalculate_at = now + self.weights.recalculated_every
        self.usage.advance(now)
        self._factors = self.usage.factors()
        self.order = sorted(self._entry(job, since, now) for job, since in self.specs.values())

    def _entry(self, job: JobSpec, since: float, now: float) -> _Entry:
        """Sorts by priority, then age, then id."""
        weights = self.weights
        priority = (
            weights.fair_share * self._factors.get(job.team, 1.0)
            + weights.age * min(1.0, (now - since) / weights.oldest)
            + weights.size * job.size / self.capacity
        )
        return (-priority, since, job.id, job)
