"""Repositories named by how they fail in the middle of a suspend."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager
from typing import Any

from snapshot.errors import StoreUnavailableError
from snapshot.model import SnapshotKey, Stored
from snapshot.ports import Repository, Snapshot, SnapshotWriter


class _Wrapped:
    """A repository and a writer in one, doing what the real ones do."""

    def __init__(self, real: Repository) -> None:
        self.real = real
        self._writing: AbstractContextManager[SnapshotWriter] | None = None
        self._writer: SnapshotWriter | None = None

    def writer(self, key: SnapshotKey, facts: dict[str, Any]) -> AbstractContextManager[Any]:
        self._writing = self.real.writer(key, facts)
        return self

    def open(self, manifest_key: str) -> Snapshot:
        return self.real.open(manifest_key)

    def __enter__(self) -> Any:
        assert self._writing is not None
        self._writer = self._writing.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        assert self._writing is not None
        self._writing.__exit__(*error)

    @property
    def inner(self) -> SnapshotWriter:
        assert self._writer is not None
        return self._writer

    def add_file(self, name: str, data: bytes) -> None:
        self.inner.add_file(name, data)

    def add_pages(self, kind: str, id: int, vaddr: int, data: memoryview | bytes) -> None:
        self.inner.add_pages(kind, id, vaddr, data)

    def commit(self, extra: dict[str, Any]) -> Stored:
        return self.inner.commit(extra)

    def abort(self) -> None:
        self.inner.abort()


class StoreDiesWhilePagesCome(_Wrapped):
    """The first pages are refused."""

    def add_pages(self, kind: str, id: int, vaddr: int, data: memoryview | bytes) -> None:
        raise StoreUnavailableError("The store does not answer.", remedy="Start it again.")


class StoreDiesAtTheCommit(_Wrapped):
    """Everything was taken, the manifest was not."""

    def commit(self, extra: dict[str, Any]) -> Stored:
        raise StoreUnavailableError("The store does not answer.", remedy="Start it again.")


class CommitWaits(_Wrapped):
    """The commit waits in the hold until it is told to go on, and fails when it is given up."""

    def __init__(self, real: Repository) -> None:
        super().__init__(real)
        self.reached = threading.Event()
        self.go_on = threading.Event()
        self.given_up = False

    def abort(self) -> None:
        self.given_up = True
        self.go_on.set()
        self.inner.abort()

    def commit(self, extra: dict[str, Any]) -> Stored:
        self.reached.set()
        if not self.go_on.wait(60) or self.given_up:
            raise StoreUnavailableError("Nobody let the commit go on.")
        return self.inner.commit(extra)
