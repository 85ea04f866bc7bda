"""Figures of an outcome. Waits are seconds from submission to the first start; who never started counts
with the wait so far."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from scheduler_bridge.simulator.jobs import DAY, MINUTE
from scheduler_bridge.simulator.outcome import Outcome, Record

LEAST_OWED: float = 8 * 3600.0
"""GPU-seconds: a team that was owed less than one GPU for a working day is not ranked."""


@dataclass(frozen=True, slots=True)
class Waits:
    """Quantiles in seconds."""

    count: int
    median: float
    p90: float
    p95: float
    p99: float
    max: float

    @classmethod
    def of(cls, seconds: Iterable[float]) -> Waits:
        """Of these; all 0 if there are none."""
        found = np.array(list(seconds))
        if not found.size:
            return cls(0, 0.0, 0.0, 0.0, 0.0, 0.0)
        quantiles = np.percentile(found, (50, 90, 95, 99, 100))
        return cls(int(found.size), *(round(float(value), 1) for value in quantiles))


@dataclass(frozen=True, slots=True)
class TeamFigures:
    """GPU-hours. `delivered` counts allocated and unallocated use; `ratio` is delivered by owed."""

    owed: float
    delivered: float
    unallocated: float
    ratio: float


@dataclass(frozen=True, slots=True)
class Figures:
    """One policy in one scenario; parts are between 0 and 1.

    `occupancy` is GPUs in use by all GPUs while what waits could fill all that is free, `occupancy_offered`
    by what could be in use while anything waits. `owed_delivered` is the part of all owed GPU time
    that its owners got, `worst_team` the least ratio of one of them. `lost_work` is work done again
    after preemptions and the time to bring it back, by all GPU time in use; `overhead` adds starts and
    suspends. `preempted_most` is the most preemptions of one job in any 24 hours, `fragmentation` the
    free GPUs on machines partly in use while there is a backlog, by all GPUs.
    """

    scenario: str
    policy: str
    debug_wait: Waits
    wait: Waits
    allocated_wait: Waits
    gang_wait: Waits
    return_wait: Waits
    room_wait: Waits
    occupancy: float
    occupancy_offered: float
    owed_delivered: float
    worst_team: float
    worst_team_name: str
    lost_work: float
    overhead: float
    unallocated: float
    fragmentation: float
    preemptions: int
    preempted_most: int
    protection_violations: int
    ping_pong: int
    violations: dict[str, int]
    unstarted: int
    days: float
    jobs: int
    events: int
    decisions: int
    seconds: float
    events_per_second: float
    teams: dict[str, TeamFigures]

    def as_json(self) -> dict[str, Any]:
        """All of it."""
        return asdict(self)


def figures(outcome: Outcome) -> Figures:
    """What the outcome comes to."""
    meter, losses = outcome.meter, outcome.losses
    records = list(outcome.records.values())
    teams = _teams(outcome)
    ranked = {name: team for name, team in teams.items() if team.owed * 3600 >= LEAST_OWED}
    worst = min(ranked, key=lambda name: ranked[name].ratio, default="")
    lost = losses.redone + losses.restoring
    return Figures(
        outcome.scenario,
        outcome.policy,
        debug_wait=_waits(outcome, records, lambda it: it.is_debug),
        wait=_waits(outcome, records, lambda it: True),
        allocated_wait=_waits(
            outcome, records, lambda it: it.spec.is_allocated and not it.is_debug
        ),
        gang_wait=_waits(outcome, records, lambda it: it.spec.nodes > 1),
        return_wait=Waits.of(_returns(outcome, records)),
        room_wait=Waits.of(outcome.served),
        occupancy=_part(meter.backlog_busy, meter.backlog_seconds * meter.capacity),
        occupancy_offered=_part(meter.offered_busy, meter.offered),
        owed_delivered=_part(
            sum(min(team.owed, team.delivered) for team in teams.values()),
            sum(team.owed for team in teams.values()),
        ),
        worst_team=ranked[worst].ratio if worst else 1.0,
        worst_team_name=worst,
        lost_work=_part(lost, meter.busy_seconds, empty=0.0),
        overhead=_part(lost + losses.starting + losses.suspending, meter.busy_seconds, empty=0.0),
        unallocated=_part(
            sum(team.unallocated for team in outcome.teams.values()), meter.busy_seconds, empty=0.0
        ),
        fragmentation=_part(
            meter.backlog_broken, meter.backlog_seconds * meter.capacity, empty=0.0
        ),
        preemptions=len(outcome.preempted),
        preempted_most=_most_in_a_day(outcome),
        protection_violations=outcome.unprotected,
        ping_pong=outcome.ping_pong,
        violations=dict(outcome.violations),
        unstarted=sum(record.started is None for record in records),
        days=round(outcome.ended_at / DAY, 2),
        jobs=len(records),
        events=outcome.events,
        decisions=outcome.decisions,
        seconds=round(outcome.seconds, 2),
        events_per_second=round(outcome.events / max(outcome.seconds, 1e-9), 1),
        teams=teams,
    )


def _part(of: float, whole: float, *, empty: float = 1.0) -> float:
    return round(of / whole, 5) if whole > 0 else empty


def _waits(outcome: Outcome, records: list[Record], chosen: Callable[[Record], bool]) -> Waits:
    return Waits.of(
        (outcome.ended_at if it.started is None else it.started) - it.submitted
        for it in records
        if chosen(it)
    )


def _returns(outcome: Outcome, records: list[Record]) -> Iterable[float]:
    for record in records:
        yield from record.returns
        if record.queued is not None and record.started is not None:
            yield outcome.ended_at - record.queued


def _teams(outcome: Outcome) -> dict[str, TeamFigures]:
    return {
        name: TeamFigures(
            round(meter.owed / 3600, 2),
            round(meter.delivered / 3600, 2),
            round(meter.unallocated / 3600, 2),
            _part(meter.delivered, meter.owed),
        )
        for name, meter in sorted(outcome.teams.items())
    }


def _most_in_a_day(outcome: Outcome) -> int:
    times: defaultdict[str, list[float]] = defaultdict(list)
    most = 0
    for each in outcome.preempted:
        mine = times[each.victim]
        mine.append(each.at)
        while mine[0] <= each.at - DAY:
            del mine[0]
        most = max(most, len(mine))
    return most


HEADLINES: dict[str, Callable[[Figures], str]] = {
    "debug wait p90": lambda it: seconds(it.debug_wait.p90),
    "debug wait p99": lambda it: seconds(it.debug_wait.p99),
    "wait median": lambda it: seconds(it.wait.median),
    "wait p90": lambda it: seconds(it.wait.p90),
    "wait p99": lambda it: seconds(it.wait.p99),
    "wait at most": lambda it: seconds(it.wait.max),
    "gangs' wait p90": lambda it: seconds(it.gang_wait.p90),
    "return wait p95": lambda it: seconds(it.return_wait.p95),
    "occupancy": lambda it: f"{it.occupancy:.2%}",
    "owed, delivered": lambda it: f"{it.owed_delivered:.2%}",
    "worst team": lambda it: f"{it.worst_team:.2%}",
    "lost work": lambda it: f"{it.lost_work:.3%}",
    "overhead": lambda it: f"{it.overhead:.3%}",
    "unallocated": lambda it: f"{it.unallocated:.2%}",
    "fragmentation": lambda it: f"{it.fragmentation:.3%}",
    "preemptions": lambda it: str(it.preemptions),
    "within protection": lambda it: str(it.protection_violations),
    "ping-pong": lambda it: str(it.ping_pong),
    "rules broken": lambda it: str(sum(it.violations.values())),
    "never started": lambda it: str(it.unstarted),
    "jobs": lambda it: str(it.jobs),
    "simulated in": lambda it: f"{it.seconds:.1f} s",
    "events per second": lambda it: f"{it.events_per_second:,.0f}",
}
"""What tables show, one row each."""


def seconds(value: float) -> str:
    """A duration as people read it: `12 s`, `4.5 min`, `2.1 h`, `3.0 d`."""
    if value < MINUTE:
        return f"{value:.0f} s"
    if value < 3600:
        return f"{value / 60:.1f} min"
    return f"{value / 3600:.1f} h" if value < DAY else f"{value / DAY:.1f} d"
