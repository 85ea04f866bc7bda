"""GPU time counted from events, in memory: from a stored mark on, event by event."""

from __future__ import annotations

import logging
from typing import Final

from scheduler_bridge.engine.books import Books
from scheduler_bridge.engine.rewinding import events_since, rewind
from scheduler_bridge.engine.tracks import BIRTHS, Track, after, counts, milliseconds
from scheduler_bridge.model.phases import Phase
from scheduler_bridge.model.usage import HOUR_MS, HOURS_PER_DAY, MILLI
from scheduler_bridge.model.workload import Event
from scheduler_bridge.policy.budget_changes import replay
from scheduler_bridge.policy.budgets import Budgets
from scheduler_bridge.policy.dues import dues
from scheduler_bridge.policy.ledger import Meter
from scheduler_bridge.store.ledger import Mark

_log = logging.getLogger(__name__)

LONGEST_STEP_DAYS: Final = 31
LONGEST_STEP_MS: Final = LONGEST_STEP_DAYS * HOURS_PER_DAY * HOUR_MS


class Count:
    """As of the last event since the mark; `event_id` is its id, `events` how many there were."""

    def __init__(self, books: Books, mark: Mark) -> None:
        """Raises `StoreError`."""
        self._books = books
        self.event_id, self.events = mark.event_id, 0
        self.budgets = self._budgets_at(mark.head)
        self.meter = Meter(mark.at, mark.gpus * MILLI, dues(self.budgets, mark.gpus))
        self._tracks: dict[str, Track] = {}
        events = events_since(books.store, mark.event_id)
        then, self._births = rewind(books, self._tracks_now(), events)
        for name, track in then.items():
            self._put(name, track)
        for event in events:
            self.fold(event)

    def fold(self, event: Event) -> None:
        """Take over what has happened."""
        self._go(milliseconds(event.at))
        if event.kind == "teams":
            self.budgets = self._budgets_at(event.target)
            self.resize(self.meter.capacity // MILLI)
        elif counts(event):
            self._follow(event)
        self.event_id, self.events = event.id, self.events + 1

    def believed(self, now: float) -> int:
        """Until when (milliseconds) to count if it is `now` (UNIX seconds)."""
        at = self.meter.at
        passed = milliseconds(now) - at
        return at + passed if 0 < passed <= LONGEST_STEP_MS else at

    def restart(self, at: int) -> None:
        """What was counted until then is stored."""
        self.meter.restart(at)
        self.events = 0

    def resize(self, gpus: int) -> None:
        """From now on the fleet has so many GPUs."""
        self.meter.change(gpus * MILLI, dues(self.budgets, gpus))

    def correct(self) -> int:
        """Count on from what the leases say. Gives the GPUs that were counted too many: 0, for these
        are two ways to the same number."""
        leased = sum(len(it.lease.gpus) for it in self._books.leases.values())
        too_many = self.meter.held // MILLI - leased
        if too_many:
            now = self._tracks_now()
            for name in self._tracks.keys() | now.keys():
                self._put(name, now.get(name))
        return too_many

    def _go(self, to: int) -> None:
        if abs(to - self.meter.at) <= LONGEST_STEP_MS:
            self.meter.advance(to)
        else:
            _log.warning("the clock jumped by more than %d days", LONGEST_STEP_DAYS)
            self.meter.skip(to)

    def _follow(self, event: Event) -> None:
        name = event.workload_id
        known = self._tracks.get(name)
        if event.kind in BIRTHS:
            born = self._births.pop(name, None)
            self._put(name, born or Track.of(self._books.get(name).spec, Phase(event.target)))
        elif known is not None:
            self._put(name, after(known, event))

    def _put(self, name: str, track: Track | None) -> None:
        known = self._tracks.pop(name, None)
        if track is not None and track.is_over:
            track = None
        holdings = {}
        if track is not None:
            self._tracks[name] = track
            holdings = dict(track.holdings)
        gone = [] if known is None else [it for it, _ in known.holdings if it not in holdings]
        for suffix in gone:
            self.meter.hold(f"{name}/{suffix}", None)
        for suffix, holding in holdings.items():
            self.meter.hold(f"{name}/{suffix}", holding)
        self.meter.wait(name, None if track is None else track.waiting)

    def _tracks_now(self) -> dict[str, Track]:
        books = self._books
        leases: dict[str, list[str]] = {name: [] for name in books.workloads}
        for record in books.leases.values():
            leases.setdefault(str(record.lease.workload_id), []).append(record.lease.id)
        return {
            name: Track.of_workload(books.get(name), [books.leases[lease] for lease in mine])
            for name, mine in leases.items()
        }

    def _budgets_at(self, head: str) -> Budgets:
        sets = self._books.change_sets
        last = next((n for n, it in enumerate(sets) if it.id == head), -1)
        return replay(sets[: last + 1])
