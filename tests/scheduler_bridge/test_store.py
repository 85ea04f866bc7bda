"""What the SQL store promises, on files as `open_database` makes them."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, text
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
from scheduler_bridge.store.opening import WriterLock, open_database
from scheduler_bridge.store.tables import METADATA
from tests.builders.scheduler import one_node, session, snapshot


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/scheduler.sqlite"


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    opened = open_database(url)
    yield opened
    opened.close()


def workload(name: str = "s-1", key: str = "k", phase: Phase = Phase.QUEUED) -> Workload:
    return Workload(
        WorkloadId(name), key, session(), phase, phase_since=1.0, created_at=1.0, version=1
    )


def lease(name: str = "l-1", owner: str = "s-1", gpu: int = 0, epoch: int = 1) -> LeaseRecord:
    gpus = (one_node(4)[0].gpus[gpu],)
    return LeaseRecord(Lease(LeaseId(name), WorkloadId(owner), epoch, "here", gpus, 1.0, 9.0))


def event(kind: str = "phase") -> Event:
    return Event(0, 1.0, "s-1", kind, "because", "me", "alice", "a", "b", {"n": 1})


def test_what_was_written_is_loaded(store: Store, url: str) -> None:
    record = lease()
    written = replace(
        workload(phase=Phase.RUNNING), epoch=1, snapshot=snapshot(), signals={"cpu": 0.5}
    )
    pause = Pause("all", 9.0, "demo", "root", 1.0)
    (first,) = store.write(
        Batch((written,), (record,), (event(),), pauses=(pause,), earmarks={"g": "j-1"})
    )
    store.close()
    again = open_database(url)
    loaded = again.load()
    assert loaded.workloads == (replace(written, lease=record.lease),)
    assert loaded.leases == (record,)
    assert loaded.pauses == (pause,)
    assert loaded.earmarks == {"g": "j-1"}
    assert again.events(after=0, limit=9) == (replace(event(), id=first.id),)
    assert again.last_event_id() == first.id
    again.close()


def test_a_live_key_exists_once_and_is_free_at_the_end(store: Store) -> None:
    store.write(Batch((workload(),)))
    with pytest.raises(StoreError):
        store.write(Batch((workload("s-2"),)))
    store.write(Batch((workload(phase=Phase.STOPPED),)))
    store.write(Batch((workload("s-2"),)))
    assert [w.id for w in store.load().workloads] == ["s-2"]
    assert [w.id for w in store.workloads(kind=None, user=None, limit=9)] == ["s-1", "s-2"]


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
    with pytest.raises(StoreError):
        store.write(Batch((workload(),), (lease("l-2", "s-2"),), (event(),)))
    assert store.load().workloads == ()
    assert store.last_event_id() == 0


def test_event_ids_grow_and_are_never_used_again(store: Store) -> None:
    first = store.write(Batch(events=(event("a"), event("b"))))
    (third,) = store.write(Batch(events=(event("c"),)))
    assert [e.id for e in first] + [third.id] == [1, 2, 3]
    assert [e.kind for e in store.events(after=1, limit=1)] == ["b"]
    assert [e.kind for e in store.history("s-1")] == ["a", "b", "c"]
    assert store.history("s-2") == ()


@pytest.mark.parametrize("statement", ["DELETE FROM events", "UPDATE events SET cause = ''"])
def test_events_can_only_be_added(store: Store, url: str, statement: str) -> None:
    store.write(Batch(events=(event(),)))
    engine = create_engine(url)
    with pytest.raises(DatabaseError, match="append-only"), engine.begin() as connection:
        connection.execute(text(statement))
    engine.dispose()


def test_sqlite_runs_in_wal_mode(store: Store, tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "scheduler.sqlite")
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()


def test_migrations_make_exactly_the_tables_of_the_code(store: Store, url: str) -> None:
    engine = create_engine(url)
    with engine.connect() as connection:
        difference = compare_metadata(MigrationContext.configure(connection), METADATA)
    engine.dispose()
    assert difference == []


def test_the_known_revisions_are_those_of_the_migrations() -> None:
    scripts = ScriptDirectory(str(Path(opening.__file__).parent / "migrations"))
    assert scripts.get_heads() == [opening.HEAD]
    assert {script.revision for script in scripts.walk_revisions()} == opening.KNOWN


def test_a_state_of_a_newer_version_is_refused_and_not_touched(
    store: Store, url: str, tmp_path: Path
) -> None:
    store.write(Batch((workload(),)))
    store.close()
    path = tmp_path / "scheduler.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.commit()
    connection.close()
    before = path.read_bytes()
    with pytest.raises(StateTooNew, match="9999"):
        open_database(url)
    assert path.read_bytes() == before


def test_a_state_that_cannot_be_opened_is_left_closed(url: str, tmp_path: Path) -> None:
    path = tmp_path / "scheduler.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE workloads (something TEXT)")
    connection.close()
    with pytest.raises(DatabaseError) as caught:
        open_database(url)
    # the traceback keeps everything alive that was not closed
    assert caught.tb is not None and str(path) not in open_files()


def open_files() -> list[str]:
    """What this process has open."""
    folder = Path("/proc/self/fd")
    return [str(link.readlink()) for link in folder.iterdir() if link.is_symlink()]


def test_a_second_writer_is_told_who_the_first_is(tmp_path: Path) -> None:
    first = WriterLock(tmp_path / "lock")
    with pytest.raises(StateLocked, match=f"PID {os.getpid()}"):
        WriterLock(tmp_path / "lock")
    first.release()
    first.release()
    WriterLock(tmp_path / "lock").release()
