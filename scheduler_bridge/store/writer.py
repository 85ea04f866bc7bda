"""The one writer of a PostgreSQL database.

The lock of the one writer belongs to the very connection that writes: when the connection is lost, the
lock is too, and nothing can be written without having it again.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable
from typing import Any, Final

from psycopg import Connection, Cursor
from psycopg.errors import LockNotAvailable

from scheduler_bridge.store.base import StateLocked, StateMoved

LOCK_KEY: Final = int.from_bytes(b"hubern")
"""The advisory lock, one per database."""

LOCK_WAIT_MILLISECONDS: Final = 1000
"""A writer that was just killed still holds the lock for a moment."""

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
