"""What a store promises: one suite, on a SQLite file and on a real PostgreSQL server."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import text
from sqlalchemy.exc import DatabaseError

from scheduler_bridge.model.phases import Phase
from scheduler_bridge.model.workload import Event, Lease, LeaseId, Pause, Workload, WorkloadId
from scheduler_bridge.store import opening
from scheduler_bridge.store.base import (
    Batch,
    LeaseRecord,
    StateLocked,
    StateTooNew,
    Store,
    StoreError,
)
from scheduler_bridge.store.opening import WriterLock, migrations, open_database
from scheduler_bridge.store.tables import METADATA
from tests.builders.databases import Database, PostgresDatabase, SqliteDatabase, beside
from tests.builders.scheduler import one_node, session, snapshot

SCRIPTS = ScriptDirectory(str(Path(opening.__file__).parent / "migrations"))
STEPS = [
    (str(script.revision), str(script.down_revision))
    for script in SCRIPTS.walk_revisions()
    if script.down_revision
]


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    if request.param == "sqlite":
        return SqliteDatabase(tmp_path)
    return PostgresDatabase(request.getfixturevalue("postgres").database())


@pytest.fixture
def store(database: Database) -> Iterator[Store]:
    with closing(database.open()) as opened:
        yield opened


def workload(name: str = "s-1", key: str = "k", phase: Phase = Phase.QUEUED) -> Workload:
    return Workload(
        WorkloadId(name), key, session(), phase, phase_since=1.0, created_at=1.0, version=1
    )


def lease(name: str = "l-1", owner: str = "s-1", gpu: int = 0, epoch: int = 1) -> LeaseRecord:
    gpus = (one_node(4)[0].gpus[gpu],)
    return LeaseRecord(Lease(LeaseId(name), WorkloadId(owner), epoch, "here", gpus, 1.0, 9.0))


def event(kind: str = "phase") -> Event:
    return Event(0, 1.0, "s-1", kind, "because", "me", "alice", "a", "b", {"n": 1})


def test_what_was_written_is_loaded(store: Store, database: Database) -> None:
    record = lease()
    written = replace(
        workload(phase=Phase.RUNNING), epoch=1, snapshot=snapshot(), signals={"cpu": 0.5}
    )
    pause = Pause("all", 9.0, "demo", "root", 1.0)
    (first,) = store.write(
        Batch((written,), (record,), (event(),), pauses=(pause,), earmarks={"g": "j-1"})
    )
    store.close()
    with closing(database.open()) as again:
        loaded = again.load()
        assert loaded.workloads == (replace(written, lease=record.lease),)
        assert loaded.leases == (record,)
        assert loaded.pauses == (pause,)
        assert loaded.earmarks == {"g": "j-1"}
        assert again.history("s-1") == (replace(event(), id=first.id),)
        assert again.last_event_id() >= first.id


def test_a_live_key_exists_once_and_is_free_at_the_end(store: Store) -> None:
    store.write(Batch((workload(),)))
    with pytest.raises(StoreError):
        store.write(Batch((workload("s-2"),)))
    store.write(Batch((workload(phase=Phase.STOPPED),)))
    store.write(Batch((workload("s-2"),)))
    assert [w.id for w in store.load().workloads] == ["s-2"]
    assert [w.id for w in store.workloads(kind=None, user=None, limit=9)] == ["s-1", "s-2"]


def test_a_key_changes_hands_within_one_batch(store: Store) -> None:
    store.write(Batch((workload(), workload("s-3", "other"))))
    moved = replace(workload("s-3", "other"), version=2)
    store.write(Batch((workload("s-2"), moved, workload(phase=Phase.STOPPED))))
    assert [w.id for w in store.load().workloads] == ["s-3", "s-2"]
    stored = store.workload("s-3")
    assert stored is not None and stored.version == 2


def test_many_records_of_one_batch_keep_their_order(store: Store) -> None:
    """More than a database takes in one statement."""
    names = [f"s-{number}" for number in range(1500)]
    events = tuple(replace(event(), workload_id=name) for name in names)
    written = store.write(Batch(tuple(workload(name, name) for name in names), events=events))
    assert [e.workload_id for e in written] == names
    assert [e.id for e in written] == sorted({e.id for e in written})
    assert store.events(after=written[0].id - 1, limit=9999) == written
    assert [w.id for w in store.load().workloads] == names


def test_a_gpu_is_never_leased_twice(store: Store) -> None:
    store.write(Batch(leases=(lease(),)))
    with pytest.raises(StoreError):
        store.write(Batch(leases=(lease("l-2", "s-2"),)))
    store.write(Batch(leases=(replace(lease(), released_at=2.0), lease("l-2", "s-2"))))
    assert [r.lease.id for r in store.load().leases] == ["l-2"]
    released = store.lease("l-1")
    assert released is not None and released.released_at == 2.0


def test_a_batch_is_written_whole_or_not_at_all(store: Store) -> None:
    store.write(Batch(leases=(lease(),)))
    before = store.last_event_id()
    with pytest.raises(StoreError):
        store.write(Batch((workload(),), (lease("l-2", "s-2"),), (event(),)))
    assert store.load().workloads == ()
    assert store.last_event_id() == before


def test_event_ids_grow_and_are_never_used_again(store: Store) -> None:
    before = store.last_event_id()
    first = store.write(Batch(events=(event("a"), event("b"))))
    (third,) = store.write(Batch(events=(event("c"),)))
    ids = [before, *(e.id for e in first), third.id]
    assert ids == sorted(set(ids)) and store.last_event_id() == third.id
    assert [e.kind for e in store.events(after=first[0].id, limit=1)] == ["b"]
    assert [e.kind for e in store.history("s-1")] == ["a", "b", "c"]
    assert store.history("s-2") == ()


@pytest.mark.parametrize("statement", ["DELETE FROM events", "UPDATE events SET cause = ''"])
def test_events_can_only_be_added(store: Store, database: Database, statement: str) -> None:
    store.write(Batch(events=(event(),)))
    with pytest.raises(DatabaseError, match="append-only"), beside(database) as connection:
        connection.execute(text(statement))
    assert [e.cause for e in store.history("s-1")] == ["because"]


def test_what_comes_from_outside_is_stored_as_far_as_it_can_be(store: Store) -> None:
    """Team names are longer than phases; a supervisor's words and numbers may be anything."""
    odd = replace(event(), cause="a\0b\ud800", source="t" * 128, actor="u" * 255)
    odd = replace(
        odd, evidence={"nan": math.nan, "deep": [{"inf": -math.inf}], "nul": "\0", "n": 1}
    )
    store.write(Batch(events=(odd,)))
    (stored,) = store.history("s-1")
    assert (stored.cause, stored.source) == ("a\ufffdb?", odd.source)
    assert stored.evidence == {"nan": None, "deep": [{"inf": None}], "nul": "\0", "n": 1}


def test_a_refusal_says_nothing_of_what_was_to_be_stored(store: Store) -> None:
    secret = replace(session(), environment={"KEY": "hidden"})
    store.write(Batch((replace(workload(), spec=secret),)))
    with pytest.raises(StoreError) as caught:
        store.write(Batch((replace(workload("s-2"), spec=secret),)))
    assert "hidden" not in str(caught.value)


def test_migrations_make_exactly_the_tables_of_the_code(store: Store, database: Database) -> None:
    with beside(database) as connection:
        assert compare_metadata(MigrationContext.configure(connection), METADATA) == []


def test_the_known_revisions_are_those_of_the_migrations() -> None:
    assert SCRIPTS.get_heads() == [opening.HEAD]
    assert {script.revision for script in SCRIPTS.walk_revisions()} == opening.KNOWN


@pytest.mark.parametrize(("revision", "before"), STEPS)
def test_a_migration_goes_up_and_down_and_keeps_what_lives(
    database: Database, revision: str, before: str
) -> None:
    with closing(database.open()) as store:
        store.write(Batch((workload(),), events=(event(),)))
    with beside(database) as connection:
        command.downgrade(migrations(connection), before)
    with beside(database) as connection:
        command.upgrade(migrations(connection), revision)
        command.downgrade(migrations(connection), before)
    with closing(database.open()) as store:
        assert store.load().workloads == (workload(),)
        assert [e.kind for e in store.history("s-1")] == ["phase"]
    with beside(database) as connection:
        assert compare_metadata(MigrationContext.configure(connection), METADATA) == []


def test_a_state_of_a_newer_version_is_refused_and_not_touched(
    store: Store, database: Database
) -> None:
    store.write(Batch((workload(),)))
    store.close()
    with beside(database) as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    before = database.state()
    with pytest.raises(StateTooNew, match="9999"):
        database.open()
    assert database.state() == before


def test_a_state_that_cannot_be_opened_is_left_closed(database: Database) -> None:
    with beside(database) as connection:
        connection.execute(text("CREATE TABLE workloads (something TEXT)"))
    with pytest.raises(StoreError, match=r"workloads.* already exists") as caught:
        database.open()
    # the traceback keeps everything alive that was not closed
    assert caught.tb is not None
    if isinstance(database, SqliteDatabase):
        assert not [name for name in open_files() if name.startswith(str(database.folder))]
    with beside(database) as connection:
        connection.execute(text("DROP TABLE workloads"))
    with database.writer():
        pass


def open_files() -> list[str]:
    """What this process has open."""
    folder = Path("/proc/self/fd")
    return [str(link.readlink()) for link in folder.iterdir() if link.is_symlink()]


def test_a_second_writer_is_told_who_the_first_is(database: Database) -> None:
    with database.writer() as first:
        with pytest.raises(StateLocked, match=database.me), database.writer():
            pass
        first.write(Batch((workload(),)))
    with database.writer() as second:
        assert second.load().workloads == (workload(),)


def test_the_lock_of_a_file_may_be_released_twice(tmp_path: Path) -> None:
    first = WriterLock(tmp_path / "lock")
    first.release()
    first.release()
    WriterLock(tmp_path / "lock").release()


def test_sqlite_runs_in_wal_mode(tmp_path: Path) -> None:
    with closing(SqliteDatabase(tmp_path).open()):
        connection = sqlite3.connect(tmp_path / "scheduler.sqlite")
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        connection.close()


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("mysql://here/db", "database_url: mysql is not supported"),
        ("postgresql+pg8000://here/db", "pg8000"),
        ("postgresql://me:secret@here/db", "database_password_file"),
        ("nonsense", "database_url cannot be opened"),
    ],
)
def test_a_wrong_url_is_refused_with_the_remedy(url: str, named: str) -> None:
    with pytest.raises(StoreError, match=named.replace("+", r"\+")) as caught:
        open_database(url)
    assert "secret" not in str(caught.value)
