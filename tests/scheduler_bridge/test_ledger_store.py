"""What the ledger's part of a store promises, on a SQLite file and on a real PostgreSQL server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from alembic import command

from scheduler_bridge.model.usage import FleetSums, Tag, TeamSums, UsageKey
from scheduler_bridge.policy.ledger import Sums
from scheduler_bridge.store.base import Store, StoreError
from scheduler_bridge.store.ledger import LedgerMoved, Mark, Reach
from scheduler_bridge.store.opening import migrations
from tests.builders.databases import Database, PostgresDatabase, SqliteDatabase, beside

HOUR = 480_000
ALL = Reach(0, 10**6)
LARGE = 16_000 * 1000 * 3_600_000
"""What the largest fleet holds in an hour."""


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    if request.param == "sqlite":
        return SqliteDatabase(tmp_path)
    return PostgresDatabase(request.getfixturevalue("postgres").database())


@pytest.fixture
def store(database: Database) -> Iterator[Store]:
    with closing(database.open()) as opened:
        yield opened


def key(team: str = "a", project: str = "", user: str = "u") -> UsageKey:
    return UsageKey(team, project, user, int(Tag.ALLOCATED | Tag.IDLE))


def sums(hour: int = HOUR, used: UsageKey | None = None, amount: int = LARGE) -> Sums:
    used = used or key()
    team = TeamSums(*(amount + n for n in range(len(TeamSums._fields))))
    return Sums({(hour, used): amount}, {(hour, used.team): team}, {hour: FleetSums(amount, 2, -3)})


def mark(number: int, at: int = 5) -> Mark:
    return Mark(number, at * 10**12, 7, 16_000, "t-1")


def test_there_is_nothing_before_the_first_write(store: Store) -> None:
    assert store.ledger.mark() is None
    assert store.ledger.usage(ALL) == {}
    assert store.ledger.teams(ALL) == {}
    assert store.ledger.fleet(ALL) == FleetSums()


def test_sums_are_added_to_what_is_there(store: Store, database: Database) -> None:
    store.ledger.add(sums(), mark(1))
    store.ledger.add(sums(amount=1).plus(sums(HOUR + 1)), mark(2, at=6))
    store.close()
    with closing(database.open()) as again:
        ledger = again.ledger
        assert ledger.mark() == mark(2, at=6)
        hourly = Reach(0, 10**6, bucket=1)
        both = sums().plus(sums(amount=1)).plus(sums(HOUR + 1))
        assert ledger.usage(hourly) == both.usage
        assert ledger.teams(hourly) == both.teams
        assert ledger.fleet(ALL) == FleetSums(2 * LARGE + 1, 6, -9)


def test_a_write_that_was_done_already_is_not_done_again(store: Store) -> None:
    for number in (0, 2):
        with pytest.raises(LedgerMoved):
            store.ledger.add(sums(), mark(number))
    store.ledger.add(sums(), mark(1))
    for number in (0, 1, 3):
        with pytest.raises(LedgerMoved):
            store.ledger.add(sums(), mark(number))
    assert store.ledger.mark() == mark(1)
    assert sum(store.ledger.usage(ALL).values()) == LARGE


def test_sums_and_mark_are_written_together_or_not_at_all(store: Store) -> None:
    store.ledger.add(sums(), mark(1))
    impossible = Sums(fleet={HOUR: FleetSums(2**70, 0, 0)})
    with pytest.raises((StoreError, OverflowError)):
        store.ledger.add(sums().plus(impossible), mark(2))
    assert store.ledger.mark() == mark(1)
    assert sum(store.ledger.usage(ALL).values()) == LARGE


def test_hours_are_put_together_in_buckets(store: Store) -> None:
    midnight = 20_000 * 24
    written = Sums()
    for hour in (midnight - 1, midnight, midnight + 23, midnight + 24):
        written = written.plus(sums(hour, amount=1))
    store.ledger.add(written, mark(1))
    daily = Reach(midnight - 1, midnight + 24, bucket=24)
    assert store.ledger.usage(daily) == {(midnight - 24, key()): 1, (midnight, key()): 2}
    assert [hour for hour, _ in store.ledger.teams(daily)] == [midnight - 24, midnight]
    whole = Reach(midnight, midnight + 25)
    assert store.ledger.usage(whole) == {(midnight, key()): 3}
    assert store.ledger.fleet(daily).capacity == 3
    assert [whole.begin(midnight + n) for n in (-1, 24, 25)] == [None, midnight, None]
    assert [daily.begin(midnight + n) for n in (-1, 23, 24)] == [midnight - 24, midnight, None]


MIDNIGHT = 20_000 * 24


@pytest.mark.parametrize("first", [MIDNIGHT - 25, MIDNIGHT - 24, MIDNIGHT - 1, MIDNIGHT + 3])
@pytest.mark.parametrize("hours", [1, 20, 24, 26, 49])
def test_whole_days_and_hours_give_the_same(store: Store, first: int, hours: int) -> None:
    written = Sums()
    for hour in range(MIDNIGHT - 26, MIDNIGHT + 55):
        written.use(hour, key("a" if hour % 2 else "b"), 2 ** (hour - MIDNIGHT + 26) % 10**15)
    store.ledger.add(written, mark(1))
    end = first + hours
    within = {it: n for it, n in written.usage.items() if first <= it[0] < end}
    for bucket in (None, 1, 24):
        expected: dict[tuple[int, UsageKey], int] = {}
        for (hour, used), amount in within.items():
            begin = Reach(first, end, bucket).begin(hour)
            assert begin is not None
            expected[begin, used] = expected.get((begin, used), 0) + amount
        assert store.ledger.usage(Reach(first, end, bucket)) == expected


def test_days_are_filled_from_hours_that_were_stored_before_there_were_days(
    store: Store, database: Database
) -> None:
    store.ledger.add(sums(MIDNIGHT, amount=1).plus(sums(MIDNIGHT + 23, amount=2)), mark(1))
    store.close()
    with beside(database) as connection:
        command.downgrade(migrations(connection), "0005")
    with closing(database.open()) as again:
        whole = Reach(MIDNIGHT, MIDNIGHT + 24)
        assert again.ledger.usage(whole) == {(MIDNIGHT, key()): 3}


def test_only_what_was_asked_for_is_told(store: Store) -> None:
    written = Sums()
    keys = [key("a"), key("b", "sub"), key("b", "", "me"), key("c")]
    for used in keys:
        written = written.plus(sums(used=used, amount=1))
    store.ledger.add(written, mark(1))
    for reach, expected in (
        (Reach(0, 10**6, teams=("a", "sub")), keys[:2]),
        (Reach(0, 10**6, teams=("a",), user="me"), [keys[0], keys[2]]),
        (Reach(0, 10**6, teams=()), []),
    ):
        assert sorted(used for _, used in store.ledger.usage(reach)) == sorted(expected)
        assert [used for used in keys if reach.covers(used)] == expected
    assert [name for _, name in store.ledger.teams(Reach(0, 10**6, teams=("a", "x")))] == ["a"]
