"""What GPUs were used for, and what teams were due: the words of the ledger.

Amounts are whole numbers, so that they are exact however often they are added: GPUs count in
thousandths, time in milliseconds, and a *GPU-microsecond* is one thousandth of a GPU for one
millisecond. Hours are numbered from 1970 (UTC).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntFlag, StrEnum
from typing import Final, NamedTuple

MILLI: Final = 1000
"""Thousandths in one GPU, milliseconds in one second."""

MICRO: Final = MILLI * MILLI
"""GPU-microseconds in one GPU-second."""

HOUR_MS: Final = 3600 * MILLI
HOURS_PER_DAY: Final = 24


class Tag(IntFlag):
    """What held GPUs were, several at once. Each is either `ALLOCATED` (with protection, which its
    team's budget pays) or `UNALLOCATED`. `IDLE`: the reclaimer said that nobody used them.
    `SUSPENDED`: held while their session's memory was being saved, or until what was left behind
    was proven gone. `INTERRUPTIBLE`: past their protection. `GIVEN_BACK` alone is not held: what
    suspended sessions left to others, of the size that they had."""

    ALLOCATED = 1
    UNALLOCATED = 2
    IDLE = 4
    SUSPENDED = 8
    INTERRUPTIBLE = 16
    GIVEN_BACK = 32


class UsageKey(NamedTuple):
    """Who used it and as what. `team` has no parent; `project` is the one of its sub-teams that was
    charged, empty if it was the team itself."""

    team: str
    project: str
    user: str
    tags: int


class TeamSums(NamedTuple):
    """What became of one team's due, its sub-teams included, in GPU-microseconds.

    `owed` is the integral of the smaller of its share and what it had running or waiting. `lent` is
    what of its share others had while it held less; `borrowed` what it had of others' that way.
    `guaranteed_unused` is what it did not use of its guaranteed GPUs, `guaranteed_lent` what of that
    others used, and `on_guarantees` what it used of others'. The last two are told of teams without
    parent only."""

    owed: int = 0
    allocated: int = 0
    unallocated: int = 0
    lent: int = 0
    borrowed: int = 0
    guaranteed_unused: int = 0
    guaranteed_lent: int = 0
    on_guarantees: int = 0

    @property
    def delivered(self) -> int:
        """All that it held."""
        return self.allocated + self.unallocated

    def plus(self, other: TeamSums, times: int = 1) -> TeamSums:
        """Both together; `other` so many times."""
        # in full, because it is done for each team whenever anything changes
        return TeamSums(
            self[0] + other[0] * times,
            self[1] + other[1] * times,
            self[2] + other[2] * times,
            self[3] + other[3] * times,
            self[4] + other[4] * times,
            self[5] + other[5] * times,
            self[6] + other[6] * times,
            self[7] + other[7] * times,
        )


class FleetSums(NamedTuple):
    """All GPUs, in GPU-microseconds. `held` and `free` make up `capacity`; `free` is below zero while
    GPUs are held that no longer belong to the fleet."""

    capacity: int = 0
    held: int = 0
    free: int = 0

    def plus(self, other: FleetSums, times: int = 1) -> FleetSums:
        """Both together; `other` so many times."""
        return FleetSums(*(mine + theirs * times for mine, theirs in zip(self, other, strict=True)))


class Grouping(StrEnum):
    """What a line of a report is about."""

    TEAM = "team"
    PROJECT = "project"
    USER = "user"
    TAG = "tag"


class Bucket(StrEnum):
    """Into which pieces (UTC) a report cuts the time."""

    HOUR = "hour"
    DAY = "day"


@dataclass(frozen=True, slots=True)
class UsageQuestion:
    """From when to when (UNIX seconds; None: 30 days before `until`, and now), by what, and in which
    pieces (None: one for all)."""

    since: float | None = None
    until: float | None = None
    group_by: Grouping = Grouping.TEAM
    bucket: Bucket | None = None


@dataclass(frozen=True, slots=True)
class UsageLine:
    """Usage of one group (a team, a project with its team, a user or a tag; the rest is empty) in one
    bucket, which begins at `at` (UNIX seconds). All amounts are GPU-seconds.

    `delivered` is what was held: `allocated` and `unallocated` together; the next three are parts of
    it. `given_back` is what suspended sessions did not hold. What follows is about teams and None
    elsewhere: see `TeamSums`. A team's line includes its sub-teams. `cost` is `delivered` at the
    present prices per GPU-hour of the teams that were charged; None where none of them has a price."""

    at: float
    team: str = ""
    project: str = ""
    user: str = ""
    tag: str = ""
    delivered: float = 0.0
    allocated: float = 0.0
    unallocated: float = 0.0
    idle: float = 0.0
    suspended: float = 0.0
    interruptible: float = 0.0
    given_back: float = 0.0
    owed: float | None = None
    lent: float | None = None
    borrowed: float | None = None
    guaranteed_unused: float | None = None
    guaranteed_lent: float | None = None
    on_guarantees: float | None = None
    price_per_gpu_hour: float | None = None
    cost: float | None = None


@dataclass(frozen=True, slots=True)
class TeamBalance:
    """Owed less delivered within the usage window, older hours counting less, in GPU-seconds.
    `forgiven` is what it had above its due before the forgiveness horizon: no longer counted."""

    team: str
    balance: float
    forgiven: float = 0.0


@dataclass(frozen=True, slots=True)
class FleetUsage:
    """All GPUs from one time to the other, in GPU-seconds."""

    capacity: float = 0.0
    held: float = 0.0
    free: float = 0.0


@dataclass(frozen=True, slots=True)
class UsageReport:
    """`since` and `until` are whole hours (UNIX seconds); what is counted ends now at the latest.
    `balances` are those of now. `fleet` is None for who does not see all teams."""

    since: float
    until: float
    lines: tuple[UsageLine, ...]
    balances: tuple[TeamBalance, ...] = ()
    fleet: FleetUsage | None = None
