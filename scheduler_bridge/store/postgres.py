"""PostgreSQL beyond its SQL: the one writer, the password, and how long anything may wait.

The lock of the one writer belongs to the very connection that writes: when the connection is lost, the
lock is too, and nothing can be written without having it again.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol

from psycopg import Connection, Cursor
from psycopg.errors import LockNotAvailable
from sqlalchemy import URL, Engine, create_engine, event

from scheduler_bridge.store.base import StateLocked, StateMoved, StoreError
from scheduler_bridge.store.json_text import json_text

LOCK_KEY: Final = int.from_bytes(b"hubern")
"""The advisory lock, one per database."""

LOCK_WAIT_MILLISECONDS: Final = 1000
"""A writer that was just killed still holds the lock for a moment."""

_DRIVER: Final = "postgresql+psycopg"
_NAMES: Final = frozenset({"postgresql", "postgres", _DRIVER})
_CONNECT: Final[dict[str, Any]] = {
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}
_SESSION: Final = {
    "lock_timeout": f"{LOCK_WAIT_MILLISECONDS}ms",
    "statement_timeout": "30s",
    # the server's view of a machine that vanished: its lock is free after a minute
    "tcp_keepalives_idle": "30",
    "tcp_keepalives_interval": "10",
    "tcp_keepalives_count": "3",
}
_HOLDER: Final = """
    SELECT a.pid, a.application_name, host(a.client_addr)
    FROM pg_locks l JOIN pg_stat_activity a USING (pid)
    WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
      AND (l.classid::bigint << 32) | l.objid::bigint = %s
      AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


class Writer:
    """The right to write, claimed anew by every new connection of the store's only one.

    After a lost connection the newest event must be the one that we wrote last: otherwise another
    scheduler wrote meanwhile, or our last write was done and its answer lost. In both cases memory is
    no longer what the database holds; `on_lost` hears it once, and every later use is refused.
    """

    def __init__(self, shown: str, on_lost: Callable[[str], object]) -> None:
        self.name = f"hubernate {socket.gethostname()[:30]} {os.getpid()} {secrets.token_hex(4)}"
        self._shown, self._on_lost = shown, on_lost
        self._last_event: int | None = None
        self._lost = ""

    def wrote(self, event_id: int) -> None:
        """This is now the newest event."""
        self._last_event = event_id

    def admit(self, connection: Connection[Any], _record: object) -> None:
        """Make a new connection the writer's. Raises `StateLocked`, `StateMoved`."""
        try:
            if self._lost:
                raise StateMoved(self._lost)
            with connection.cursor() as cursor:
                for name, value in _SESSION.items():
                    cursor.execute("SELECT set_config(%s, %s, false)", (name, value))
                # what is set, and the lock, outlive the transaction
                connection.commit()
                self._claim(connection, cursor)
                self._compare(cursor)
            connection.commit()
        except BaseException:
            connection.close()
            raise

    def _claim(self, connection: Connection[Any], cursor: Cursor[Any]) -> None:
        for _ in range(3):
            try:
                cursor.execute("SELECT pg_advisory_lock(%s)", (LOCK_KEY,))
            except LockNotAvailable:
                connection.rollback()
                self._make_room(cursor)
            else:
                return
        raise StateLocked(f"The lock on {self._shown} could not be had. Try again.")

    def _make_room(self, cursor: Cursor[Any]) -> None:
        """End a connection of our own that the server takes for alive; anybody else's is respected."""
        holder = cursor.execute(_HOLDER, (LOCK_KEY,)).fetchone()
        if holder is None:
            return
        pid, name, address = holder
        if name == self.name:
            cursor.execute("SELECT pg_terminate_backend(%s)", (pid,))
            return
        words = (
            f"Another scheduler ({name or 'unknown'}, from {address or 'the same machine'}) owns "
            f"{self._shown}. End it first, or use another database."
        )
        if self._last_event is not None:
            self._lose(words)
        raise StateLocked(words)

    def _compare(self, cursor: Cursor[Any]) -> None:
        if self._last_event is None:
            return
        row = cursor.execute("SELECT coalesce(max(id), 0) FROM events").fetchone()
        if row is None or row[0] != self._last_event:
            self._lose(
                f"While the connection to {self._shown} was lost, its state moved on: another "
                "scheduler wrote, or the answer to our last write was lost. Start this one again."
            )
            raise StateMoved(self._lost)

    def _lose(self, words: str) -> None:
        self._lost = words
        self._on_lost(words)


def refuse_other_than_postgres(url: URL) -> None:
    """Raises `StoreError` for a URL that names something else, or says what it must not."""
    if url.drivername not in _NAMES:
        raise StoreError(
            f"database_url: {url.drivername} is not supported. "
            "Use sqlite:///FILE or postgresql://USER@HOST/DATABASE."
        )
    if url.password is not None:
        raise StoreError(
            "database_url: must not hold a password, others would see it. Put it into a file, and name "
            "that in database_password_file; or set PGPASSWORD in the scheduler's environment."
        )


def connect(url: URL, password_file: str, writer: Writer) -> Engine:
    """An engine with one connection, which is `writer`'s."""
    engine = create_engine(
        url.set(drivername=_DRIVER),
        pool_size=1,
        max_overflow=0,
        # a server that was restarted meanwhile is noticed before anything is lost on it
        pool_pre_ping=True,
        hide_parameters=True,
        json_serializer=json_text,
        connect_args={k: v for k, v in _CONNECT.items() if k not in url.query}
        | {"application_name": writer.name},
    )
    if password_file:
        event.listen(engine, "do_connect", _password_from(Path(password_file)))
    event.listen(engine, "connect", writer.admit)
    return engine


class _DoConnect(Protocol):
    def __call__(
        self, dialect: object, record: object, arguments: object, parameters: dict[str, Any]
    ) -> None: ...


def _password_from(path: Path) -> _DoConnect:
    def add(dialect: object, record: object, arguments: object, parameters: dict[str, Any]) -> None:
        # read at each connection, so that it can be replaced while we run
        parameters["password"] = read_password(path)

    return add


def read_password(path: Path) -> str:
    """The file's first line. Raises `StoreError`, which never holds the password."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise StoreError(
            f"database_password_file: {path} cannot be read: {reason}. Name a file that holds "
            "nothing but the password."
        ) from error
    if not lines or not lines[0]:
        raise StoreError(f"database_password_file: {path} is empty. Put the password into it.")
    return lines[0]
