"""Databases of both kinds, as a contract's tests open, look into and damage them."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from sqlalchemy import Connection, create_engine, make_url, text
from sqlalchemy.pool import NullPool

from scheduler_bridge.store.opening import WriterLock, open_database

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scheduler_bridge.store.sql import SqlStore


class Database(Protocol):
    """A database in its place, empty at first."""

    @property
    def url(self) -> str:
        """As an operator configures it."""
        ...

    def open(self) -> SqlStore:
        """Its store. Close one before the next is opened."""
        ...

    def writer(self) -> AbstractContextManager[SqlStore]:
        """The store as the program opens it: as the one writer."""
        ...

    @property
    def me(self) -> str:
        """How a second writer is told who the first is."""
        ...

    def state(self) -> object:
        """All that it holds; equal only if nothing was changed."""
        ...


@contextmanager
def beside(database: Database) -> Iterator[Connection]:
    """A connection that is not the store's; commits at the end."""
    url = make_url(database.url)
    if url.get_backend_name() == "postgresql":
        url = url.set(drivername="postgresql+psycopg")
    engine = create_engine(url, poolclass=NullPool)
    try:
        with engine.begin() as connection:
            yield connection
    finally:
        engine.dispose()


@dataclass
class SqliteDatabase:
    """A file."""

    folder: Path

    @property
    def url(self) -> str:
        return f"sqlite:///{self.folder}/scheduler.sqlite"

    def open(self) -> SqlStore:
        return open_database(self.url)

    @property
    def me(self) -> str:
        return f"PID {os.getpid()}"

    def state(self) -> object:
        return (self.folder / "scheduler.sqlite").read_bytes()

    @contextmanager
    def writer(self) -> Iterator[SqlStore]:
        lock = WriterLock(self.folder / "scheduler.sqlite.lock")
        with closing(self.open()) as store:
            yield store
        lock.release()


@dataclass
class PostgresDatabase:
    """A database of the server that the tests share."""

    url: str

    def open(self) -> SqlStore:
        return open_database(self.url)

    def writer(self) -> AbstractContextManager[SqlStore]:
        return closing(self.open())

    @property
    def me(self) -> str:
        return f"hubernate .* {os.getpid()} "

    def state(self) -> list[Any]:
        with beside(self) as connection:
            names = connection.execute(
                text("SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY 1")
            ).scalars()
            return [
                (name, sorted(map(repr, connection.execute(text(f'SELECT * FROM "{name}"')))))
                for name in list(names)
            ]
