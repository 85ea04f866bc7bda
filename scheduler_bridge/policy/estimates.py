"""When waiting work will start: from how long work like it has waited, and from what is known of
reservations and of GPUs that are being freed. No answer where neither is known.

Waits are compared within classes: size (powers of two), protected or not, how many alike were ahead,
team; the narrowest class with enough of them counts. Who still waits counts too: their wait is longer
than what it is so far (the estimator of Kaplan and Meier), so that a growing queue is not told the
waits of better days.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Final, NamedTuple

import numpy as np

from scheduler_bridge.model.outlook import Estimate
from scheduler_bridge.policy.values import Pending, WaitReason

PROBABILITY: Final = 0.8
"""What is meant to come true of intervals; the rest is to be half before and half after."""

ENOUGH: Final = 20
"""Comparable waits, below which nothing is said."""

AT_ONCE_SECONDS: Final = 1.0
"""Shorter waits are none: who is told an estimate could not start at once."""

REMEMBERED: Final = 1000
"""Latest waits of each class."""

PROBABILITIES: Final[Mapping[str, float]] = {
    "history": PROBABILITY,
    "reservation": 0.9,
    "freed": 0.9,
}
"""What is meant to come true, by what an estimate rests on."""

_LEARNING_RATE: Final = 0.02
_LEAST_TAIL: Final = 0.002
_MOST_TAIL: Final = 0.4
_HOPELESS: Final = frozenset(
    {WaitReason.NO_NODE_FITS, WaitReason.TOO_LARGE, WaitReason.NO_READY_NODE}
)


class Class(NamedTuple):
    """What is compared; None stands for any."""

    size: int
    is_allocated: bool | None = None
    ahead: int | None = None
    team: str | None = None


@dataclass(frozen=True, slots=True)
class Waited:
    """One wait of `seconds`, of work that wants `gpus` in all; `ahead` is how many of its size waited
    when it came, None if unknown. `has_started` is false of who waits still."""

    seconds: float
    gpus: int
    team: str
    is_allocated: bool
    ahead: int | None = None
    has_started: bool = True


def size_of(gpus: int) -> int:
    """0, 1, 2, 3 to 4, 5 to 8, ... GPUs."""
    return (gpus - 1).bit_length() + 1 if gpus else 0


def classes(waited: Waited) -> tuple[Class, ...]:
    """The narrowest first."""
    size, kind = size_of(waited.gpus), waited.is_allocated
    wide = (Class(size, kind), Class(size))
    if waited.ahead is None:
        return Class(size, kind, None, waited.team), *wide
    ahead = waited.ahead.bit_length()
    return (
        Class(size, kind, ahead, waited.team),
        Class(size, kind, ahead),
        Class(size, kind, None, waited.team),
        *wide,
    )


@dataclass(frozen=True, slots=True)
class Tails:
    """Shares of past waits that an interval leaves out at its ends. They follow what came of the
    estimates before, so that as many come true as is said although queues grow and shrink (adaptive
    conformal inference, Gibbs and Candes 2021)."""

    early: float = (1.0 - PROBABILITY) / 2
    late: float = (1.0 - PROBABILITY) / 2

    def after(self, *, early: bool, late: bool) -> Tails:
        """What is left out after an estimate that was wrong in this way, or in none."""
        return Tails(_next(self.early, wrong=early), _next(self.late, wrong=late))


def _next(tail: float, *, wrong: bool) -> float:
    meant = (1.0 - PROBABILITY) / 2
    return min(max(tail + _LEARNING_RATE * (meant - wrong), _LEAST_TAIL), _MOST_TAIL)


class History:
    """Waits by class, the latest of each."""

    def __init__(self) -> None:
        self.tails = Tails()
        self._ended: dict[Class, deque[float]] = {}
        self._waiting: dict[Class, list[float]] = {}

    def add(self, waited: Waited) -> None:
        """Somebody has started."""
        for each in classes(waited) if waited.seconds >= AT_ONCE_SECONDS else ():
            self._ended.setdefault(each, deque(maxlen=REMEMBERED)).append(waited.seconds)

    def still_waiting(self, waits: Iterable[Waited]) -> None:
        """Replaces what was known of those that wait now."""
        self._waiting = {}
        for waited in waits:
            for each in classes(waited):
                self._waiting.setdefault(each, []).append(waited.seconds)

    def rest(self, waited: Waited) -> tuple[float, float] | None:
        """How much longer, from and to, with `PROBABILITY`; None if too little is comparable. The end
        is inf where too many still wait to tell."""
        for each in classes(waited):
            ended = np.array(self._ended.get(each, ()))
            if int((ended >= waited.seconds).sum()) < ENOUGH:
                continue
            waiting = np.array(self._waiting.get(each, ()))
            levels = (1.0 - self.tails.early, self.tails.late)
            low, high = survival_times(ended, waiting, waited.seconds, levels)
            return low - waited.seconds, high - waited.seconds
        return None


def survival_times(
    ended: np.ndarray[tuple[int], np.dtype[np.float64]],
    waiting: np.ndarray[tuple[int], np.dtype[np.float64]],
    since: float,
    levels: tuple[float, float],
) -> tuple[float, float]:
    """Of those that wait at least `since`, the times at which only these shares wait still; inf where
    nobody knows. `ended` are whole waits, `waiting` those so far."""
    ended, waiting = np.sort(ended[ended >= since]), np.sort(waiting[waiting >= since])
    moments, counts = np.unique(ended, return_counts=True)
    at_risk = (
        len(ended)
        - np.searchsorted(ended, moments)
        + len(waiting)
        - np.searchsorted(waiting, moments)
    )
    left = np.cumprod(1.0 - counts / at_risk)
    found = []
    for level in levels:
        beyond = np.flatnonzero(left <= level + 1e-12)
        found.append(float(moments[beyond[0]]) if beyond.size else inf)
    return found[0], found[1]


def estimate(
    item: Pending,
    reason: WaitReason,
    history: History,
    now: float,
    *,
    ahead: int | None = None,
    starts_by: float | None = None,
    freed_by: float | None = None,
) -> Estimate:
    """When it starts. `starts_by`: enough protection has ended for it then. `freed_by`: GPUs that are
    being freed for it are free by then. `ahead`: see `Waited`. Times are UNIX seconds."""
    if reason in _HOPELESS:
        return Estimate(now, reason="no_machine")
    if reason is WaitReason.PREEMPTION_PAUSED:
        return Estimate(now, reason="paused")
    if reason is WaitReason.BEING_FREED and freed_by is not None:
        return _known(now, now, freed_by, "freed")
    waited = Waited(
        max(now - item.since, 0.0), item.gpus * item.nodes, item.team, item.is_allocated, ahead
    )
    rest = history.rest(waited)
    is_reserved = starts_by is not None and item.is_allocated
    if rest is not None and rest[1] < inf:
        latest = min(now + rest[1], starts_by if starts_by and is_reserved else inf)
        return _known(now, min(now + rest[0], latest), latest, "history")
    if is_reserved:
        return _known(now, now, starts_by, "reservation")
    return Estimate(now, reason="too_few_started" if rest is None else "too_many_wait")


def _known(now: float, earliest: float, latest: float | None, basis: str) -> Estimate:
    return Estimate(now, earliest, latest, PROBABILITIES[basis], basis)
