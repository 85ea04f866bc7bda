"""Counts GPU time from the books' events, and stores it by the hour.

The events are the ledger's only source: what was counted since the stored mark is counted again from
them after a restart, with the same result, and what the mark includes is never read again. So nothing
is lost or counted twice wherever the program ends.

Clocks jump. Time never runs backwards here: after a jump back nothing is counted until the clock has
come to where it was. A jump forwards counts as time that passed, as it cannot be told from a machine
that slept; if the clock is set right again, the time until then is not counted a second time, so that
the sums are right in the end. A step of more than `counting.LONGEST_STEP_DAYS` in either direction is
not believed: nobody is charged for it nor for what had passed since the event before, and counting goes
on from there.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from typing import Final

from scheduler_bridge.engine.books import Books
from scheduler_bridge.engine.budgets import fleet_gpus
from scheduler_bridge.engine.counting import Count
from scheduler_bridge.engine.tracks import milliseconds
from scheduler_bridge.model.usage import (
    HOUR_MS,
    MICRO,
    MILLI,
    FleetSums,
    TeamBalance,
    TeamSums,
    UsageKey,
)
from scheduler_bridge.model.workload import Event
from scheduler_bridge.policy.ledger import Sums
from scheduler_bridge.policy.usage_window import Balances, UsageWindow
from scheduler_bridge.store.base import StoreError
from scheduler_bridge.store.ledger import LedgerMoved, Mark, Reach

_log = logging.getLogger(__name__)

STORED_AFTER_EVENTS: Final = 5000
STORED_AT_MOST_EVERY_MS: Final = 10 * MILLI
"""Where much happens sums are stored earlier, so that a restart has little to read again."""

BALANCES_EVERY_SECONDS: Final = 10.0
_EVER: Final = 2**31 - 1
"""The last hour that a column of PostgreSQL holds."""


class Ledger:
    """One per scheduler, made before anything changes. `mismatch_gpus` is by how many GPUs the last
    check found leases and sums apart: always 0 if all is well."""

    def __init__(
        self, books: Books, window: UsageWindow | None = None, *, stored_every: float = 600.0
    ) -> None:
        """Sums are stored after so many seconds, earlier where much happens. Raises `StoreError`."""
        self._books, self._store = books, books.store.ledger
        self.window = window or UsageWindow()
        self._stored_every = milliseconds(stored_every)
        self.mismatch_gpus = 0
        self._used: Counter[tuple[str, int]] = Counter()
        self._mark = self._store.mark() or self._begin()
        self._count = Count(books, self._mark)
        self._balances = self._stored_balances()
        self._known: tuple[float, Mapping[str, float]] = (float("-inf"), {})
        self._is_stale = False
        # what an earlier program counted already is not shown as used once more
        self._used.subtract(_by_team(self._count.meter.until(self._count.meter.at)))
        self._is_closed = False
        books.changed.append(self._on_change)
        books.balances = self.balances

    # -- asking ------------------------------------------------------------------------------

    def balances(self, now: float) -> Mapping[str, float]:
        """Owed less delivered GPU-seconds of each team within the usage window, sub-teams included.
        Worked out anew every ten seconds, so that they do not differ in each planning pass."""
        at, known = self._known
        if not 0 <= now - at < BALANCES_EVERY_SECONDS:
            known = {name: it.balance for name, it in self.standing(now).items()}
            self._known = (now, known)
        return known

    def standing(self, now: float) -> dict[str, TeamBalance]:
        """The balances of all teams, and what they were forgiven."""
        at = self._count.believed(now)
        open_ = self._count.meter.dues_until(at)
        return self._balances.at(at, {key: _net(it) for key, it in open_.items()})

    def usage(self, reach: Reach, now: float) -> dict[tuple[int, UsageKey], int]:
        """What was used until now, by bucket. See `store.ledger.Reach`. Raises `StoreError`."""
        found = Counter(self._store.usage(reach))
        for (hour, key), amount in self._open(now).usage.items():
            bucket = reach.begin(hour)
            if bucket is not None and reach.covers(key):
                found[bucket, key] += amount
        return dict(found)

    def teams(self, reach: Reach, now: float) -> dict[tuple[int, str], TeamSums]:
        """What became of teams' dues until now, by bucket. Raises `StoreError`."""
        found = self._store.teams(reach)
        for (hour, team), sums in self._open(now).teams.items():
            bucket = reach.begin(hour)
            if bucket is not None and (reach.teams is None or team in reach.teams):
                found[bucket, team] = found.get((bucket, team), TeamSums()).plus(sums)
        return found

    def fleet(self, reach: Reach, now: float) -> FleetSums:
        """What became of the fleet until now. Raises `StoreError`."""
        found = self._store.fleet(reach)
        for hour, sums in self._open(now).fleet.items():
            if reach.begin(hour) is not None:
                found = found.plus(sums)
        return found

    def used(self, now: float) -> dict[tuple[str, int], float]:
        """GPU-seconds by charged team and tags since this program began."""
        both = Counter(self._used)
        both.update(_by_team(self._open(now)))
        return {key: amount / MICRO for key, amount in sorted(both.items()) if amount > 0}

    def _open(self, now: float) -> Sums:
        """What is not stored yet."""
        return self._count.meter.until(self._count.believed(now))

    # -- keeping -----------------------------------------------------------------------------

    def keep(self) -> None:
        """Store what has come together, if it is time. Called often; never raises for a store that
        does not answer: nothing is lost meanwhile."""
        try:
            if self._is_stale:
                self._load()
            if self._is_due() or fleet_gpus(self._books) != self._mark.gpus:
                self.settle()
        except StoreError as error:
            _log.warning("GPU time could not be stored; it is tried again later: %s", error)

    def settle(self) -> None:
        """Store everything counted so far. Raises `StoreError`; then nothing has changed."""
        if self._is_stale:
            self._load()
        self.mismatch_gpus = self._count.correct()
        if self.mismatch_gpus:
            _log.error("the ledger counted %d GPUs that nobody leases", self.mismatch_gpus)
        at = self._count.believed(self._books.clock.now())
        sums, gpus = self._count.meter.until(at), fleet_gpus(self._books)
        head = self._count.budgets.head
        mark = Mark(self._mark.number + 1, at, self._count.event_id, gpus, head)
        try:
            self._store.add(sums, mark)
        except LedgerMoved:
            # it was stored, and the answer was lost
            self._load()
            return
        self._used.update(_by_team(sums))
        for (hour, team), it in sums.teams.items():
            self._balances.add(hour, team, _net(it))
        self._count.restart(at)
        if gpus != self._mark.gpus:
            self._count.resize(gpus)
        self._mark = mark

    def close(self) -> None:
        """Store what has come together, if the store answers: a restart then reads little. May be
        called twice."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self.settle()
        except StoreError as error:
            _log.warning("GPU time is counted again at the next start: %s", error)

    def _is_due(self) -> bool:
        passed = self._count.believed(self._books.clock.now()) - self._mark.at
        is_much = self._count.events >= STORED_AFTER_EVENTS and passed >= STORED_AT_MOST_EVERY_MS
        return passed >= self._stored_every or is_much

    def _on_change(self, events: tuple[Event, ...]) -> None:
        try:
            for event in () if self._is_stale else events:
                self._count.fold(event)
        except Exception:
            # what was decided stands; it is counted from the store at the next occasion
            self._is_stale = True
            _log.exception("an event could not be counted")

    # -- starting ----------------------------------------------------------------------------

    def _begin(self) -> Mark:
        """What happened before the first start is not counted."""
        now = milliseconds(self._books.clock.now())
        last, head = self._books.store.last_event_id(), self._books.budgets.head
        mark = Mark(1, now, last, fleet_gpus(self._books), head)
        self._store.add(Sums(), mark)
        return mark

    def _load(self) -> None:
        """From the store, as after a restart."""
        mark = self._store.mark() or self._begin()
        count = Count(self._books, mark)
        self._mark, self._count, self._is_stale = mark, count, False
        self._balances = self._stored_balances()

    def _stored_balances(self) -> Balances:
        balances = Balances(self.window)
        first = self.window.first_hour(self._mark.at // HOUR_MS)
        for (hour, team), it in self._store.teams(Reach(first, _EVER, bucket=1)).items():
            balances.add(hour, team, _net(it))
        return balances


def _net(sums: TeamSums) -> int:
    return sums.owed - sums.delivered


def _by_team(sums: Sums) -> Counter[tuple[str, int]]:
    found: Counter[tuple[str, int]] = Counter()
    for (_, key), amount in sums.usage.items():
        found[key.project or key.team, key.tags] += amount
    return found
