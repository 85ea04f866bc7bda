"""A snapshot that several sessions have: nothing is stored twice, and none needs the other's manifest."""

from __future__ import annotations

from pathlib import Path

import pytest

from snapshot import groups, images
from snapshot.copying import copy_snapshot
from snapshot.errors import AlreadyExistsError, MissingError, StoreDeniedError
from snapshot.prune import examine, plan
from tests.builders.snapshots import Memory, key, load, repository, save
from tests.fakes.stores import StoreInMemory
from tests.snapshot.layouts import filled

MEMORY: Memory = {("task", 1): [(0x7F00_0000_3000, filled(2**20, 1))]}
FILES = {"core-1.img": filled(3000, 2)}
FORK = key(0, 0, session="fork")


def packs(store: StoreInMemory) -> list[str]:
    return [name for name in store.objects if name.startswith("packs/")]


def test_the_copy_is_the_same_snapshot_and_adds_no_pack(tmp_path: Path) -> None:
    store = StoreInMemory()
    target = repository(store, tmp_path)
    first = save(target, key(), MEMORY, FILES, {"constraints": {"kernel": "6.18"}})
    before = packs(store)
    copied = copy_snapshot(target, first.manifest, FORK, now=2000.0)
    assert packs(store) == before
    assert copied.key == FORK
    assert copied.created_at == 2000.0
    assert copied.constraints == first.constraints
    assert target.current("ada", "fork") == copied
    snapshot = target.open(copied.manifest)
    assert load(snapshot, MEMORY) == MEMORY
    assert snapshot.read_file("core-1.img") == FILES["core-1.img"]


def test_it_lives_on_when_the_first_one_is_removed_and_collected(tmp_path: Path) -> None:
    store = StoreInMemory()
    target = repository(store, tmp_path)
    first = save(target, key(), MEMORY)
    copied = copy_snapshot(target, first.manifest, FORK, now=2000.0)
    target.remove(first.manifest)
    with pytest.raises(MissingError):
        target.open(first.manifest)
    decided = plan(examine(target, "ada"), now=1e9, grace=0.0)
    assert decided.packs == ()
    assert load(target.open(copied.manifest), MEMORY) == MEMORY


def test_the_forks_own_suspend_stores_only_what_changed(tmp_path: Path) -> None:
    store = StoreInMemory()
    target = repository(store, tmp_path)
    first = save(target, key(), MEMORY)
    copy_snapshot(target, first.manifest, FORK, now=2000.0)
    again = save(target, key(1, 1, session="fork"), MEMORY)
    assert packs(store) == packs(store)[:1]
    assert again.stored_bytes < first.stored_bytes / 10


def test_nobody_elses_snapshot_is_copied_and_none_is_overwritten(tmp_path: Path) -> None:
    target = repository(StoreInMemory(), tmp_path)
    first = save(target, key(), MEMORY)
    with pytest.raises(StoreDeniedError, match="own owner"):
        copy_snapshot(target, first.manifest, key(0, 0, owner="bob", session="s"), now=1.0)
    copy_snapshot(target, first.manifest, FORK, now=2000.0)
    with pytest.raises(AlreadyExistsError):
        copy_snapshot(target, first.manifest, FORK, now=2000.0)


def test_a_trees_root_becomes_that_of_its_own_sandbox_and_nobody_else_changes() -> None:
    def extent(first: int, outer: int) -> bytes:
        return images.encode([(1, 0, first), (2, 0, outer), (3, 0, 1)])

    def namespace(root: int) -> bytes:
        both = [extent(0, root), extent(210_001, 210_001)]
        record = images.encode([(n, 2, each) for n in (1, 2) for each in both])
        return images.join(7, [record])

    assert groups.owned_by(namespace(1_000_000), 1_000_005) == namespace(1_000_005)
