"""Work like that on Microsoft's Philly cluster, where the trace itself is not at hand, and the two
scenarios that are made of either.

The tables are quantiles and counts of the trace (Microsoft, msr-fiddle/philly-traces, CC-BY-4.0).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import exp, log, sqrt
from pathlib import Path
from typing import Final

import numpy as np
from numpy.random import Generator, default_rng
from numpy.typing import NDArray

from scheduler_bridge.simulator.jobs import HOUR, Scenario, SimFleet
from scheduler_bridge.simulator.traces import (
    TraceError,
    TraceJob,
    as_jobs,
    read_philly,
    shares_by_use,
)

GPUS_PER_NODE: Final = 8
JOBS: Final = 82_247
HOURS: Final = 2_614
_HOURLY_MEDIAN, _HOURLY_P99, _HOURLY_MOST = 14.0, 393.0, 1_031
_HOURLY_MEMORY: Final = 0.83
"""How much the logarithm of one hour's arrivals has of that of the hour before."""

_QUANTILES: Final = (0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 1)
_SECONDS: Final[Mapping[str, tuple[float, ...]]] = {
    "one": (1, 30, 52, 62, 122, 1117, 2716, 8512, 19137, 135399, 865708, 3256045),
    "few": (2, 6, 11, 15, 21, 367, 45388, 166119, 233082, 747317, 2171243, 2750674),
    "many": (1, 22, 82, 199, 1269, 23649, 166230, 340514, 510989, 1062173, 2655441, 4628226),
}
_SIZES: Final = {
    1: 76_627,
    2: 1_818,
    4: 1_870,
    8: 1_643,
    12: 7,
    16: 199,
    24: 7,
    32: 67,
    64: 6,
    128: 3,
}
_TEAMS: Final[Mapping[str, tuple[float, ...]]] = {
    "one": (40841, 14607, 9054, 7237, 1571, 1137, 1090, 597, 215, 204, 64),
    "few": (194, 1455, 433, 75, 363, 0, 345, 375, 105, 329, 14),
    "many": (191, 29, 466, 111, 0, 0, 0, 539, 54, 190, 344),
}
"""Jobs of each of the eleven teams that used more than 8,900 GPU-hours."""


def generate(seed: int, hours: int = HOURS) -> list[TraceJob]:
    """Jobs in order of submission. `hours` shortens the period."""
    rng = default_rng((seed, 2**24))
    arrivals = _arrivals(rng, hours)
    sizes = rng.choice(
        list(_SIZES), size=arrivals.size, p=np.array(list(_SIZES.values())) / sum(_SIZES.values())
    )
    kinds = np.select([sizes == 1, sizes < GPUS_PER_NODE], ["one", "few"], "many")
    durations, teams = np.zeros(arrivals.size), np.zeros(arrivals.size, np.int64)
    for kind in _SECONDS:
        mine = np.flatnonzero(kinds == kind)
        durations[mine] = _durations(rng, kind, mine.size)
        chances = np.array(_TEAMS[kind])
        teams[mine] = rng.choice(chances.size, size=mine.size, p=chances / chances.sum())
    return [
        TraceJob(float(at), float(duration), int(size), f"vc-{team:02d}")
        for at, duration, size, team in zip(arrivals, durations, sizes, teams, strict=True)
    ]


def _arrivals(rng: Generator, hours: int) -> NDArray[np.float64]:
    """Bursts that last for hours: the logarithm of the hourly rate follows its past."""
    spread = log(_HOURLY_P99 / _HOURLY_MEDIAN) / 2.326
    level = float(rng.normal())
    rates = np.zeros(hours)
    for hour in range(hours):
        rates[hour] = min(_HOURLY_MOST, _HOURLY_MEDIAN * exp(spread * level))
        level = _HOURLY_MEMORY * level + sqrt(1 - _HOURLY_MEMORY**2) * float(rng.normal())
    rates *= JOBS / HOURS / rates.mean()
    counts = rng.poisson(rates)
    return np.sort(np.repeat(np.arange(hours), counts) * HOUR + rng.uniform(0, HOUR, counts.sum()))


def _durations(rng: Generator, kind: str, count: int) -> NDArray[np.float64]:
    drawn: NDArray[np.float64] = np.exp(
        np.interp(rng.uniform(size=count), _QUANTILES, np.log(_SECONDS[kind]))
    )
    return drawn


def philly(nodes: int, *, trace: Path | None, seed: int = 1, hours: int = HOURS) -> Scenario:
    """The trace, or work like it, on `nodes` machines of 8 GPUs until all has ended. The trace tells
    of no budgets: each team's share is its part of all GPU time that was used. Raises `TraceError`."""
    jobs = read_philly(trace) if trace else generate(seed, hours)
    largest = max(job.gpus for job in jobs)
    if largest > nodes * GPUS_PER_NODE:
        raise TraceError(
            f"A job of the trace needs {largest} GPUs; {nodes} nodes have "
            f"{nodes * GPUS_PER_NODE}. Simulate more nodes."
        )
    fleet = SimFleet(nodes, GPUS_PER_NODE, shares_by_use(jobs))
    return Scenario(f"philly-{nodes}x{GPUS_PER_NODE}", fleet, as_jobs(jobs, GPUS_PER_NODE, seed))
