"""The contract of object stores. `tests/contracts/test_store.py` runs it on every implementation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NewType, Protocol

Data = bytes | bytearray | memoryview
Size = NewType("Size", int)


@dataclass(frozen=True, slots=True)
class Entry:
    """One object in a listing. `modified` is the store's own clock, in UNIX seconds."""

    key: str
    size: Size
    modified: float


class Store(Protocol):
    """A flat map from keys to immutable bytes. Safe to use from many threads at once.

    Keys are `/`-separated names of `A-Z a-z 0-9 . _ = ~ -`, none of them empty, `.` or `..`; anything
    else raises `ValueError` before the store is asked. A key is never the beginning of another one's
    folders (`a` and `a/b`): some stores are file systems.

    Atomic: a reader sees the whole object of one `put`, or none; a `put` that failed may have
    happened (`StoreUnavailableError`) but never in part. Durable: when `put` returns, the object
    survives a crash as far as the store promises that at all. Consistent: what `put` or `delete`
    returned from is seen by every later `get`, `head` and `list`.

    Nothing is retried here: `stores.retry.RetryingStore` does that, around any store. Everything is
    idempotent but `put(if_absent=True)`, which may meet its own earlier, unacknowledged write.

    Every call ends within a bounded time. Raises `StoreUnavailableError` when it may help to try
    again, `StoreDeniedError` when not, `MissingError` and `AlreadyExistsError` as stated below.
    """

    @property
    def excludes(self) -> bool:
        """Whether `put(if_absent=True)` is exclusive between writers, found out by trying. Otherwise
        it only looks before it writes, and two writers at the same moment may both succeed."""
        ...

    def put(self, key: str, data: Data, *, if_absent: bool = False) -> None:
        """Write the object. Replaces an older one, or with `if_absent` raises
        `AlreadyExistsError` and leaves it."""
        ...

    def get(self, key: str, *, start: int | None = None, end: int | None = None) -> bytes:
        """The bytes of `[start, end)`. Reaching over the end gives what there is, also nothing.
        Raises `MissingError`, and `StoreUnavailableError` when fewer bytes came than announced."""
        ...

    def head(self, key: str) -> Size | None:
        """The object's size, or None if there is none."""
        ...

    def list(self, prefix: str) -> Iterator[Entry]:
        """All objects whose key begins with `prefix`, in the order of their keys."""
        ...

    def delete(self, key: str) -> None:
        """Remove it. No error if there is none."""
        ...

    def sweep(self, before: float) -> int:
        """Remove what writes that were broken off before that moment (UNIX seconds) left behind and
        no listing shows; how many there were."""
        ...


_ALLOWED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._=~-")


def check_key(key: str) -> str:
    """The key, if it keeps the rules of `Store`. Raises `ValueError`."""
    for name in key.split("/"):
        if not name or name in {".", ".."} or not _ALLOWED.issuperset(name):
            raise ValueError(f"not a key of an object: {key!r}")
    return key
