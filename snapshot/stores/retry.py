"""Trying again, around any store."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from snapshot.errors import AlreadyExistsError, StoreUnavailableError
from snapshot.stores.base import Data, Entry, Size, Store

T = TypeVar("T")


class Clock(Protocol):
    """What waiting needs."""

    def monotonic(self) -> float: ...

    def sleep(self, seconds: float, /) -> None: ...


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to go on. Waits begin at `first` seconds, double up to `longest`, and vary by half
    either way so that many clients do not return at once. No new attempt begins after `total`."""

    total: float = 60.0
    first: float = 0.1
    longest: float = 5.0


def again(
    operation: Callable[[], T],
    patience: Patience,
    *,
    clock: Clock = time,
    randomness: random.Random | None = None,
) -> T:
    """The operation's result, tried again after `StoreUnavailableError` until patience ends; then
    the last error is raised."""
    draw = (randomness or random.Random()).uniform  # noqa: S311 - spreads load, guards nothing
    started, wait = clock.monotonic(), patience.first
    while True:
        try:
            return operation()
        except StoreUnavailableError:
            pause = wait * draw(0.5, 1.5)
            if clock.monotonic() - started + pause > patience.total:
                raise
            clock.sleep(pause)
            wait = min(2 * wait, patience.longest)


@dataclass(frozen=True, slots=True)
class RetryingStore:
    """The inner store, tried again after `StoreUnavailableError` until `Patience` ends; then the
    last error is raised."""

    inner: Store
    patience: Patience = Patience()
    clock: Clock = time
    randomness: random.Random = field(default_factory=random.Random)

    @property
    def excludes(self) -> bool:
        return self._retried(lambda: self.inner.excludes)

    def put(self, key: str, data: Data, *, if_absent: bool = False) -> None:
        attempts = 0

        def attempt() -> None:
            nonlocal attempts
            attempts += 1
            try:
                self.inner.put(key, data, if_absent=if_absent)
            except AlreadyExistsError:
                # Our own earlier attempt may have been carried out without our hearing of it, by a
                # server killed in the middle even in part.
                found = b"" if attempts == 1 else self.inner.get(key)
                if attempts == 1 or found != data[: len(found)]:
                    raise
                if len(found) < len(data):
                    self.inner.put(key, data)

        self._retried(attempt)

    def get(self, key: str, *, start: int | None = None, end: int | None = None) -> bytes:
        return self._retried(lambda: self.inner.get(key, start=start, end=end))

    def head(self, key: str) -> Size | None:
        return self._retried(lambda: self.inner.head(key))

    def list(self, prefix: str) -> Iterator[Entry]:
        """Collected at once: a listing that broke off is begun again from the start."""
        return iter(self._retried(lambda: list(self.inner.list(prefix))))

    def delete(self, key: str) -> None:
        self._retried(lambda: self.inner.delete(key))

    def sweep(self, before: float) -> int:
        return self._retried(lambda: self.inner.sweep(before))

    def _retried(self, operation: Callable[[], T]) -> T:
        return again(operation, self.patience, clock=self.clock, randomness=self.randomness)
