"""What freezing and thawing need of others: a repository to write to, somebody to tell steps to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from snapshot.model import SnapshotKey, Stored

OnStep = Callable[[str, float], None]
"""Told the name of each finished step and its seconds."""

Disconnect = Callable[[], Awaitable[None]]
"""Ends the sandbox's network, called once it is certain that the tree can be frozen."""


Runs = Sequence[tuple[int, int, int]]
"""(address, pages, target in bytes): pages of memory and where they belong in what is read into."""


class SnapshotWriter(Protocol):
    """A snapshot in the making. Blocking; adds may come from several threads."""

    def add_file(self, name: str, data: bytes) -> None:
        """Store a small file whole."""
        ...

    def add_pages(self, kind: str, id: int, vaddr: int, data: memoryview | bytes) -> None:
        """Store memory pages; addresses ascend per (kind, id). `data` is copied before this returns."""
        ...

    def commit(self, extra: dict[str, Any]) -> Stored:
        """Upload everything, the manifest last: from then on the snapshot exists."""
        ...

    def abort(self) -> None:
        """Give up. Nothing is left that counts as a snapshot."""
        ...


class Snapshot(Protocol):
    """A committed and authenticated snapshot. Blocking."""

    @property
    def facts(self) -> dict[str, Any]: ...

    @property
    def extra(self) -> dict[str, Any]: ...

    @property
    def memory_bytes(self) -> int: ...

    def file_names(self) -> tuple[str, ...]: ...

    def read_file(self, name: str) -> bytes: ...

    def read_files(self, names: Iterable[str]) -> dict[str, bytes]: ...

    def copy_spaces(self, wanted: Sequence[tuple[str, int, Runs, int]]) -> None:
        """Write pages of (kind, id, runs of (address, pages, file offset), fd) into each `fd`; zero
        pages stay holes."""
        ...


class Repository(Protocol):
    """Where snapshots are. Blocking."""

    def writer(
        self, key: SnapshotKey, facts: dict[str, Any]
    ) -> AbstractContextManager[SnapshotWriter]:
        """Begin a snapshot. Leaving the context without a commit aborts it."""
        ...

    def open(self, manifest_key: str) -> Snapshot:
        """Authenticate and open. Raises `TamperedError`, `MissingError` and their like."""
        ...
