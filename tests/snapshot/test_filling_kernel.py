"""Filling against the real kernel: trees that move, drop, fork and end while their memory comes."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from snapshot.filling import feed
from snapshot.stores.base import Store
from tests.builders.faulting import faulting
from tests.fakes.stores import (
    StoreThatFlipsABit,
    StoreThatIsDown,
    StoreThatIsSlowToRead,
    StoreThatTruncates,
)

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="userfaultfds here need root")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asks again sooner, and speaks up sooner, than people need it."""
    monkeypatch.setattr(feed, "RETRY_SECONDS", 0.1)
    monkeypatch.setattr(feed, "SILENT_SECONDS", 0.5)


def test_everything_comes(tmp_path: Path) -> None:
    with faulting(tmp_path, "plain") as tree:
        tree.program.send_on()
        tree.go()
        tree.ends()


@pytest.mark.parametrize("seed", range(4))
def test_storms_of_changes_meet_what_they_should(tmp_path: Path, seed: int) -> None:
    with faulting(tmp_path, "storm", seed=seed, pages=3000) as tree:
        tree.program.send_on()
        tree.program.reaches("half")
        tree.program.send_on()
        tree.go()
        tree.ends()


def test_fifty_forks_share_what_is_to_come(tmp_path: Path) -> None:
    with faulting(tmp_path, "forks") as tree:
        tree.program.send_on()
        tree.program.reaches("half")
        tree.program.send_on()
        tree.go()
        tree.ends()
        assert tree.guard.forks >= 50
        assert tree.supervisor.forks == tree.guard.forks


def test_children_that_ask_for_nothing_get_everything_too(tmp_path: Path) -> None:
    """They are forked while the rest is brought, and look at it when nobody fills any more."""
    with faulting(tmp_path, "sleepers", pages=6000) as tree:
        tree.program.send_on()
        tree.program.reaches("half")
        tree.go()
        tree.program.send_on()
        tree.program.reaches("forked")
        tree.until_filled()
        tree.program.send_on()
        tree.ends()


def test_memory_at_the_lowest_address_is_not_taken_for_nothing(tmp_path: Path) -> None:
    """Whoever has ended is found by asking for zeros there."""
    with faulting(tmp_path, "low", pages=100) as tree:
        tree.program.send_on()
        tree.program.reaches("half")
        tree.program.send_on()
        tree.program.reaches("forked")
        tree.go()
        tree.until_filled()
        tree.program.send_on()
        tree.ends()


def test_threads_ask_in_many_places(tmp_path: Path) -> None:
    with faulting(tmp_path, "threads") as tree:
        tree.program.send_on()
        tree.program.reaches("half")
        tree.program.send_on()
        tree.go()
        tree.ends()


def test_memory_that_was_never_written_is_zero_at_once(tmp_path: Path) -> None:
    with faulting(tmp_path, "holes") as tree:
        tree.program.send_on()
        tree.program.reaches("half")
        tree.program.send_on()
        tree.go()
        tree.ends()


def test_who_waits_for_what_is_given_up_goes_on_at_once(tmp_path: Path) -> None:
    """Nothing comes all the time: whoever is woken was not woken by a page."""
    gate = threading.Event()
    with faulting(tmp_path, "given_up", wrap=lambda s: StoreThatIsSlowToRead(s, gate=gate)) as tree:
        tree.program.send_on()
        for _ in range(3):
            tree.program.reaches("waits")
            tree.until_asked_for(1)
            tree.program.send_on()
        tree.program.reaches("half")
        gate.set()
        tree.program.send_on()
        tree.go()
        tree.ends()


def test_a_tree_that_ends_by_itself_ends_its_filling(tmp_path: Path) -> None:
    gate = threading.Event()
    with faulting(tmp_path, "leaves", wrap=lambda s: StoreThatIsSlowToRead(s, gate=gate)) as tree:
        tree.program.send_on()
        tree.program.reaches("half")
        tree.go()
        tree.program.child.kill()
        tree.ends_unfilled()
        gate.set()


def test_a_store_that_is_away_is_waited_for_and_named(tmp_path: Path) -> None:
    stores: list[StoreThatIsDown] = []

    def wrap(store: Store) -> Store:
        stores.append(StoreThatIsDown(store, down=False))
        return stores[0]

    with faulting(tmp_path, "plain", wrap=wrap) as tree:
        stores[0].down = True
        tree.program.send_on()
        tree.go()
        tree.supervisor.hears(lambda news: news.get("trouble") == "the store is down")
        stores[0].down = False
        tree.supervisor.hears(lambda news: not news.get("trouble"))
        tree.ends()


@pytest.mark.usefixtures("impatient")
def test_what_keeps_pages_away_is_logged_once_and_not_for_each_try(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stores: list[StoreThatIsDown] = []

    def wrap(store: Store) -> Store:
        stores.append(StoreThatIsDown(store, down=False, times=12))
        return stores[0]

    with faulting(tmp_path, "plain", wrap=wrap) as tree:
        stores[0].calls, stores[0].down = 0, True
        tree.program.send_on()
        tree.go()
        tree.ends()
    # The last refusal may be heard of after another thread's first success.
    logged = [r for r in caplog.records if "the store is down" in r.getMessage()]
    assert 1 <= len(logged) <= 2


@pytest.mark.usefixtures("impatient")
def test_a_store_that_says_nothing_is_named_too(tmp_path: Path) -> None:
    gate = threading.Event()
    with faulting(tmp_path, "plain", wrap=lambda s: StoreThatIsSlowToRead(s, gate=gate)) as tree:
        tree.program.send_on()
        tree.go()
        tree.supervisor.hears(lambda news: "sent nothing" in news.get("trouble", ""))
        gate.set()
        tree.ends()


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("kind", [StoreThatFlipsABit, StoreThatTruncates])
def test_damaged_bodies_never_enter_memory(
    tmp_path: Path, kind: type[StoreThatFlipsABit] | type[StoreThatTruncates]
) -> None:
    """They are read again until they are whole."""
    stores: list[StoreThatFlipsABit | StoreThatTruncates] = []

    def wrap(store: Store) -> Store:
        stores.append(kind(store))
        return stores[0]

    with faulting(tmp_path, "plain", wrap=wrap) as tree:
        tree.program.send_on()
        tree.go()
        tree.supervisor.hears(lambda news: "damaged" in news.get("trouble", ""))
        stores[0].prefix = "nothing/"
        tree.ends()
