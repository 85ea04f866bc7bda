"""Connections to PostgreSQL: where to, with which password, and how long anything may wait."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import psycopg
from sqlalchemy import URL, Engine, create_engine, event

from scheduler_bridge.store.base import StoreError
from scheduler_bridge.store.json_text import json_text
from scheduler_bridge.store.writer import Writer

SLOW_SECONDS: Final = 1.0
LEFT_ALONE_SECONDS: Final = 10.0

_DRIVER: Final = "postgresql+psycopg"
_NAMES: Final = frozenset({"postgresql", "postgres", _DRIVER})
_CONNECT: Final[dict[str, Any]] = {
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}


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
    event.listen(engine, "do_connect", Door(password_file, time.monotonic).pass_through)
    event.listen(engine, "connect", writer.admit)
    return engine


class Door:
    """Makes connections. A server that was waited for in vain is left alone for a while: nothing else
    happens in this process meanwhile, and holders have to be answered, which needs no database."""

    def __init__(self, password_file: str, monotonic: Callable[[], float]) -> None:
        self._password_file, self._monotonic = password_file, monotonic
        self._closed_until, self._why = 0.0, ""

    def pass_through(
        self, dialect: Any, _record: object, arguments: list[Any], parameters: dict[str, Any]
    ) -> Any:
        """A new connection. Raises `StoreError` at once where another try would be too soon."""
        began = self._monotonic()
        if began < self._closed_until:
            raise StoreError(f"The scheduler's database does not answer: {self._why}")
        if self._password_file:
            # read at each connection, so that it can be replaced while we run
            parameters["password"] = read_password(Path(self._password_file))
        try:
            return dialect.connect(*arguments, **parameters)
        except psycopg.Error as error:
            now = self._monotonic()
            if now - began >= SLOW_SECONDS:
                self._closed_until = now + LEFT_ALONE_SECONDS
                self._why = f"{str(error).splitlines()[0]}; it is tried again in some seconds"
            raise


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
