"""The database's errors in the words of the contract."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from scheduler_bridge.store.base import StoreError


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Raises `StoreError` for what the database raises; `what` says what it does."""
    try:
        yield
    except SQLAlchemyError as error:
        raise StoreError(f"The scheduler's database {what}: {in_words(error)}") from error


def in_words(error: SQLAlchemyError) -> str:
    """The driver's first line; those after it quote rows."""
    told = error.orig if isinstance(error, DBAPIError) and error.orig else error
    return next(iter(str(told).strip().splitlines()), type(told).__name__)
