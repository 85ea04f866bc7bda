"""Suspending again: of a block that changed in part, only the changed pages are stored."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from snapshot.cache import PackCache
from snapshot.chunker import BLOCK, PAGE
from snapshot.model import Stored
from snapshot.repository import Repository
from snapshot.stores.base import Store
from tests.builders.snapshots import Memory, key, load, repository, save
from tests.fakes.stores import StoreInMemory
from tests.snapshot.layouts import filled

MIB = 2**20
BASE = 0x7F00_0000_3000  # not where a block begins
SIZE = 16 * MIB


class Session:
    """One session's memory, changed and saved again and again."""

    def __init__(self, folder: Path, store: Store | None = None) -> None:
        self.folder = folder
        self.cache = PackCache(folder / "cache", 1024 * MIB)
        self.target: Repository = repository(store or StoreInMemory(), folder, cache=self.cache)
        self.data = bytearray(filled(SIZE, 1))
        self.sequence = 0

    @property
    def memory(self) -> Memory:
        return {("task", 1): [(BASE, bytes(self.data))]}

    def change(self, pages: Iterable[int], seed: int = 7) -> int:
        """Write one byte of each of the pages; bytes of pages changed."""
        pages = list(pages)
        for page in pages:
            self.data[page * PAGE + seed] ^= 0x55
        return len(pages) * PAGE

    def save(self) -> Stored:
        """Save, and check that everything can be read back."""
        self.sequence += 1
        stored = save(self.target, key(sequence=self.sequence), self.memory)
        snapshot = self.target.open(stored.manifest)
        assert load(snapshot, self.memory) == self.memory
        snapshot.verify()
        return stored


def test_scattered_pages_cost_little_more_than_themselves(tmp_path: Path) -> None:
    session = Session(tmp_path)
    session.save()
    changed = session.change(random.Random(1).sample(range(SIZE // PAGE), SIZE // PAGE // 50))
    assert session.save().stored_bytes < 1.5 * changed


def test_what_was_saved_in_parts_is_not_stored_again(tmp_path: Path) -> None:
    session = Session(tmp_path)
    session.save()
    session.change(range(0, SIZE // PAGE, 20))
    session.save()
    assert session.save().stored_bytes < 0.01 * SIZE


def test_many_rounds_come_back_whole_and_stay_small(tmp_path: Path) -> None:
    session, randomness = Session(tmp_path), random.Random(2)
    session.save()
    for seed in range(12):
        changed = session.change(randomness.sample(range(SIZE // PAGE), 40), seed)
        assert session.save().stored_bytes < 3 * changed
    session.data[5 * MIB : 6 * MIB] = bytes(MIB)  # zero now
    session.data[7 * MIB : 8 * MIB] = filled(MIB, 9)
    session.save()


def test_no_block_is_made_of_parts_of_many_chunks(tmp_path: Path) -> None:
    session = Session(tmp_path)
    session.save()
    for page in range(16):
        session.change([page + 16 * block for block in range(1, 200)], seed=page)
        stored = session.save()
        (space,) = session.target.open(stored.manifest).body.spaces
        blocks = space.extents["vaddr"] // BLOCK
        for block in np.unique(blocks):
            assert len(set(space.extents["chunk"][blocks == block].tolist())) <= 8


@pytest.mark.parametrize("shift", [PAGE, 5 * PAGE])
def test_memory_that_appears_and_goes_between_pages(tmp_path: Path, shift: int) -> None:
    session = Session(tmp_path)
    session.save()
    holes: Memory = {
        ("task", 1): [
            (BASE + start, bytes(session.data[start : start + 3 * PAGE]))
            for start in range(shift, SIZE - 8 * PAGE, 7 * PAGE)
        ],
        ("task", 2): [(BASE, bytes(session.data[:MIB]))],
    }
    stored = save(session.target, key(sequence=2), holes)
    snapshot = session.target.open(stored.manifest)
    assert load(snapshot, holes) == holes
    session.sequence = 2
    session.save()


def test_scattered_pages_are_found_again_behind_memory_that_changed_wholly(tmp_path: Path) -> None:
    session = Session(tmp_path)
    session.data += filled(24 * MIB, 3)
    session.save()
    session.data[: SIZE // 2] = filled(SIZE // 2, 4)
    changed = session.change(range(SIZE // PAGE, len(session.data) // PAGE, 100))
    assert session.save().stored_bytes < SIZE // 2 + 5 * changed


def test_where_the_node_has_nothing_blocks_are_stored_whole(tmp_path: Path) -> None:
    session = Session(tmp_path)
    session.save()
    for path in (tmp_path / "cache").iterdir():
        path.unlink()
    changed = session.change(range(0, SIZE // PAGE, 64))
    assert session.save().stored_bytes > 15 * changed


def test_a_damaged_pack_of_the_node_is_compared_with_nothing(tmp_path: Path) -> None:
    session = Session(tmp_path)
    session.save()
    for path in (tmp_path / "cache").iterdir():
        damaged = bytearray(path.read_bytes())
        damaged[len(damaged) // 3 :: 50_000] = bytes(len(damaged[len(damaged) // 3 :: 50_000]))
        path.write_bytes(damaged)
    session.change(range(0, SIZE // PAGE, 64))
    session.save()
