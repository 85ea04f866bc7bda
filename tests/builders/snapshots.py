"""Repositories, and memory saved to and loaded from them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from snapshot.cache import PackCache
from snapshot.chunker import PAGE
from snapshot.keyfiles import LocalWrapping
from snapshot.keys import Keys
from snapshot.model import SnapshotKey, Stored
from snapshot.reader import Snapshot
from snapshot.repository import Repository
from snapshot.stores.base import Store

Memory = Mapping[tuple[str, int], list[tuple[int, bytes]]]
"""Runs of pages (address, content) by (kind, id)."""

Files = Mapping[str, bytes]


def repository(
    store: Store, folder: Path, *, cache: PackCache | None = None, now: float = 1000.0
) -> Repository:
    """A repository whose key-encryption key is in `folder`, at a time that stands still."""
    keys = Keys(store, LocalWrapping(folder / "keys"))
    return Repository(store, keys, cache=cache, workers=2, now=lambda: now)


def key(
    epoch: int = 1, sequence: int = 1, *, owner: str = "ada", session: str = "session:h/ada/"
) -> SnapshotKey:
    return SnapshotKey(owner, session, epoch, sequence)


def save(
    target: Repository,
    snapshot_key: SnapshotKey,
    memory: Memory,
    files: Files | None = None,
    extra: dict[str, Any] | None = None,
) -> Stored:
    """Write a whole snapshot."""
    with target.writer(snapshot_key, {"kernel": "6.18"}) as writer:
        for name, data in (files or {}).items():
            writer.add_file(name, data)
        for (kind, number), runs in memory.items():
            for vaddr, data in runs:
                writer.add_pages(kind, number, vaddr, memoryview(data))
        return writer.commit(extra or {})


def load(snapshot: Snapshot, memory: Memory) -> dict[tuple[str, int], list[tuple[int, bytes]]]:
    """The same runs, read back through `copy_pages` into one file each."""
    return {space: load_runs(snapshot, space, runs) for space, runs in memory.items()}


def load_runs(
    snapshot: Snapshot, space: tuple[str, int], runs: list[tuple[int, bytes]]
) -> list[tuple[int, bytes]]:
    descriptor = os.memfd_create("pages")
    try:
        position, wanted = PAGE, []
        for vaddr, data in runs:
            wanted.append((vaddr, len(data) // PAGE, position))
            position += len(data) + PAGE  # a gap, so that nothing lands in the wrong place unseen
        os.ftruncate(descriptor, position)
        snapshot.copy_pages(*space, wanted, descriptor)
        whole = os.pread(descriptor, position, 0)
    finally:
        os.close(descriptor)
    for _, pages, target in wanted:
        assert not any(whole[target - PAGE : target]), "bytes where none belong"
        assert pages
    return [(vaddr, whole[target : target + pages * PAGE]) for vaddr, pages, target in wanted]
