"""Opens a database: one writer, nothing newer touched, schema brought up to date."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import weakref
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Engine, create_engine, event, inspect, make_url, text
from sqlalchemy.pool import StaticPool

from scheduler_bridge.store.base import StateLocked, StateTooNew
from scheduler_bridge.store.sql import SqlStore
from scheduler_bridge.store.tables import METADATA

HEAD: Final = "0001"
KNOWN: Final = frozenset({HEAD})
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
        "sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False}
    )
    _prepare(engine)
    METADATA.create_all(engine)
    store = SqlStore(engine)
    # Its connection must be closed, not dropped, also when nobody closes the store.
    weakref.finalize(store, engine.dispose)
    return store


def open_database(url: str) -> SqlStore:
    """The store at a SQLAlchemy URL. Take a `WriterLock` first. Raises `StateTooNew`."""
    parsed = make_url(url)
    if parsed.get_backend_name() == "sqlite" and parsed.database:
        _refuse_newer(_revision_of_file(Path(parsed.database)), url)
    engine = create_engine(parsed)
    try:
        if parsed.get_backend_name() == "sqlite":
            _prepare(engine)
        revision = _revision(engine)
        _refuse_newer(revision, url)
        if revision != HEAD:
            _migrate(engine)
    except BaseException:
        engine.dispose()
        raise
    return SqlStore(engine)


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


def _refuse_newer(revision: str | None, url: str) -> None:
    if revision is not None and revision not in KNOWN:
        shown = make_url(url).render_as_string(hide_password=True)
        raise StateTooNew(
            f"The state in {shown} has schema {revision}, which this version does not know "
            f"(it knows up to {HEAD}). It was not touched. Use the version that wrote it, or newer."
        )


def _migrate(engine: Engine) -> None:
    # imported here: alembic costs a third of the start, and is needed once per version
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
