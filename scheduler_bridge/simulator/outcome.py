"""What a simulation leaves behind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from scheduler_bridge.simulator.jobs import JobSpec, SimFleet
from scheduler_bridge.simulator.meters import FleetMeter, TeamMeter


@dataclass(slots=True)
class Record:
    """The life of one job. `queued` is since when it waits, None while it does not; `returns` are
    the waits after each time that it yielded."""

    spec: JobSpec
    is_debug: bool
    submitted: float
    queued: float | None
    started: float | None = None
    ended: float | None = None
    saved: float = 0.0
    returns: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Preempted:
    """One preemption that was asked for."""

    at: float
    victim: str
    preemptor: str


@dataclass(slots=True)
class Losses:
    """GPU-seconds that were held without useful work: work done again, by preemption; bringing work
    back; leaving with the memory saved; starting."""

    redone: float = 0.0
    restoring: float = 0.0
    suspending: float = 0.0
    starting: float = 0.0


@dataclass(slots=True)
class Outcome:
    """Everything that the report is made of. `seconds` is the processor time that the
    simulation took, which is all on one core."""

    scenario: str
    policy: str
    fleet: SimFleet
    ended_at: float = 0.0
    records: Mapping[str, Record] = field(default_factory=dict)
    meter: FleetMeter = field(default_factory=lambda: FleetMeter(0))
    teams: Mapping[str, TeamMeter] = field(default_factory=dict)
    losses: Losses = field(default_factory=Losses)
    preempted: list[Preempted] = field(default_factory=list)
    served: list[float] = field(default_factory=list)
    """Seconds from the first preemption for somebody to the start."""
    violations: Counter[str] = field(default_factory=Counter)
    unprotected: int = 0
    """Preemptions within the victim's protection, also by policies that promise none."""
    ping_pong: int = 0
    events: int = 0
    decisions: int = 0
    seconds: float = 0.0
