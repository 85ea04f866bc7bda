"""Random draws that several generators share. Every draw comes from a generator with a fixed seed."""

from __future__ import annotations

from math import ceil, inf, log
from typing import Final

from numpy.random import Generator

from scheduler_bridge.policy.values import DEBUG_SECONDS
from scheduler_bridge.simulator.jobs import MINUTE

CHECKPOINT_MEDIAN: Final = 30 * MINUTE
CHECKPOINT_SIGMA: Final = 0.7
"""Spread of the logarithm: 80% of the intervals lie between 12 and 74 minutes."""
NEVER_REPORTS: Final = 0.1
_LIMIT_STEP: Final = 15 * MINUTE


def checkpoint_interval(rng: Generator) -> float:
    """Seconds between two checkpoints; infinite for one job in ten."""
    interval = float(rng.lognormal(log(CHECKPOINT_MEDIAN), CHECKPOINT_SIGMA))
    return inf if rng.random() < NEVER_REPORTS else interval


def time_limit(rng: Generator, duration: float) -> float:
    """What a user says at most: half an hour for short work, else about twice what it takes, in steps
    of a quarter of an hour, always enough for start-up and restore."""
    if duration <= DEBUG_SECONDS:
        return 30 * MINUTE
    guess = duration * (1 + float(rng.exponential(1.0))) + _LIMIT_STEP
    return ceil(guess / _LIMIT_STEP) * _LIMIT_STEP
