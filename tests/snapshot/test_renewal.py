"""A new key for one user: everything stays readable, nothing is stored again, the old key goes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from snapshot.errors import KeyUnavailableError, StoreUnavailableError
from snapshot.keyfiles import LocalWrapping
from snapshot.prune import GRACE_SECONDS as GRACE
from snapshot.prune import collect
from snapshot.renewal import SETTLED_SECONDS, finish, renew
from snapshot.repository import Repository
from snapshot.rotation import rotate
from snapshot.stores.base import Data, Store
from tests.builders.snapshots import Memory, key, load, repository, save
from tests.fakes.stores import PassingOn, StoreInMemory, StoreThatCounts, StoreWhoseClientDiesAfter
from tests.snapshot.layouts import filled

MIB = 2**20
MEMORY: Memory = {("task", 1): [(0, filled(MIB, 1))]}
LATER = 1000.0 + SETTLED_SECONDS  # snapshots of these tests are made at 1000


@dataclass
class World:
    """Two snapshots of ada and one of bob."""

    store: StoreInMemory
    folder: Path
    manifests: list[str] = field(default_factory=list)
    bobs: str = ""

    def open(self, store: Store | None = None, now: float = LATER) -> Repository:
        return repository(store or self.store, self.folder, now=now)

    def all_readable(self) -> bool:
        fresh = self.open()
        return all(load(fresh.open(m), MEMORY) == MEMORY for m in [*self.manifests, self.bobs])


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(StoreInMemory(), tmp_path)
    early = made.open(now=1000.0)
    made.manifests = [save(early, key(sequence=n), MEMORY).manifest for n in (1, 2)]
    made.bobs = save(early, key(owner="bob"), MEMORY).manifest
    return made


def test_manifests_are_sealed_anew_and_packs_stay(world: World) -> None:
    before = dict(world.store.objects)
    old = world.open().keys.current("ada")
    filling = world.open().open(world.manifests[1])
    counting = StoreThatCounts(world.store)

    assert renew(world.open(counting), "ada", now=LATER) == 2

    changed = {name for name, data in world.store.objects.items() if before.get(name) != data}
    new = world.open().keys.current("ada")
    assert changed == {*world.manifests, f"keys/ada/{old.id}", f"keys/ada/{new.id}"}
    assert not [name for name in counting.written if name.startswith("packs/")]
    assert world.all_readable()
    assert load(filling, MEMORY) == MEMORY  # a resume that had begun goes on
    for manifest in world.manifests:
        snapshot = world.open().open(manifest)
        assert snapshot.sealed_by(new)
        assert not snapshot.sealed_by(old)
        snapshot.verify()
        with pytest.raises(Exception, match="does not authenticate"):
            old.unwrap(snapshot.body.packs[0].wrapped_key, f"pack {snapshot.body.packs[0].id}")
    listed = {s.manifest: s for s in world.open().list("ada")}
    assert set(listed) == set(world.manifests)
    assert listed[world.manifests[0]].stored_bytes > MIB
    later = save(world.open(), key(sequence=3), MEMORY)
    assert later.stored_bytes < MIB // 8  # chunks are named as before, and shared


def test_the_old_key_goes_when_nothing_needs_it_and_the_grace_is_over(world: World) -> None:
    renew(world.open(), "ada", now=LATER)
    ids = set(world.open().keys.ids("ada"))
    assert len(ids) == 2
    assert finish(world.open(), "ada", now=LATER + GRACE - 1, grace=GRACE) == 0
    assert finish(world.open(), "ada", now=LATER + GRACE, grace=GRACE) == 1
    assert world.open().keys.ids("ada") == (world.open().keys.current("ada").id,)
    assert world.all_readable()
    assert finish(world.open(), "bob", now=LATER + 9 * GRACE, grace=GRACE) == 0
    assert world.all_readable()


def test_a_suspend_that_began_before_is_sealed_anew_later(world: World) -> None:
    with world.open().writer(key(sequence=3), {}) as writer:
        renew(world.open(), "ada", now=LATER)
        writer.add_pages("task", 1, 0, MEMORY["task", 1][0][1])
        world.manifests.append(writer.commit({}).manifest)
    assert world.all_readable()
    for deleted in (0, 1):  # first it is sealed anew
        assert finish(world.open(), "ada", now=LATER + GRACE, grace=GRACE) == deleted
        assert world.all_readable()
    assert len(world.open().keys.ids("ada")) == 1


def test_what_was_written_a_moment_ago_is_left_for_later(world: World) -> None:
    assert renew(world.open(), "ada", now=1000.0 + SETTLED_SECONDS - 1) == 0
    assert world.all_readable()
    for deleted in (0, 1):
        now = 1000.0 + SETTLED_SECONDS + GRACE
        assert finish(world.open(), "ada", now=now, grace=GRACE) == deleted
        assert world.all_readable()


@pytest.mark.parametrize("changes", range(5))
def test_a_renewal_that_dies_anywhere_loses_nothing_and_is_finished(
    world: World, changes: int
) -> None:
    dying = StoreWhoseClientDiesAfter(world.store, changes=changes)
    try:
        renew(world.open(dying), "ada", now=LATER)
    except StoreUnavailableError:
        assert changes < 4
    assert world.all_readable()
    save(world.open(), key(sequence=3 + changes, session="s"), MEMORY)
    renew(world.open(), "ada", now=LATER)
    for _ in range(2):
        finish(world.open(), "ada", now=LATER + GRACE + SETTLED_SECONDS, grace=GRACE)
    assert world.all_readable()
    assert len(world.open().keys.ids("ada")) == 1


@dataclass
class StoreThatIsOvertaken(PassingOn):
    """Before it writes a manifest, something else happens."""

    happens: list[Callable[[], None]] = field(default_factory=list)

    def put(self, key: str, data: Data, *, if_absent: bool = False) -> None:
        if key.startswith("manifests/") and self.happens:
            self.happens.pop()()
        self.inner.put(key, data, if_absent=if_absent)


def test_a_snapshot_that_is_removed_meanwhile_does_not_come_back(world: World) -> None:
    first = world.manifests[0]
    overtaken = StoreThatIsOvertaken(world.store, [lambda: world.open().remove(first)])
    assert renew(world.open(overtaken), "ada", now=LATER) == 1
    assert first not in world.store.objects


def test_an_unreadable_manifest_keeps_the_retired_key(world: World) -> None:
    damaged = world.manifests[0]
    world.store.objects[damaged] = world.store.objects[damaged][:-1]
    renew(world.open(), "ada", now=LATER)
    assert finish(world.open(), "ada", now=LATER + 9 * GRACE, grace=GRACE) == 0
    assert len(world.open().keys.ids("ada")) == 2


def test_both_rotations_and_collection_go_together(world: World) -> None:
    target = world.open()
    renew(target, "ada", now=LATER)
    rotate(target.keys, LocalWrapping(world.folder / "keys"))
    assert len(target.keys.retired("ada")) == 1  # a rewrapped record is still retired
    finish(world.open(), "ada", now=LATER + GRACE, grace=GRACE)
    rotate(world.open().keys, LocalWrapping(world.folder / "keys"))
    for turn in range(3):
        collect(world.open(), now=LATER + turn * GRACE)
    assert world.all_readable()
    renew(world.open(), "ada", now=LATER + 5 * GRACE)
    assert world.all_readable()


def test_who_has_no_key_has_none_to_replace(world: World) -> None:
    with pytest.raises(KeyUnavailableError, match="no key of eve"):
        renew(world.open(), "eve", now=LATER)
    assert "keys/eve" not in json.dumps(sorted(world.store.objects))
