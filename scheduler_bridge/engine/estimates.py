"""Estimates of starts: learns from every start how long work waits, remembers what it told, and
measures how often that came true."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from scheduler_bridge.engine.books import Books
from scheduler_bridge.model.outlook import Estimate
from scheduler_bridge.model.phases import Phase
from scheduler_bridge.model.workload import Event, Workload
from scheduler_bridge.policy.estimates import History, Waited, size_of
from scheduler_bridge.store.base import StoreError
from scheduler_bridge.store.estimates import Fate, Given

_log = logging.getLogger(__name__)

EVENTS_READ: Final = 200_000
"""How many of the newest events a start looks through for waits."""

MEASURED_SECONDS: Final = 30 * 86400.0
"""Only estimates given since then say how good they are."""

LEARNED_FROM: Final = 500
"""From what came of so many estimates a start learns how wide intervals have to be."""

KEPT_SECONDS: Final = 90 * 86400.0
REPEATED_SECONDS: Final = 600.0
"""A workload's estimates are remembered at most so often; those between say the same."""

_RECOUNTED_SECONDS: Final = 60.0
_STARTS: Final = frozenset({Phase.STARTING.value, Phase.RESUMING.value})


@dataclass(frozen=True, slots=True)
class Calibration:
    """Of `basis`, `compared` estimates could be compared and `right` came true. `open` are not due."""

    basis: str
    compared: int
    right: int
    open: int

    @property
    def measured(self) -> float | None:
        """The share that came true."""
        return self.right / self.compared if self.compared else None


class Estimates:
    """One per scheduler, made before anything changes. Raises `StoreError` when made."""

    def __init__(self, books: Books) -> None:
        self._books, self._store = books, books.store.estimates
        now = books.clock.now()
        self.history = History()
        for waited in self._store.waits(EVENTS_READ):
            self.history.add(waited)
        for fate in self._store.compared("history", LEARNED_FROM):
            self._learn(fate)
        self._store.forget(now - KEPT_SECONDS)
        self._open = self._store.open()
        self._numbers: dict[str, list[int]] = {}
        for number, given in self._open.items():
            self._numbers.setdefault(given.workload_id, []).append(number)
        self._new: dict[str, Given] = {}
        self._fates: Counter[tuple[str, Fate]] = Counter()
        for tally in self._store.tally(now - MEASURED_SECONDS):
            self._fates[tally.basis, tally.fate] = tally.count
        self._unsaved: list[tuple[int, Fate, float]] = []
        self._waiting: dict[str, tuple[int, int]] = {}  # workload -> its size, how many were ahead
        self._ahead: Counter[int] = Counter()
        self._recounted_at = float("-inf")
        self._begin()
        books.changed.append(self._on_change)

    def _begin(self) -> None:
        """What waits already, and what has started or ended while nobody looked."""
        queued = [w for w in self._books.workloads.values() if w.phase is Phase.QUEUED]
        for workload in sorted(queued, key=lambda w: (w.phase_since, w.id)):
            self._enter(workload)
        for name in sorted(self._numbers.keys() - self._waiting.keys()):
            self._settle(name, _starts(self._books.store.history(name)))
        self._save()

    # -- asking ------------------------------------------------------------------------------

    def ahead(self, workload_id: str, gpus: int) -> int:
        """How many of the same size waited when it came; of who has not come yet, wait now."""
        known = self._waiting.get(workload_id)
        return self._ahead[size_of(gpus)] if known is None else known[1]

    def give(self, workload_id: str, make: Callable[[], Estimate]) -> Estimate:
        """What a waiting workload is told; `keep` then stores it. For a while it is told the same, as
        long as that can still come true."""
        now = self._books.clock.now()
        self._recount(now)
        known = self._last(workload_id)
        if known is not None and _holds(known, now):
            return self.measured(_told(known))
        made = make()
        given = Given(
            workload_id, made.given_at, made.basis, made.probability, made.earliest, made.latest
        )
        if made.is_known:
            self._new[workload_id] = given
        return self.measured(made)

    def _last(self, workload_id: str) -> Given | None:
        numbers = self._numbers.get(workload_id)
        return self._new.get(workload_id) or (self._open[numbers[-1]] if numbers else None)

    def measured(self, estimate: Estimate) -> Estimate:
        """With how often its kind came true."""
        if not estimate.is_known:
            return estimate
        found = self.calibration(estimate.basis)
        return replace(estimate, measured=found.measured, compared=found.compared)

    def bases(self) -> tuple[str, ...]:
        """All that estimates rested on so far."""
        return tuple(sorted({basis for basis, _ in self._fates}))

    def calibration(self, basis: str) -> Calibration:
        """How often estimates of this basis came true; what is overdue did not."""
        now, fates = self._books.clock.now(), self._fates
        late = sum(g.basis == basis and _is_overdue(g, now) for g in self._open.values())
        right = fates[basis, Fate.WITHIN]
        wrong = fates[basis, Fate.EARLY] + fates[basis, Fate.LATE] + late
        return Calibration(basis, right + wrong, right, fates[basis, Fate.OPEN] - late)

    # -- learning ----------------------------------------------------------------------------

    def _on_change(self, events: tuple[Event, ...]) -> None:
        for event in events:
            workload = self._books.workloads.get(event.workload_id)
            if event.kind == "submitted" or (event.kind, event.target) == ("phase", "queued"):
                if workload is not None:
                    self._enter(workload)
            elif event.kind == "phase" and event.source == Phase.QUEUED.value:
                self._leave(event, workload)
        self._save()

    def _enter(self, workload: Workload) -> None:
        if workload.id in self._waiting:
            return
        size = size_of(workload.spec.gpus * workload.spec.nodes)
        self._waiting[workload.id] = (size, self._ahead[size])
        self._ahead[size] += 1

    def _leave(self, event: Event, workload: Workload | None) -> None:
        size, ahead = self._waiting.pop(event.workload_id, (0, None))
        if ahead is not None:
            self._ahead[size] -= 1
        has_started = event.target in _STARTS
        if has_started and workload is not None and "waited_seconds" in event.evidence:
            seconds = float(event.evidence["waited_seconds"])
            self.history.add(replace(_waited(workload, seconds), ahead=ahead))
        self._settle(event.workload_id, [event.at] if has_started else [])

    def _recount(self, now: float) -> None:
        if 0 <= now - self._recounted_at < _RECOUNTED_SECONDS:
            return
        self._recounted_at = now
        self.history.still_waiting(self._still_waiting(now))

    def _still_waiting(self, now: float) -> Iterator[Waited]:
        for name, (_, ahead) in self._waiting.items():
            workload = self._books.workloads.get(name)
            if workload is not None:
                waited = _waited(workload, max(now - workload.phase_since, 0.0))
                yield replace(waited, ahead=ahead, has_started=False)

    # -- keeping -----------------------------------------------------------------------------

    def keep(self) -> None:
        """Store what was given since the last time."""
        new, self._new = [*self._new.values()], {}
        if not new:
            return
        try:
            numbers = self._store.add(new)
        except StoreError as error:
            _log.warning("estimates could not be stored, and will not be compared: %s", error)
            return
        for number, given in zip(numbers, new, strict=True):
            self._open[number] = given
            self._numbers.setdefault(given.workload_id, []).append(number)
            self._fates[given.basis, Fate.OPEN] += 1

    def _settle(self, workload_id: str, starts: list[float]) -> None:
        now = self._books.clock.now()
        self._new.pop(workload_id, None)
        for number in self._numbers.pop(workload_id, ()):
            given = self._open.pop(number)
            started = next((at for at in starts if at >= given.given_at), None)
            fate = _fate(given, started)
            self._fates[given.basis, Fate.OPEN] -= 1
            self._fates[given.basis, fate] += 1
            if given.basis == "history" and fate is not Fate.VOID:
                self._learn(fate)
            self._unsaved.append((number, fate, now if started is None else started))

    def _learn(self, fate: Fate) -> None:
        early, late = fate is Fate.EARLY, fate is Fate.LATE
        self.history.tails = self.history.tails.after(early=early, late=late)

    def _save(self) -> None:
        if not self._unsaved:
            return
        try:
            self._store.settle(self._unsaved)
        except StoreError as error:
            _log.warning("what came of estimates is stored later: %s", error)
        else:
            self._unsaved = []


def _waited(workload: Workload, seconds: float) -> Waited:
    spec = workload.spec
    gpus = spec.gpus * spec.nodes
    return Waited(seconds, gpus, spec.team, spec.min_runtime_seconds > 0)


def _fate(given: Given, started_at: float | None) -> Fate:
    if started_at is None or given.earliest is None or given.latest is None:
        return Fate.VOID
    if started_at < given.earliest:
        return Fate.EARLY
    return Fate.WITHIN if started_at <= given.latest else Fate.LATE


def _is_overdue(given: Given, now: float) -> bool:
    return given.latest is not None and given.latest < now


def _holds(given: Given, now: float) -> bool:
    return 0 <= now - given.given_at < REPEATED_SECONDS and not _is_overdue(given, now)


def _told(given: Given) -> Estimate:
    return Estimate(given.given_at, given.earliest, given.latest, given.probability, given.basis)


def _starts(history: Iterable[Event]) -> list[float]:
    return [
        event.at
        for event in history
        if event.kind == "phase" and event.source == "queued" and event.target in _STARTS
    ]
