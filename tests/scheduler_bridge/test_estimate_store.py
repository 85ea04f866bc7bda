"""What a store promises about estimates, on a SQLite file and on a real PostgreSQL server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from scheduler_bridge.model.workload import Event
from scheduler_bridge.policy.estimates import Waited
from scheduler_bridge.store.base import Batch, Store
from scheduler_bridge.store.estimates import Fate, Given, Tally
from tests.builders.databases import Database, PostgresDatabase, SqliteDatabase

GIVEN = Given("j-1", 1_800_000_000.25, "history", 0.8, 1_800_000_060.0, 1_800_003_600.5)
NONE = Given("j-2", 1_800_000_001.0, "", 0.0, None, None)


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    if request.param == "sqlite":
        return SqliteDatabase(tmp_path)
    return PostgresDatabase(request.getfixturevalue("postgres").database())


@pytest.fixture
def store(database: Database) -> Iterator[Store]:
    with closing(database.open()) as opened:
        yield opened


def test_what_was_given_is_known_after_a_restart(store: Store, database: Database) -> None:
    first, second = store.estimates.add([GIVEN, NONE])
    store.close()
    with closing(database.open()) as again:
        assert again.estimates.open() == {first: GIVEN, second: NONE}


def test_what_came_of_them_is_counted(store: Store) -> None:
    numbers = store.estimates.add([replace(GIVEN, workload_id=f"j-{n}") for n in range(4)])
    (other,) = store.estimates.add([replace(GIVEN, basis="reservation")])
    store.estimates.settle(
        [
            (numbers[0], Fate.WITHIN, 5.0),
            (numbers[1], Fate.WITHIN, 6.0),
            (numbers[2], Fate.LATE, 7.0),
        ]
    )
    assert set(store.estimates.open()) == {numbers[3], other}
    assert store.estimates.tally(since=0.0) == (
        Tally("history", Fate.LATE, 1),
        Tally("history", Fate.OPEN, 1),
        Tally("history", Fate.WITHIN, 2),
        Tally("reservation", Fate.OPEN, 1),
    )
    assert store.estimates.tally(since=GIVEN.given_at + 1) == ()


def test_the_latest_fates_come_in_the_order_in_which_estimates_were_given(store: Store) -> None:
    numbers = store.estimates.add([GIVEN] * 5)
    fates = (Fate.LATE, Fate.VOID, Fate.WITHIN, Fate.EARLY)
    store.estimates.settle([(n, f, 9.0) for n, f in zip(numbers[:4], fates, strict=True)][::-1])
    assert store.estimates.compared("history", 10) == (Fate.LATE, Fate.WITHIN, Fate.EARLY)
    assert store.estimates.compared("history", 2) == (Fate.WITHIN, Fate.EARLY)
    assert store.estimates.compared("reservation", 2) == ()


def test_old_ones_are_forgotten(store: Store) -> None:
    _, kept = store.estimates.add([GIVEN, replace(GIVEN, given_at=GIVEN.given_at + 10)])
    store.estimates.forget(before=GIVEN.given_at + 5)
    assert set(store.estimates.open()) == {kept}


def event(kind: str, source: str, target: str, **evidence: object) -> Event:
    return Event(0, 5.0, "j-1", kind, "placed", "scheduler", "", source, target, evidence)


def test_waits_are_read_from_events_also_of_versions_before(store: Store) -> None:
    whole = {"gpus": ["a", "b"], "waited_seconds": 7.5, "team": "red", "protected": True}
    store.write(
        Batch(
            events=(
                event("phase", "queued", "starting", gpus=["a"], waited_seconds=3.0),
                event("phase", "starting", "running"),
                event("phase", "queued", "cancelled"),
                event("preempted", "", ""),
                event("phase", "queued", "resuming", **whole),
            )
        )
    )
    assert store.estimates.waits(events=100) == (
        Waited(3.0, 1, "", False),
        Waited(7.5, 2, "red", True),
    )
    assert store.estimates.waits(events=1) == (Waited(7.5, 2, "red", True),)
