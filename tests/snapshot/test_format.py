"""Snapshots that an older version of this program wrote. Their files lie in `format_1`."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest

from snapshot.chunker import PAGE
from snapshot.repository import Repository
from snapshot.stores.directory import DirectoryStore
from tests.builders.snapshots import Memory, key, load, repository, save


def noise(size: int, seed: int) -> bytes:
    return b"".join(hashlib.sha256(b"%d %d" % (seed, n)).digest() for n in range(size // 32))


MEMORY: Memory = {
    ("task", 1): [
        (16 * PAGE, noise(20 * PAGE, 1)),
        (100 * PAGE, bytes(3 * PAGE) + b"text" * (16 * PAGE // 4)),
    ],
    ("shmem", 7): [(0, noise(PAGE, 2))],
}


@pytest.fixture
def old(tmp_path: Path) -> Repository:
    folder = tmp_path / "old"
    shutil.copytree(Path(__file__).parent / "format_1", folder)
    (folder / "keys" / "kek.key").chmod(0o600)
    return repository(DirectoryStore(folder / "store"), folder)


def test_a_snapshot_of_format_1_is_read_and_verified(old: Repository) -> None:
    (stored,) = old.list("ada")
    snapshot = old.open(stored.manifest)
    assert load(snapshot, MEMORY) == MEMORY
    assert snapshot.read_file("core-1.img") == noise(3200, 3)
    assert snapshot.extra == {"note": "written by version 1"}
    snapshot.verify()


def test_a_session_of_format_1_is_suspended_again_and_shares_from_then_on(old: Repository) -> None:
    second = save(old, key(sequence=2), MEMORY)
    third = save(old, key(sequence=3), MEMORY)
    assert second.stored_bytes > 20 * PAGE > 20 * third.stored_bytes
    for stored in (second, third):
        snapshot = old.open(stored.manifest)
        assert load(snapshot, MEMORY) == MEMORY
        snapshot.verify()
