"""Contract of the ledger's part of the store: sums by hour, and up to where they count."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from scheduler_bridge.model.usage import FleetSums, TeamSums, UsageKey
from scheduler_bridge.policy.ledger import Sums
from scheduler_bridge.store.base import StoreError


class LedgerMoved(StoreError):
    """The ledger is not as the writer knows it: an earlier write was done although its answer was
    lost. Nothing was written; the mark has to be read again."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Up to where the stored sums count: `at` in milliseconds since 1970, and the event `event_id`
    with all before it. From there on the fleet has `gpus` GPUs, and the budgets are those of the change
    set `head`. `number` grows by one with each write."""

    number: int
    at: int
    event_id: int
    gpus: int
    head: str = ""


@dataclass(frozen=True, slots=True)
class Reach:
    """Hours from `first` to before `end`; `bucket` many are put together (None: all of them). If
    `teams` is given, only what was charged to these or used by `user`."""

    first: int
    end: int
    bucket: int | None = None
    teams: Collection[str] | None = None
    user: str = ""

    def covers(self, key: UsageKey) -> bool:
        """Whether this usage is asked for."""
        if self.teams is None:
            return True
        mine = key.team in self.teams or key.project in self.teams
        return mine or (bool(self.user) and key.user == self.user)

    def begin(self, hour: int) -> int | None:
        """The first hour of the bucket of this hour; None if it is not asked for."""
        if not self.first <= hour < self.end:
            return None
        return self.first if self.bucket is None else hour - hour % self.bucket


class LedgerStore(Protocol):
    """Synchronous, as `store.base.Store`. Buckets are named by their first hour, by that of the reach
    if all hours are put together."""

    def mark(self) -> Mark | None:
        """Up to where the sums count; None before the first write."""
        ...

    def add(self, sums: Sums, mark: Mark) -> None:
        """Add the sums and set the mark, in one transaction. Raises `LedgerMoved` if the stored mark's
        number is not the one before."""
        ...

    def usage(self, reach: Reach) -> dict[tuple[int, UsageKey], int]:
        """What was used, by bucket."""
        ...

    def teams(self, reach: Reach) -> dict[tuple[int, str], TeamSums]:
        """What became of teams' dues, by bucket; only of `reach.teams` if these are given."""
        ...

    def fleet(self, reach: Reach) -> FleetSums:
        """What became of the fleet in all of these hours."""
        ...
