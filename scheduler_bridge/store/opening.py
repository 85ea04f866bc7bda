"""Opens a database: one writer, nothing newer touched, schema brought up to date.

The writer of a SQLite file holds `WriterLock`, that of a PostgreSQL database `postgres.Writer`.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import URL, Connection, Engine, create_engine, event, inspect, make_url, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import StaticPool

from scheduler_bridge.model.workload import Event
from scheduler_bridge.store.base import Batch, StateLocked, StateTooNew, StoreError
from scheduler_bridge.store.errors import in_words
from scheduler_bridge.store.json_text import json_text
from scheduler_bridge.store.sql import SqlStore
from scheduler_bridge.store.tables import METADATA

if TYPE_CHECKING:
    from alembic.config import Config

HEAD: Final = "0006"
KNOWN: Final = frozenset({"0001", "0002", "0003", "0004", "0005", HEAD})
"""Schema revisions of this version; `migrations/versions` has a file for each."""


class WriterLock:
    """An exclusive lock on a file, held until `release` or the end of the process."""

    def __init__(self, path: Path) -> None:
        self._descriptor: int | None = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            owner = os.read(self._descriptor, 32).decode(errors="replace").strip()
            os.close(self._descriptor)
            raise StateLocked(
                f"Another scheduler (PID {owner or 'unknown'}) owns {path}. "
                "End it first, or use another state folder."
            ) from error
        os.ftruncate(self._descriptor, 0)
        os.write(self._descriptor, f"{os.getpid()}\n".encode())

    def release(self) -> None:
        """Give the lock back. May be called twice."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def open_memory() -> SqlStore:
    """A store that ends with the process."""
    engine = create_engine(
        "sqlite://",
        poolclass=StaticPool,
        connect_args={"check_same_thread": False},
        json_serializer=json_text,
    )
    _prepare(engine)
    METADATA.create_all(engine)
    store = SqlStore(engine)
    # Its connection must be closed, not dropped, also when nobody closes the store.
    weakref.finalize(store, engine.dispose)
    return store


def open_database(
    url: str,
    *,
    password_file: str = "",
    on_lost: Callable[[str], object] = lambda _words: None,
) -> SqlStore:
    """The store at a SQLAlchemy URL. Take a `WriterLock` first if it is SQLite.

    PostgreSQL only: `password_file` is read at each connection; `on_lost` is called once, with words,
    when another scheduler has taken over, or memory cannot be trusted any more: the program must end.
    Raises `StateTooNew`, `StateLocked`, `StoreError`.
    """
    try:
        parsed = make_url(url)
        if parsed.get_backend_name() == "sqlite":
            return _open_file(parsed)
        return _open_server(parsed, password_file, on_lost)
    except SQLAlchemyError as error:
        raise StoreError(f"{_shown(url)} cannot be opened: {in_words(error)}") from error


def _open_file(url: URL) -> SqlStore:
    if url.database:
        _refuse_newer(_revision_of_file(Path(url.database)), url)
    engine = create_engine(url, json_serializer=json_text, hide_parameters=True)
    _prepare(engine)
    _bring_up_to_date(engine)
    return SqlStore(engine)


def _open_server(url: URL, password_file: str, on_lost: Callable[[str], object]) -> SqlStore:
    # imported here: the driver costs a part of the start that SQLite does not need
    from scheduler_bridge.store.postgres import connect, refuse_other_than_postgres
    from scheduler_bridge.store.writer import Writer

    refuse_other_than_postgres(url)
    writer = Writer(_shown(url), on_lost)
    engine = connect(url, password_file, writer)
    _bring_up_to_date(engine)
    store = SqlStore(engine, writer.wrote)
    # whoever was the writer before sees by this that it is not any more
    store.write(Batch(events=(_event("writer", "a scheduler began to write here", writer.name),)))
    return store


def _event(kind: str, cause: str, holder: str) -> Event:
    return Event(0, time.time(), "", kind, cause, "scheduler", "", "", "", {"holder": holder})


def _shown(url: str | URL) -> str:
    try:
        return make_url(url).render_as_string(hide_password=True)
    except SQLAlchemyError:
        return "database_url"


def _bring_up_to_date(engine: Engine) -> None:
    """Releases the engine if it fails."""
    try:
        revision = _revision(engine)
        _refuse_newer(revision, engine.url)
        if revision != HEAD:
            _migrate(engine)
    except BaseException:
        engine.dispose()
        raise


def _prepare(engine: Engine) -> None:
    @event.listens_for(engine, "connect")
    def _pragmas(connection: Any, _record: Any) -> None:
        cursor = connection.cursor()
        cursor.execute("PRAGMA journal_mode=WAL")
        cursor.execute("PRAGMA synchronous=FULL")
        cursor.execute("PRAGMA foreign_keys=ON")
        cursor.execute("PRAGMA busy_timeout=5000")
        cursor.close()


def _revision_of_file(path: Path) -> str | None:
    """The schema revision, read without changing a byte (a normal open may write a WAL back)."""
    if not path.exists() or path.stat().st_size == 0:
        return None
    connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
    try:
        row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    except sqlite3.OperationalError:
        return None
    finally:
        connection.close()
    return None if row is None else str(row[0])


def _revision(engine: Engine) -> str | None:
    with engine.connect() as connection:
        if not inspect(connection).has_table("alembic_version"):
            return None
        return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()


def _refuse_newer(revision: str | None, url: URL) -> None:
    if revision is not None and revision not in KNOWN:
        raise StateTooNew(
            f"The state in {_shown(url)} has schema {revision}, which this version does not know "
            f"(it knows up to {HEAD}). It was not touched. Use the version that wrote it, or newer."
        )


def _migrate(engine: Engine) -> None:
    # imported here: alembic costs a third of the start, and is needed once per version
    from alembic import command

    with engine.begin() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SET LOCAL statement_timeout = 0"))
        command.upgrade(migrations(connection), "head")


def migrations(connection: Connection) -> Config:
    """What Alembic's commands need, to work on this connection."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.attributes["connection"] = connection
    return config
