"""Trying again, with a clock of our own."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from snapshot.errors import AlreadyExistsError, MissingError, StoreUnavailableError
from snapshot.stores.base import Store
from snapshot.stores.retry import Patience, RetryingStore
from tests.fakes.stores import (
    PassingOn,
    StoreInMemory,
    StoreThatIsDown,
    StoreThatLosesTheAcknowledgement,
)


@dataclass
class ClockThatIsTold:
    """Time passes only by sleeping."""

    now: float = 0.0
    slept: list[float] = field(default_factory=list)

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float, /) -> None:
        self.slept.append(seconds)
        self.now += seconds


def retrying(store: Store, clock: ClockThatIsTold, seed: int = 1) -> RetryingStore:
    return RetryingStore(store, Patience(60.0, 0.1, 5.0), clock, random.Random(seed))


def test_a_store_that_comes_back_is_waited_for() -> None:
    clock, inner = ClockThatIsTold(), StoreInMemory()
    retrying(StoreThatIsDown(inner, times=4), clock).put("key", b"x")
    assert inner.objects == {"key": b"x"}
    assert len(clock.slept) == 4


def test_waits_grow_vary_and_are_bounded() -> None:
    clock = ClockThatIsTold()
    with pytest.raises(StoreUnavailableError, match="is down"):
        retrying(StoreThatIsDown(StoreInMemory()), clock).get("key")
    assert 50.0 < clock.now <= 60.0
    expected = [min(0.1 * 2**index, 5.0) for index in range(len(clock.slept))]
    for slept, middle in zip(clock.slept, expected, strict=True):
        assert 0.5 * middle <= slept <= 1.5 * middle
    other = ClockThatIsTold()
    with pytest.raises(StoreUnavailableError):
        retrying(StoreThatIsDown(StoreInMemory()), other, seed=2).get("key")
    assert other.slept != clock.slept


@pytest.mark.parametrize("if_absent", [False, True])
def test_a_write_whose_acknowledgement_was_lost_succeeds(if_absent: bool) -> None:
    inner = StoreInMemory()
    store = retrying(StoreThatLosesTheAcknowledgement(inner, times=2), ClockThatIsTold())
    store.put("key", memoryview(b"mine"), if_absent=if_absent)
    assert inner.objects == {"key": b"mine"}


@dataclass
class StoreThatTearsTheFirstWrite(PassingOn):
    """A server killed in the middle of a write, which left half of it."""

    torn: bool = False

    def put(
        self, key: str, data: bytes | bytearray | memoryview, *, if_absent: bool = False
    ) -> None:
        if not self.torn:
            self.torn = True
            self.inner.put(key, data[: len(data) // 2])
            raise StoreUnavailableError("killed")
        self.inner.put(key, data, if_absent=if_absent)


def test_a_torn_write_of_our_own_is_made_whole() -> None:
    inner = StoreInMemory()
    store = retrying(StoreThatTearsTheFirstWrite(inner), ClockThatIsTold())
    store.put("key", b"all of it", if_absent=True)
    assert inner.objects == {"key": b"all of it"}


@dataclass
class StoreWhereSomebodyElseIsFaster(PassingOn):
    """The first write is lost, and somebody else takes the key meanwhile."""

    raced: bool = False

    def put(
        self, key: str, data: bytes | bytearray | memoryview, *, if_absent: bool = False
    ) -> None:
        if not self.raced:
            self.raced = True
            self.inner.put(key, b"theirs")
            raise StoreUnavailableError("lost")
        self.inner.put(key, data, if_absent=if_absent)


def test_somebody_elses_object_is_not_taken_for_ours() -> None:
    inner = StoreInMemory()
    store = retrying(StoreWhereSomebodyElseIsFaster(inner), ClockThatIsTold())
    with pytest.raises(AlreadyExistsError):
        store.put("key", b"mine", if_absent=True)
    assert inner.objects == {"key": b"theirs"}


def test_an_existing_object_at_the_first_attempt_is_an_error_even_if_equal() -> None:
    inner = StoreInMemory()
    inner.put("key", b"same")
    with pytest.raises(AlreadyExistsError):
        retrying(inner, ClockThatIsTold()).put("key", b"same", if_absent=True)


def test_what_will_not_help_is_not_tried_again() -> None:
    clock = ClockThatIsTold()
    with pytest.raises(MissingError):
        retrying(StoreInMemory(), clock).get("key")
    assert clock.slept == []


def test_reading_listing_and_deleting_are_tried_again() -> None:
    inner = StoreInMemory()
    inner.put("key", b"x")
    clock = ClockThatIsTold()
    flaky = StoreThatIsDown(inner, times=1)
    store = retrying(flaky, clock)
    for call in (
        lambda: store.get("key") == b"x",
        lambda: store.head("key") == 1,
        lambda: [entry.key for entry in store.list("")] == ["key"],
        lambda: store.delete("key") is None,
    ):
        flaky.calls = 0
        assert call()
    assert len(clock.slept) == 4
