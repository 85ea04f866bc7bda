"""Reports of GPU time: from the ledger's sums to what somebody asked for."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from math import ceil, floor
from typing import Final

from scheduler_bridge.engine.scheduler import Scheduler
from scheduler_bridge.errors import Refused
from scheduler_bridge.model.usage import (
    HOURS_PER_DAY,
    MICRO,
    Bucket,
    FleetUsage,
    Grouping,
    Tag,
    TeamSums,
    UsageKey,
    UsageLine,
    UsageQuestion,
    UsageReport,
)
from scheduler_bridge.policy.budgets import Budgets
from scheduler_bridge.store.ledger import Reach

_HOUR_SECONDS: Final = 3600
_DEFAULT_DAYS: Final = 30
_LATEST: Final = 253402300799.0
"""The year 9999 ends."""

MOST_HOURS: Final = {Bucket.HOUR: 31 * HOURS_PER_DAY, Bucket.DAY: 3660 * HOURS_PER_DAY}
"""How much a report in pieces may cover."""

_SIZES: Final = {Bucket.HOUR: 1, Bucket.DAY: HOURS_PER_DAY}
_PARTS: Final = {
    Tag.ALLOCATED: "allocated",
    Tag.UNALLOCATED: "unallocated",
    Tag.IDLE: "idle",
    Tag.SUSPENDED: "suspended",
    Tag.INTERRUPTIBLE: "interruptible",
    Tag.GIVEN_BACK: "given_back",
}
_OF_TEAMS: Final = (
    "owed",
    "lent",
    "borrowed",
    "guaranteed_unused",
    "guaranteed_lent",
    "on_guarantees",
)
_Name = tuple[str, str, str, str]
"""(team, project, user, tag) of a line."""


@dataclass(frozen=True, slots=True)
class Audience:
    """Who is told. `teams` None: everything. Otherwise what was charged to these teams and those below
    them, and what `user` used."""

    teams: Collection[str] | None = None
    user: str = ""


def report(
    scheduler: Scheduler, question: UsageQuestion, audience: Audience | None = None
) -> UsageReport:
    """Raises `Refused` for times that make no sense or are too many, `StoreError`."""
    audience = audience or Audience()
    now = scheduler.books.clock.now()
    budgets = scheduler.books.budgets
    teams = None if audience.teams is None else _with_below(budgets, audience.teams)
    reach = _reach(question, now, teams, audience.user)
    lines = Lines(budgets, question.group_by)
    for (bucket, key), amount in scheduler.ledger.usage(reach, now).items():
        lines.use(bucket, key, amount, teams)
    if question.group_by is Grouping.TEAM:
        for (bucket, team), sums in scheduler.ledger.teams(reach, now).items():
            lines.due(bucket, team, sums)
    standing = scheduler.ledger.standing(now).values()
    return UsageReport(
        float(reach.first * _HOUR_SECONDS),
        float(reach.end * _HOUR_SECONDS),
        tuple(lines),
        tuple(it for it in standing if teams is None or it.team in teams),
        _fleet(scheduler, reach, now) if teams is None else None,
    )


def _fleet(scheduler: Scheduler, reach: Reach, now: float) -> FleetUsage:
    sums = scheduler.ledger.fleet(reach, now)
    return FleetUsage(sums.capacity / MICRO, sums.held / MICRO, sums.free / MICRO)


def _reach(question: UsageQuestion, now: float, teams: Collection[str] | None, user: str) -> Reach:
    until = now if question.until is None else question.until
    since = question.since
    if since is None:
        since = max(0.0, until - _DEFAULT_DAYS * 86400)
    for name, at in (("to", until), ("from", since)):
        # written so that NaN fails
        if not 0 <= at <= _LATEST:
            raise Refused(f"{name}: must be a time between 1970 and 9999; it is {at} seconds.")
    if since >= until:
        raise Refused("from: must be before to.", remedy="Exchange them.")
    first, end = floor(since / _HOUR_SECONDS), ceil(until / _HOUR_SECONDS)
    if question.bucket is None:
        return Reach(first, end, None, teams, user)
    most = MOST_HOURS[question.bucket]
    if end - first > most:
        raise Refused(
            f"bucket: by {question.bucket} at most {most // HOURS_PER_DAY} days are told; "
            f"these are {ceil((end - first) / HOURS_PER_DAY)}.",
            remedy="Ask for less time, or for larger pieces.",
        )
    return Reach(first, end, _SIZES[question.bucket], teams, user)


def _with_below(budgets: Budgets, teams: Collection[str]) -> frozenset[str]:
    below = {
        it.name
        for it in budgets.downwards()
        if any(above.name in teams for above in budgets.line(it.name))
    }
    return frozenset({*teams, *below})


@dataclass(slots=True)
class _Amounts:
    """What comes together in one line."""

    used: dict[str, int] = field(default_factory=dict)
    dues: TeamSums | None = None
    cost: float | None = None

    def add(self, key: UsageKey, amount: int, price: float | None) -> None:
        tags = Tag(key.tags)
        names = [name for tag, name in _PARTS.items() if tag in tags]
        if Tag.GIVEN_BACK not in tags:
            names.append("delivered")
            if price is not None:
                hours = amount / MICRO / _HOUR_SECONDS
                self.cost = (self.cost or 0.0) + hours * price
        for name in names:
            self.used[name] = self.used.get(name, 0) + amount

    def line(self, at: float, name: _Name, price: float | None) -> UsageLine:
        team, project, user, tag = name
        amounts = {part: amount / MICRO for part, amount in self.used.items()}
        dues = {}
        if self.dues is not None:
            dues = {part: getattr(self.dues, part) / MICRO for part in _OF_TEAMS}
        return UsageLine(
            at,
            team,
            project,
            user,
            tag,
            **amounts,
            **dues,
            price_per_gpu_hour=price,
            cost=self.cost,
        )


class Lines:
    """The lines of a report, put together piece by piece."""

    def __init__(self, budgets: Budgets, group_by: Grouping) -> None:
        self._budgets, self._group_by = budgets, group_by
        self._found: dict[tuple[int, _Name], _Amounts] = {}

    def use(self, bucket: int, key: UsageKey, amount: int, visible: Collection[str] | None) -> None:
        """Add what was used."""
        price = self._price(key.project or key.team)
        for name in self._names(key, visible):
            self._of(bucket, name).add(key, amount, price)

    def due(self, bucket: int, team: str, sums: TeamSums) -> None:
        """Add what became of a team's due."""
        self._of(bucket, (team, "", "", "")).dues = sums

    def __iter__(self) -> Iterator[UsageLine]:
        for (bucket, name), amounts in sorted(self._found.items(), key=lambda it: it[0]):
            team, project, _, _ = name
            price = self._price(project or team) if team else None
            yield amounts.line(float(bucket * _HOUR_SECONDS), name, price)

    def _of(self, bucket: int, name: _Name) -> _Amounts:
        return self._found.setdefault((bucket, name), _Amounts())

    def _names(self, key: UsageKey, visible: Collection[str] | None) -> Iterable[_Name]:
        """The lines to which it belongs."""
        if self._group_by is Grouping.TEAM:
            above = [it.name for it in self._budgets.line(key.project)]
            # a sub-team may hang elsewhere by now: what it used counts where it was
            names = {key.team, *(above if key.team in above else ()), key.project} - {""}
            shown = names if visible is None else names & set(visible)
            return [(name, "", "", "") for name in sorted(shown)]
        if self._group_by is Grouping.PROJECT:
            return [(key.team, key.project, "", "")]
        if self._group_by is Grouping.USER:
            return [("", "", key.user, "")]
        tags = Tag(key.tags)
        return [("", "", "", name) for tag, name in _PARTS.items() if tag in tags]

    def _price(self, team: str) -> float | None:
        """Its own price, or that of the nearest team above it which has one."""
        prices = (it.price_per_gpu_hour for it in self._budgets.line(team))
        return next((it for it in prices if it is not None), None)
