"""What a store promises of change sets, on a SQLite file and on a real PostgreSQL server."""

from __future__ import annotations

from contextlib import closing

import pytest
from alembic import command
from sqlalchemy import text
from sqlalchemy.exc import DatabaseError

from scheduler_bridge.model.teams import TeamChange
from scheduler_bridge.model.workload import Priority
from scheduler_bridge.store.base import Batch, Store, StoreError
from scheduler_bridge.store.opening import migrations
from tests.builders.databases import Database, beside
from tests.builders.teams import change_set, team
from tests.scheduler_bridge.test_store import database, event, store, workload

__all__ = ["database", "store"]

FULL = team(
    "vision", "research",
    share_percent=100 / 3, limit=8, priority_limits={Priority.HIGH: 4, Priority.URGENT: 1},
    guaranteed=2, lending_limit=1, borrowing_limit=6, groups=("sehen", "vision"), users=("ü",),
    price_per_gpu_hour=2.5,
)  # fmt: skip
FIRST = change_set("t-1", TeamChange(None, team("research")), TeamChange(None, FULL))
SECOND = change_set("t-2", TeamChange(FULL, None), based_on="t-1", undoes="t-1")


def test_change_sets_are_loaded_whole_and_in_their_order(store: Store, database: Database) -> None:
    store.write(Batch(change_sets=(FIRST,)))
    store.write(Batch(change_sets=(SECOND,)))
    store.close()
    with closing(database.open()) as again:
        assert again.load().change_sets == (FIRST, SECOND)


@pytest.mark.parametrize(
    "second",
    [change_set("t-1", based_on="t-1"), change_set("t-2", based_on="")],
    ids=["its id", "what it is based on"],
)
def test_nothing_follows_the_same_change_set_twice(store: Store, second: object) -> None:
    store.write(Batch(change_sets=(FIRST,)))
    with pytest.raises(StoreError):
        store.write(Batch((workload(),), events=(event(),), change_sets=(second,)))  # type: ignore[arg-type]
    loaded = store.load()
    assert (loaded.change_sets, loaded.workloads) == ((FIRST,), ())


@pytest.mark.parametrize(
    "statement", ["DELETE FROM team_changes", "UPDATE team_changes SET id = ''"]
)
def test_what_was_changed_is_never_forgotten(
    store: Store, database: Database, statement: str
) -> None:
    store.write(Batch(change_sets=(FIRST,)))
    with pytest.raises(DatabaseError, match="append-only"), beside(database) as connection:
        connection.execute(text(statement))
    assert store.load().change_sets == (FIRST,)


def test_without_them_the_rest_of_the_state_is_still_there(database: Database) -> None:
    with closing(database.open()) as opened:
        opened.write(Batch((workload(),), change_sets=(FIRST,)))
    with beside(database) as connection:
        command.downgrade(migrations(connection), "0001")
    with closing(database.open()) as again:
        loaded = again.load()
        assert (loaded.workloads, loaded.change_sets) == ((workload(),), ())
