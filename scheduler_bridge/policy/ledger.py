"""GPU time in whole numbers: who held what and as what, and what teams were due meanwhile.

A `Meter` is told of each change when it happens; `account` does the same for spans that are known
already. Both give the same sums for every order of the same changes, and for every cut of the time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from scheduler_bridge.model.usage import HOUR_MS, FleetSums, Tag, TeamSums, UsageKey
from scheduler_bridge.policy.dues import Dues, Held, Moment, Tree


@dataclass(frozen=True, slots=True)
class Holding:
    """GPUs (in thousandths) that somebody holds, or with `is_given_back` does not hold while their
    session is suspended. From `interruptible_from` (milliseconds) on they may be asked to yield."""

    team: str
    user: str
    gpus: int
    is_allocated: bool = True
    is_idle: bool = False
    is_suspended: bool = False
    is_given_back: bool = False
    interruptible_from: int | None = None

    def pieces(self, since: int, until: int) -> Iterator[tuple[int, int, int]]:
        """(tags, since, until) of the parts of that time."""
        if self.is_given_back:
            yield _GIVEN_BACK, since, until
            return
        # plain numbers: this is done for all that is held whenever somebody asks
        tags = _ALLOCATED if self.is_allocated else _UNALLOCATED
        tags |= (_IDLE if self.is_idle else 0) | (_SUSPENDED if self.is_suspended else 0)
        change = until if self.interruptible_from is None else self.interruptible_from
        change = min(max(change, since), until)
        if since < change:
            yield tags, since, change
        if change < until:
            yield tags | _INTERRUPTIBLE, change, until


_ALLOCATED, _UNALLOCATED = int(Tag.ALLOCATED), int(Tag.UNALLOCATED)
_IDLE, _SUSPENDED = int(Tag.IDLE), int(Tag.SUSPENDED)
_INTERRUPTIBLE, _GIVEN_BACK = int(Tag.INTERRUPTIBLE), int(Tag.GIVEN_BACK)


@dataclass(frozen=True, slots=True)
class Waiting:
    """GPUs (in thousandths) that a team waits for, above what it holds."""

    team: str
    gpus: int


@dataclass(slots=True)
class Sums:
    """What has come together, by hour. Without entries that are zero, two of the same are equal."""

    usage: dict[tuple[int, UsageKey], int] = field(default_factory=dict)
    teams: dict[tuple[int, str], TeamSums] = field(default_factory=dict)
    fleet: dict[int, FleetSums] = field(default_factory=dict)

    def use(self, hour: int, key: UsageKey, amount: int) -> None:
        """Add what was used."""
        if amount:
            self.usage[hour, key] = self.usage.get((hour, key), 0) + amount

    def due(self, hour: int, team: str, rate: TeamSums, times: int = 1) -> None:
        """Add what became of a team's due."""
        if any(rate):
            self.teams[hour, team] = self.teams.get((hour, team), TeamSums()).plus(rate, times)

    def all(self, hour: int, rate: FleetSums, times: int = 1) -> None:
        """Add what became of the fleet."""
        if any(rate):
            self.fleet[hour] = self.fleet.get(hour, FleetSums()).plus(rate, times)

    def plus(self, other: Sums) -> Sums:
        """Both together, as new sums."""
        both = Sums(dict(self.usage), dict(self.teams), dict(self.fleet))
        for (hour, key), amount in other.usage.items():
            both.use(hour, key, amount)
        for (hour, team), rate in other.teams.items():
            both.due(hour, team, rate)
        for hour, all_ in other.fleet.items():
            both.all(hour, all_)
        return both


class Meter:
    """Counts from `at` (milliseconds since 1970) on. `capacity` is thousandths of a GPU."""

    def __init__(self, at: int, capacity: int, due: Dues) -> None:
        self.at, self.capacity = at, capacity
        self.tree = Tree(due)
        self._sums = Sums()
        self._holdings: dict[str, tuple[Holding, int]] = {}
        self._waiting: dict[str, Waiting] = {}
        self._totals: dict[str, Held] = {}
        self._rates: tuple[dict[str, TeamSums], FleetSums] | None = None

    @property
    def held(self) -> int:
        """What is held now, in thousandths of a GPU."""
        return sum(it.gpus for name, it in self._totals.items() if self.tree.is_root(name))

    def advance(self, to: int) -> None:
        """Time passes as things stand; a time that is over already changes nothing."""
        if to > self.at:
            self._pass(self._sums, to)
            self.at = to

    def hold(self, name: str, holding: Holding | None) -> None:
        """From now on somebody holds this, or under this name nothing."""
        known, since = self._holdings.get(name, (None, self.at))
        if known == holding:
            return
        if known is not None:
            self._book(self._sums, known, since, self.at)
            self._count(known, -1)
        if holding is None or not holding.gpus:
            self._holdings.pop(name, None)
            return
        self._holdings[name] = (holding, self.at)
        self._count(holding, 1)

    def wait(self, name: str, waiting: Waiting | None) -> None:
        """From now on this waits, or under this name nothing."""
        known = self._waiting.pop(name, None)
        if waiting is not None and waiting.gpus:
            self._waiting[name] = waiting
        if known == waiting:
            return
        for each, sign in ((known, -1), (waiting, 1)):
            if each is not None:
                for total in self._line(each.team):
                    total.waiting += sign * each.gpus

    def until(self, to: int) -> Sums:
        """What has come together by then if nothing changes. Changes nothing itself."""
        sums = self._sums.plus(Sums())
        to = max(to, self.at)
        self._pass(sums, to)
        for holding, since in self._holdings.values():
            self._book(sums, holding, since, to)
        return sums

    def dues_until(self, to: int) -> dict[tuple[int, str], TeamSums]:
        """The same of the teams only, which costs little."""
        sums = Sums(teams=dict(self._sums.teams))
        self._pass(sums, to)
        return sums.teams

    def restart(self, at: int) -> None:
        """Count anew from `at` on, with what is held and waits now."""
        self.at, self._sums = at, Sums()
        self._holdings = {name: (it, at) for name, (it, _) in self._holdings.items()}

    def change(self, capacity: int, due: Dues) -> None:
        """From now on the fleet is so large, and teams are due this."""
        self._book_all(self.at)
        self.capacity, self.tree = capacity, Tree(due)
        held, waiting = self._holdings, self._waiting
        self._totals, self._holdings, self._waiting = {}, {}, {}
        for name, (holding, _) in held.items():
            self.hold(name, holding)
        for name, each in waiting.items():
            self.wait(name, each)
        self._rates = None

    def skip(self, to: int) -> None:
        """It is another time now, and what lies between counts for nobody."""
        self._book_all(to)
        self.at = to

    def _book_all(self, since: int) -> None:
        for name, (holding, held_since) in self._holdings.items():
            self._book(self._sums, holding, held_since, self.at)
            self._holdings[name] = (holding, since)

    def _pass(self, sums: Sums, to: int) -> None:
        if self._rates is None:
            moment = Moment(self.tree, self.capacity, self._totals)
            self._rates = (moment.rates(), moment.fleet())
        teams, fleet = self._rates
        for hour, milliseconds in hours(self.at, to):
            for team, rate in teams.items():
                sums.due(hour, team, rate, milliseconds)
            sums.all(hour, fleet, milliseconds)

    def _book(self, sums: Sums, holding: Holding, since: int, until: int) -> None:
        team, project = self.tree.place(holding.team)
        for tags, begins, ends in holding.pieces(since, until):
            key = UsageKey(team, project, holding.user, tags)
            for hour, milliseconds in hours(begins, ends):
                sums.use(hour, key, holding.gpus * milliseconds)

    def _count(self, holding: Holding, sign: int) -> None:
        if holding.is_given_back:
            return
        for total in self._line(holding.team):
            if holding.is_allocated:
                total.allocated += sign * holding.gpus
            else:
                total.unallocated += sign * holding.gpus

    def _line(self, team: str) -> list[Held]:
        """What the team and those above it hold; about to change."""
        self._rates = None
        return [self._totals.setdefault(name, Held()) for name in self.tree.line(team)]


def hours(since: int, until: int) -> Iterator[tuple[int, int]]:
    """(hour, milliseconds of it) between two times."""
    while since < until:
        hour = since // HOUR_MS
        ends = min((hour + 1) * HOUR_MS, until)
        yield hour, ends - since
        since = ends


@dataclass(frozen=True, slots=True)
class Span:
    """What was held, or waited, from one time to another (milliseconds)."""

    what: Holding | Waiting
    since: int
    until: int


def account(spans: Iterable[Span], due: Dues, capacity: int, since: int, until: int) -> Sums:
    """The sums of all that these spans have of the time from `since` to `until`."""
    meter = Meter(since, capacity, due)
    cut = [replace(it, since=max(it.since, since), until=min(it.until, until)) for it in spans]
    changes = [
        (at, name, on)
        for name, it in enumerate(cut)
        if it.since < it.until
        for at, on in ((it.since, True), (it.until, False))
    ]
    for at, number, begins in sorted(changes):
        meter.advance(at)
        name, what = str(number), cut[number].what
        if isinstance(what, Holding):
            meter.hold(name, what if begins else None)
        else:
            meter.wait(name, what if begins else None)
    return meter.until(until)
