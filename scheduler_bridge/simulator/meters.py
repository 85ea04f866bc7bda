"""Integrals over simulated time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

SAMPLE_SECONDS: Final = 3600.0


@dataclass(slots=True)
class TeamMeter:
    """One team's GPU-seconds. Owed is the integral of min(share, demand), where demand is all that
    runs or waits; delivered is what it held, of which `unallocated` had no protection."""

    share_gpus: float
    demand: int = 0
    held: int = 0
    held_unallocated: int = 0
    owed: float = 0.0
    delivered: float = 0.0
    unallocated: float = 0.0
    since: float = 0.0

    def advance(self, now: float) -> None:
        """Time passes as things are. Call it before anything of the team changes."""
        passed = now - self.since
        if passed > 0:
            self.owed += min(self.share_gpus, self.demand) * passed
            self.delivered += self.held * passed
            self.unallocated += self.held_unallocated * passed
            self.since = now


@dataclass(frozen=True, slots=True)
class Sample:
    """How things stood once in an hour. `delivered` and `owed` are GPU-seconds so far, by team."""

    at: float
    busy: int
    waiting: int
    delivered: Mapping[str, float]
    owed: Mapping[str, float]


@dataclass(slots=True)
class FleetMeter:
    """GPU-seconds of the whole fleet.

    There is a *backlog* while what waits asks for at least as many GPUs as are free; *offered* is
    what could be in use while anything waits at all.
    """

    capacity: int
    now: float = 0.0
    busy: int = 0
    waiting: int = 0
    broken: int = 0
    """Free GPUs on machines that are partly in use."""
    busy_seconds: float = 0.0
    backlog_seconds: float = 0.0
    backlog_busy: float = 0.0
    backlog_broken: float = 0.0
    offered: float = 0.0
    offered_busy: float = 0.0
    samples: list[Sample] = field(default_factory=list)
    _next_sample: float = 0.0

    def advance(self, now: float) -> None:
        """Time passes as things are. Call it before anything changes."""
        passed = now - self.now
        if passed <= 0:
            return
        self.now = now
        self.busy_seconds += self.busy * passed
        if not self.waiting:
            return
        could = self.busy + self.waiting
        if could >= self.capacity:
            could = self.capacity
            self.backlog_seconds += passed
            self.backlog_busy += self.busy * passed
            self.backlog_broken += self.broken * passed
        self.offered += could * passed
        self.offered_busy += self.busy * passed

    def sample(self, teams: Mapping[str, TeamMeter]) -> None:
        """Note how things stand, at most once an hour."""
        if self.now < self._next_sample:
            return
        self._next_sample = (self.now // SAMPLE_SECONDS + 1) * SAMPLE_SECONDS
        for meter in teams.values():
            meter.advance(self.now)
        self.samples.append(
            Sample(
                self.now,
                self.busy,
                self.waiting,
                {name: meter.delivered for name, meter in teams.items()},
                {name: meter.owed for name, meter in teams.items()},
            )
        )
