"""A month on 1,024 GPUs that 15 teams share, made after what Ai2 tells of its clusters.

Closed loop: every user has one job at a time and submits the next one when it has ended, so that what
runs and waits is always about 2.5 times what the fleet has. Teams with a budget are sometimes away: who
of them has nothing left to do submits nothing until the team is back. Users and the sequence of their
jobs are the same under every policy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from math import log
from typing import Final

import numpy as np
from numpy.random import Generator, default_rng

from scheduler_bridge.policy.values import DEBUG_SECONDS
from scheduler_bridge.simulator.draws import checkpoint_interval, time_limit
from scheduler_bridge.simulator.jobs import (
    DAY,
    HOUR,
    LONGEST_PROTECTION,
    LOW,
    MINUTE,
    NORMAL,
    JobSpec,
    Scenario,
    SimFleet,
    SimJob,
)

NODES: Final = 128
GPUS_PER_NODE: Final = 8
DAYS: Final = 30.0
DEMAND: Final = 2.5

SHARES: Final[Mapping[str, float]] = {
    f"team-{number:02d}": percent / 100
    for number, percent in enumerate((20, 14, 12, 10, 8, 7, 6, 5, 4, 4, 3, 3, 2, 1, 1), start=1)
}
_SIZES: Final = (
    (1, 0.08),
    (2, 0.08),
    (4, 0.12),
    (8, 0.30),
    (16, 0.14),
    (32, 0.12),
    (64, 0.10),
    (128, 0.06),
)
"""(GPUs, part of the demanded GPUs)."""
_UNALLOCATED: Final = 0.25
_PROTECTIONS: Final = (1 * HOUR, 2 * HOUR, 4 * HOUR, LONGEST_PROTECTION)
_LONGEST: Final = 4 * DAY
_DEBUG_USERS: Final = 120
_OPENING, _CLOSING = 8 * HOUR, 20 * HOUR
_NIGHT_WORK: Final = 0.15


@dataclass(frozen=True, slots=True)
class User:
    """One who has one job at a time. `protection` 0 is unallocated work."""

    number: int
    team: str
    gpus: int
    nodes: int
    protection: float
    is_debugging: bool

    def jobs(self, seed: int) -> Iterator[tuple[float, SimJob]]:
        """(pause before it in seconds, job), for ever; the same for the same seed."""
        rng = default_rng((seed, self.number))
        for turn in count():
            yield self._pause(rng), self._job(rng, f"{self.team}-{self.number:04d}-{turn:05d}")

    def _pause(self, rng: Generator) -> float:
        return float(rng.exponential(20 * MINUTE if self.is_debugging else 5 * MINUTE))

    def _job(self, rng: Generator, name: str) -> SimJob:
        if self.is_debugging:
            duration = float(np.exp(rng.uniform(log(MINUTE), log(DEBUG_SECONDS))))
        else:
            median, sigma = (8 * HOUR, 1.0) if self.nodes > 1 else (3 * HOUR, 1.2)
            drawn = float(rng.lognormal(log(median), sigma))
            duration = min(_LONGEST, max(DEBUG_SECONDS + MINUTE, drawn))
        spec = JobSpec(
            name,
            self.team,
            self.gpus,
            self.nodes,
            self.protection,
            time_limit(rng, duration),
            NORMAL if self.protection else LOW,
        )
        return SimJob(spec, duration, checkpoint_interval(rng))


class ClosedLoop:
    """See the module."""

    def __init__(self, users: Iterable[User], away: Mapping[str, tuple[float, float]], seed: int):
        self._away, self._seed = away, seed
        self._users = tuple(users)
        self._jobs: dict[str, tuple[User, Iterator[tuple[float, SimJob]]]] = {}

    def first(self) -> Iterable[tuple[float, SimJob]]:
        """Everybody's first job, within the first six hours."""
        rng = default_rng((self._seed, 2**20))
        for user in self._users:
            jobs = user.jobs(self._seed)
            _, job = next(jobs)
            self._jobs[job.spec.id] = user, jobs
            at = float(rng.uniform(0, 6 * HOUR))
            yield self._when(user, at), job

    def after(self, job: SimJob, now: float) -> tuple[float, SimJob] | None:
        """The same user's next one, once the team is there and somebody is at work."""
        user, jobs = self._jobs.pop(job.spec.id)
        pause, following = next(jobs)
        self._jobs[following.spec.id] = user, jobs
        return self._when(user, now + pause), following

    def _when(self, user: User, at: float) -> float:
        if user.is_debugging:
            at = _in_working_hours(at, self._seed + user.number)
        leaves, returns = self._away.get(user.team, (0.0, 0.0))
        return returns + (at - leaves) % HOUR if leaves <= at < returns else at


def _in_working_hours(at: float, salt: int) -> float:
    """The same time, or most of the nights and weekends the next working morning. The first day of
    the month is a Monday."""
    day, second = divmod(at, DAY)
    if day % 7 < 5 and _OPENING <= second < _CLOSING:
        return at
    rng = default_rng((salt, int(at)))
    if rng.random() < _NIGHT_WORK:
        return at
    morning = day + (1 if second >= _OPENING else 0)
    while morning % 7 >= 5:
        morning += 1
    return morning * DAY + _OPENING + float(rng.uniform(0, 2 * HOUR))


def ai2(seed: int = 1, days: float = DAYS) -> Scenario:
    """The scenario. `days` shortens it for tests."""
    rng = default_rng((seed, 2**21))
    fleet = SimFleet(NODES, GPUS_PER_NODE, SHARES)
    users = [*_workers(rng, fleet), *_debuggers(rng)]
    away = _absences(rng, days)
    numbered = (User(n, *user) for n, user in enumerate(users))
    return Scenario("ai2", fleet, ClosedLoop(numbered, away, seed), until=days * DAY)


_Habits = tuple[str, int, int, float, bool]


def _workers(rng: Generator, fleet: SimFleet) -> Iterator[_Habits]:
    """Per team, users of all sizes up to its share, until they ask for 2.5 times its share."""
    sizes = np.array([size for size, _ in _SIZES])
    parts = np.array([part for _, part in _SIZES]) / sizes
    for team, share in fleet.shares.items():
        mine = share * fleet.capacity
        fitting = sizes <= max(1.0, mine)
        chances = parts[fitting] / parts[fitting].sum()
        asked = 0
        while asked < DEMAND * mine:
            size = int(rng.choice(sizes[fitting], p=chances))
            free = rng.random() < _UNALLOCATED
            protection = 0.0 if free else float(rng.choice(_PROTECTIONS))
            yield team, min(size, GPUS_PER_NODE), max(1, size // GPUS_PER_NODE), protection, False
            asked += size


def _debuggers(rng: Generator) -> Iterator[_Habits]:
    """More of them in larger teams, at least two in each."""
    for team, share in SHARES.items():
        for _ in range(max(2, round(share * _DEBUG_USERS))):
            yield team, int(rng.choice((1, 2), p=(0.7, 0.3))), 1, DEBUG_SECONDS, True


def _absences(rng: Generator, days: float) -> dict[str, tuple[float, float]]:
    """Every second team is away once, for three to seven days."""
    away = {}
    for number, team in enumerate(SHARES):
        if number % 2:
            length = rng.uniform(3, 7) * days / DAYS
            leaves = rng.uniform(2 * days / DAYS, days - length)
            away[team] = (float(leaves) * DAY, float(leaves + length) * DAY)
    return away
