"""Contract of the store's part for estimates: what was told to whom, what came of it, and how long work
has waited before."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from scheduler_bridge.policy.estimates import Waited


class Fate(StrEnum):
    """What came of an estimate. `void`: the workload ended without a start, or nothing was told."""

    OPEN = "open"
    WITHIN = "within"
    EARLY = "early"
    LATE = "late"
    VOID = "void"


@dataclass(frozen=True, slots=True)
class Given:
    """An estimate that was given. Times are UNIX seconds; both bounds are None if it was said that
    nothing can be said."""

    workload_id: str
    given_at: float
    basis: str
    probability: float
    earliest: float | None
    latest: float | None


@dataclass(frozen=True, slots=True)
class Tally:
    """How many of one basis had this fate."""

    basis: str
    fate: Fate
    count: int


class EstimateStore(Protocol):
    """Synchronous, as `store.base.Store`."""

    def add(self, given: Sequence[Given]) -> tuple[int, ...]:
        """Remember all or none. Gives their numbers."""
        ...

    def open(self) -> dict[int, Given]:
        """Those whose fate is not known yet, by number."""
        ...

    def settle(self, fates: Iterable[tuple[int, Fate, float]]) -> None:
        """What came of them, and when (UNIX seconds)."""
        ...

    def tally(self, since: float) -> tuple[Tally, ...]:
        """Of those given since then."""
        ...

    def compared(self, basis: str, count: int) -> tuple[Fate, ...]:
        """What came of the latest ones of a basis that could be compared, in the order in which they
        were given."""
        ...

    def forget(self, before: float) -> None:
        """Those given before then, whatever came of them."""
        ...

    def waits(self, events: int) -> tuple[Waited, ...]:
        """Waits that ended with a start, oldest first, among so many of the newest events."""
        ...
