"""Garbage collection: the plan by tables, then the real thing."""

from __future__ import annotations

from pathlib import Path

import pytest

from snapshot.errors import StoreUnavailableError
from snapshot.prune import (
    ClockError,
    Inventory,
    Plan,
    check_clock,
    collect,
    examine,
    execute,
    owners,
    plan,
)
from snapshot.removal import Mark
from snapshot.retention import Manifest
from snapshot.stores.directory import DirectoryStore
from tests.builders.s3 import S3Server, s3_server
from tests.builders.snapshots import Memory, key, load, repository, save
from tests.fakes.stores import StoreInMemory, StoreThatDiesAfter
from tests.snapshot.layouts import filled

__all__ = ["s3_server"]

MIB = 2**20
DAY = 86400.0


def manifest(sequence: int, packs: str, *, session: str = "s") -> Manifest:
    """One that needs the packs named by letters."""
    return Manifest(f"{session}{sequence}", "ada", session, (1, sequence), 0.0, frozenset(packs))


def decide(
    manifests: list[Manifest],
    packs: str,
    *,
    unneeded: dict[str, float] | None = None,
    unreadable: tuple[str, ...] = (),
    removed: dict[str, float] | None = None,
    going: tuple[str, ...] = (),
) -> Plan:
    """The plan on day 100 with a grace of a day; `unneeded` says how many days a pack has been seen
    unneeded, `removed` how many days ago a snapshot with those packs (* for any) was removed."""
    since = {pack: (100 - days) * DAY for pack, days in (unneeded or {}).items()}
    marks = tuple(
        Mark(f"mark {packs}", (100 - days) * DAY, None if packs == "*" else frozenset(packs))
        for packs, days in (removed or {}).items()
    )
    sizes = dict.fromkeys(packs, 10)
    inventory = Inventory("ada", tuple(manifests), sizes, since, unreadable, marks, run=6)
    return plan(inventory, now=100 * DAY, grace=DAY, going=going)


@pytest.mark.parametrize(
    ("unneeded", "gone", "remembered"),
    [
        ({}, (), {"x": 100.0}),
        ({"x": 0.99}, (), {"x": 99.01}),
        ({"x": 1.0}, ("x",), {"x": 99.0}),
        ({"x": 500.0, "a": 500.0}, ("x",), {"x": -400.0}),
        ({"x": -3.0}, (), {"x": 100.0}),
        ({"y": 9.0}, (), {"x": 100.0}),
    ],
)
def test_a_pack_goes_when_it_was_unneeded_for_the_grace_period(
    unneeded: dict[str, float], gone: tuple[str, ...], remembered: dict[str, float]
) -> None:
    decided = decide([manifest(1, "ab")], "abx", unneeded=unneeded)
    assert decided.packs == gone
    assert decided.freed_bytes == 10 * len(gone)
    assert decided.waiting_bytes == 10 - decided.freed_bytes
    days = {pack: round(since / DAY, 2) for pack, since in decided.unneeded_since.items()}
    assert days == remembered
    assert decided.run == 7


@pytest.mark.parametrize(
    ("removed", "gone"),
    [
        ({"x": 0.5}, ()),
        ({"x": 1.0}, ("x",)),
        ({"x": 5.0, "bx": 0.1}, ()),
        ({"b": 0.1}, ("x",)),
        ({"*": 0.1}, ()),
        ({"x": -5.0}, ()),
    ],
)
def test_the_grace_begins_again_when_a_snapshot_that_needed_the_pack_is_removed(
    removed: dict[str, float], gone: tuple[str, ...]
) -> None:
    assert decide([manifest(1, "a")], "ax", unneeded={"x": 50}, removed=removed).packs == gone


def test_marks_are_forgotten_after_the_grace() -> None:
    assert decide([], "", removed={"x": 0.9, "y": 1.0, "*": 7.0}).marks == ("mark y", "mark *")


def test_packs_of_a_snapshot_that_goes_now_are_not_gone_now() -> None:
    decided = decide(
        [manifest(1, "a"), manifest(2, "b")], "ab", unneeded={"a": 50}, going=("s1", "t9")
    )
    assert decided.manifests == ("s1",)
    assert decided.packs == ()
    assert decided.waiting_bytes == 10


def test_an_unreadable_manifest_protects_every_pack_and_may_itself_go() -> None:
    decided = decide([manifest(2, "b")], "abx", unneeded={"x": 50}, unreadable=("s1",))
    assert decided.packs == ()
    assert decided.blocked_by == ("s1",)
    assert set(decided.unneeded_since) == {"a", "x"}
    assert decide([], "x", unreadable=("s1",), going=("s1",)).manifests == ("s1",)


def test_the_whole_way(tmp_path: Path) -> None:
    store = StoreInMemory()
    target = repository(store, tmp_path, now=0.0)
    old: Memory = {("task", 1): [(0, filled(3 * MIB, 1))]}
    new: Memory = {("task", 1): [(0, filled(3 * MIB, 2))]}
    first = save(target, key(sequence=1), old)
    second = save(target, key(sequence=2), new)
    dying = repository(StoreThatDiesAfter(store, writes=2), tmp_path)
    with pytest.raises(StoreUnavailableError):
        save(dying, key(session="aborted"), {("task", 1): [(0, filled(40 * MIB, 3))]})
    assert owners(target) == ("ada",)
    before = len(store.objects)

    collect(target, now=1.0)  # sees what the aborted one left
    (decided,) = collect(target, now=2 * DAY, going=[first.manifest])
    assert decided.manifests == (first.manifest,)
    assert decided.freed_bytes >= 8 * MIB
    assert load(target.open(second.manifest), new) == new
    collect(target, now=2 * DAY + 1)
    (decided,) = collect(target, now=4 * DAY)  # the old packs
    assert decided.freed_bytes > 3 * MIB
    assert len(store.objects) < before
    assert load(target.open(second.manifest), new) == new
    (decided,) = collect(target, now=99 * DAY)
    assert (decided.manifests, decided.packs) == ((), ())
    assert load(target.open(second.manifest), new) == new
    assert [name for name in store.objects if name.startswith(("collected/", "removed/"))] == [
        "collected/ada/0000000005"
    ]


def test_of_two_collectors_with_the_same_plan_one_does_it(tmp_path: Path) -> None:
    store = StoreInMemory()
    target = repository(store, tmp_path, now=0.0)
    save(target, key(), {("task", 1): [(0, filled(MIB, 1))]})
    target.remove(target.list()[0].manifest)
    collect(target, now=0.0)
    one = plan(examine(target, "ada"), now=2 * DAY)
    two = plan(examine(target, "ada"), now=2 * DAY)
    assert one == two
    assert one.packs
    assert [execute(target, decided) for decided in (one, two, one)] == [True, False, False]
    assert not [name for name in store.objects if name.startswith("packs/")]


def test_a_collector_that_slept_deletes_nothing_by_what_it_saw(tmp_path: Path) -> None:
    """Between its look and its deed another one ran, and a suspend shared the pack again."""
    store = StoreInMemory()
    target = repository(store, tmp_path, now=0.0)
    memory: Memory = {("task", 1): [(0, filled(MIB, 1))]}
    first = save(target, key(), memory).manifest
    with target.writer(key(sequence=2), {}) as writer:  # shares the first one's packs
        target.remove(first)
        collect(target, now=0.0)
        slow = plan(examine(target, "ada"), now=2 * DAY)
        assert slow.packs
        writer.add_pages("task", 1, 0, memory["task", 1][0][1])
        second = writer.commit({}).manifest
    collect(target, now=2 * DAY)
    assert execute(target, slow) is False
    assert load(target.open(second), memory) == memory


def test_a_damaged_manifest_stops_collection_of_its_owner_only(tmp_path: Path) -> None:
    store = StoreInMemory()
    target = repository(store, tmp_path, now=0.0)
    memory: Memory = {("task", 1): [(0, filled(MIB, 1))]}
    damaged = save(target, key(), memory).manifest
    store.objects[damaged] = store.objects[damaged][:-1]
    bobs = save(target, key(owner="bob"), memory).manifest
    target.remove(bobs)
    store.objects["collected/ada/0000000003"] = b"not JSON"
    collect(target, now=0.0)
    plans = {decided.owner: decided for decided in collect(target, now=90 * DAY)}
    assert plans["ada"].blocked_by == (damaged,)
    assert plans["ada"].packs == ()
    assert plans["bob"].packs
    assert damaged in store.objects
    assert {name.split("/")[1] for name in store.objects if name.startswith("packs/")} == {"ada"}


def test_a_damaged_manifest_can_be_removed_and_then_its_packs_go(tmp_path: Path) -> None:
    store = StoreInMemory()
    target = repository(store, tmp_path, now=0.0)
    damaged = save(target, key(), {("task", 1): [(0, filled(MIB, 1))]}).manifest
    store.objects[damaged] = store.objects[damaged][:-1]
    target.remove(damaged)
    for day in (0.0, 1.1):
        collect(target, now=day * DAY)
    assert not [name for name in store.objects if name.startswith("packs/")]


def test_a_clock_that_is_off_collects_nothing(s3_server: S3Server, tmp_path: Path) -> None:
    import time

    for store in (s3_server.new_store(), DirectoryStore(tmp_path / "store")):
        check_clock(store, time.time())
        with pytest.raises(ClockError, match="differ by 36"):
            check_clock(store, time.time() + 3600)
        assert list(store.list("")) == []


def test_the_next_suspend_stores_again_what_old_packs_hold_little_of(tmp_path: Path) -> None:
    """One page in sixteen of the first memory lives on; without that its packs would for ever."""
    store = StoreInMemory()
    target = repository(store, tmp_path, now=0.0)
    size = 4 * MIB
    first: Memory = {("task", 1): [(0, filled(size, 1))]}
    kept = first["task", 1][0][1][: size // 16]
    later: Memory = {("task", 1): [(0, kept + filled(size - len(kept), 2))]}
    save(target, key(sequence=1), first)
    packs_of_the_first = {name for name in store.objects if name.startswith("packs/")}
    save(target, key(sequence=2), later)  # takes the kept part over
    last = save(target, key(sequence=3), later)
    assert last.stored_bytes < size // 8  # only that part was stored again
    for stored in target.list()[:2]:
        target.remove(stored.manifest)
    for day in (0.0, 1.1):
        collect(target, now=day * DAY)
    assert not packs_of_the_first & set(store.objects)
    assert load(target.open(last.manifest), later) == later
