"""What PostgreSQL adds: a server that restarts, connections that break, a password."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import make_url, text
from sqlalchemy.exc import OperationalError

from scheduler_bridge.model.workload import Event
from scheduler_bridge.store.base import Batch, StateLocked, StateMoved, StoreError
from scheduler_bridge.store.opening import open_database
from scheduler_bridge.store.postgres import LEFT_ALONE_SECONDS, Door, connect
from scheduler_bridge.store.sql import SqlStore
from scheduler_bridge.store.writer import Writer
from tests.builders.databases import PostgresDatabase, beside
from tests.builders.postgres import PASSWORD, WITH_PASSWORD, PostgresServer
from tests.scheduler_bridge.test_store import event, workload


@pytest.fixture
def database(postgres: PostgresServer) -> PostgresDatabase:
    return PostgresDatabase(postgres.database())


@pytest.fixture
def lost() -> list[str]:
    return []


@pytest.fixture
def store(database: PostgresDatabase, lost: list[str]) -> Iterator[SqlStore]:
    with closing(open_database(database.url, on_lost=lost.append)) as opened:
        yield opened


def cut_off(database: PostgresDatabase) -> None:
    """End every connection to the database but our own; returns when they are gone."""
    with beside(database) as connection:
        ended = connection.execute(
            text(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        ).scalars()
        assert list(ended) == [True]


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_server_that_was_restarted_is_used_again(
    postgres: PostgresServer,
    store: SqlStore,
    database: PostgresDatabase,
    lost: list[str],
    mode: str,
) -> None:
    store.write(Batch((workload(),), events=(event(),)))
    postgres.stop(mode)
    try:
        with pytest.raises(StoreError, match="does not answer"):
            store.load()
        with pytest.raises(StoreError, match="refused a write"):
            store.write(Batch(events=(event("never"),)))
    finally:
        postgres.start()
    store.write(Batch(events=(event("after"),)))
    assert store.load().workloads == (workload(),)
    assert [e.kind for e in store.history("s-1")] == ["phase", "after"]
    with pytest.raises(StateLocked):
        database.open()
    assert lost == []


def test_a_connection_that_broke_is_replaced(
    store: SqlStore, database: PostgresDatabase, lost: list[str]
) -> None:
    for _ in range(2):
        cut_off(database)
        store.write(Batch(events=(event(),)))
    assert len(store.history("s-1")) == 2 and lost == []


def test_who_was_cut_off_while_another_took_over_writes_nothing_more(
    store: SqlStore, database: PostgresDatabase, lost: list[str]
) -> None:
    cut_off(database)
    with database.writer() as second:
        with pytest.raises(StateLocked, match=database.me):
            store.write(Batch((workload(),), events=(event(),)))
        assert second.load().workloads == ()
    for _ in range(2):
        with pytest.raises(StateMoved, match=database.me):
            store.write(Batch((workload(),)))
    assert len(lost) == 1
    with database.writer() as third:
        assert third.load().workloads == ()


def test_who_was_cut_off_sees_that_another_has_been_there(
    store: SqlStore, database: PostgresDatabase, lost: list[str]
) -> None:
    cut_off(database)
    with database.writer():
        pass
    with pytest.raises(StateMoved, match="Start this one again"):
        store.load()
    assert len(lost) == 1


def test_a_write_whose_answer_was_lost_is_not_taken_for_undone(
    store: SqlStore, database: PostgresDatabase, lost: list[str]
) -> None:
    """As the database holds it afterwards: an event that the writer does not know of."""
    with beside(database) as connection:
        connection.execute(
            text(
                'INSERT INTO events (at, workload_id, kind, cause, actor, "user", source, target, '
                "evidence) VALUES (1, 's-1', 'phase', '', '', '', '', '', '{}')"
            )
        )
    cut_off(database)
    with pytest.raises(StateMoved, match="answer to our last write was lost"):
        store.load()
    assert len(lost) == 1


def test_a_connection_of_our_own_that_the_server_takes_for_alive_is_ended(
    store: SqlStore, database: PostgresDatabase
) -> None:
    store.close()
    url, writer = make_url(database.url), Writer("here", lambda _words: None)
    first, second = (connect(url, "", writer) for _ in range(2))
    try:
        with first.connect() as forgotten:
            with second.connect() as used:
                assert used.execute(text("SELECT 1")).scalar() == 1
            with pytest.raises(OperationalError):
                forgotten.execute(text("SELECT 1"))
    finally:
        first.dispose()
        second.dispose()


class SilentServer:
    """Every try to connect takes its time and fails. Stands in for psycopg's dialect."""

    def __init__(self) -> None:
        self.tries = 0
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def connect(self, **parameters: object) -> None:
        self.tries += 1
        self.now += float(str(parameters["connect_timeout"]))
        raise psycopg.OperationalError("connection timeout expired")


@pytest.mark.parametrize(("seconds", "tries"), [(5, 1), (0, 3)])
def test_a_server_that_lets_us_wait_is_not_asked_again_at_once(seconds: int, tries: int) -> None:
    """One that refuses at once (it restarts) may be asked at any time."""
    server = SilentServer()
    door = Door("", server.monotonic)
    for _ in range(3):
        with pytest.raises((StoreError, psycopg.OperationalError), match="timeout expired"):
            door.pass_through(server, None, [], {"connect_timeout": seconds})
    assert server.tries == tries
    server.now += LEFT_ALONE_SECONDS
    with pytest.raises(psycopg.OperationalError):
        door.pass_through(server, None, [], {"connect_timeout": seconds})


def test_who_became_the_writer_is_an_event(store: SqlStore) -> None:
    (first,) = store.events(after=0, limit=9)
    assert isinstance(first, Event) and first.kind == "writer"
    assert str(first.evidence["holder"]).startswith("hubernate ")


# -- the password ------------------------------------------------------------------------------


@pytest.fixture
def kept_url(database: PostgresDatabase) -> str:
    url = make_url(database.url).set(username=WITH_PASSWORD)
    return url.render_as_string()


def test_the_password_comes_from_a_file_that_may_change(
    kept_url: str, database: PostgresDatabase, tmp_path: Path
) -> None:
    file = tmp_path / "password"
    file.write_text("wrong-one\n")
    with pytest.raises(StoreError, match="password authentication failed") as caught:
        open_database(kept_url, password_file=str(file))
    assert "wrong-one" not in str(caught.value)
    file.write_text(f"{PASSWORD}\n")
    with closing(open_database(kept_url, password_file=str(file))) as store:
        file.write_text("wrong-one\n")
        cut_off(database)
        with pytest.raises(StoreError, match="password authentication failed"):
            store.load()
        file.write_text(f"{PASSWORD}\n")
        assert store.load().workloads == ()


def test_the_password_comes_from_the_environment(
    kept_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StoreError, match="no password supplied"):
        open_database(kept_url)
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    with closing(open_database(kept_url)) as store:
        assert store.load().workloads == ()


@pytest.mark.parametrize(
    ("content", "named"), [(None, "No such file"), (b"", "empty"), (b"\xff", "text")]
)
def test_a_password_file_that_cannot_be_used_is_named(
    kept_url: str, tmp_path: Path, content: bytes | None, named: str
) -> None:
    file = tmp_path / "password"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(StoreError, match=f"database_password_file: {file} .*{named}"):
        open_database(kept_url, password_file=str(file))
