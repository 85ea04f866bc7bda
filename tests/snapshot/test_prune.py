"""Garbage collection: the plan by tables, then the real thing."""

from __future__ import annotations

from pathlib import Path

import pytest

from snapshot.errors import StoreUnavailableError
from snapshot.model import SnapshotKey
from snapshot.prune import Inventory, Manifest, Plan, Rules, collect, examine, execute, owners, plan
from tests.builders.snapshots import Memory, key, load, repository, save
from tests.fakes.stores import StoreInMemory, StoreThatDiesAfter
from tests.snapshot.layouts import filled

MIB = 2**20
DAY = 86400.0
RULES = Rules(grace=DAY, superseded=7 * DAY)


def manifest(sequence: int, packs: str, *, days: float = 0.0, session: str = "s") -> Manifest:
    """Made `days` before day 100, needing the packs named by letters."""
    snapshot_key = SnapshotKey("ada", session, 1, sequence)
    return Manifest(f"{session}{sequence}", snapshot_key, (100 - days) * DAY, frozenset(packs))


def decide(
    manifests: list[Manifest],
    packs: str,
    *,
    unneeded: dict[str, float] | None = None,
    unreadable: tuple[str, ...] = (),
    rules: Rules = RULES,
) -> Plan:
    """The plan on day 100; `unneeded` says how many days a pack has been seen unneeded."""
    since = {pack: (100 - days) * DAY for pack, days in (unneeded or {}).items()}
    sizes = dict.fromkeys(packs, 10)
    return plan(Inventory("ada", tuple(manifests), sizes, since, unreadable), rules, 100 * DAY)


@pytest.mark.parametrize(
    ("manifests", "expected"),
    [
        ([manifest(1, "a", days=1000)], ()),
        ([manifest(1, "a", days=1000), manifest(2, "b")], ("s1",)),
        ([manifest(1, "a", days=6.9), manifest(2, "b")], ()),
        ([manifest(1, "a", days=7), manifest(2, "b"), manifest(3, "c")], ("s1",)),
        ([manifest(2, "b", days=1000), manifest(1, "a", days=1000)], ("s1",)),
        ([manifest(1, "a", days=1000), manifest(1, "a", days=1000, session="t")], ()),
    ],
)
def test_only_old_superseded_snapshots_go(
    manifests: list[Manifest], expected: tuple[str, ...]
) -> None:
    assert decide(manifests, "abc").manifests == expected


def test_superseded_none_keeps_them_for_ever() -> None:
    rules = Rules(grace=DAY, superseded=None)
    assert (
        decide([manifest(1, "a", days=9999), manifest(2, "b")], "ab", rules=rules).manifests == ()
    )


@pytest.mark.parametrize(
    ("unneeded", "gone", "remembered"),
    [
        ({}, (), {"x": 100.0}),
        ({"x": 0.99}, (), {"x": 99.01}),
        ({"x": 1.0}, ("x",), {}),
        ({"x": 500.0, "a": 500.0}, ("x",), {}),
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
    days = {pack: round(since / DAY, 2) for pack, since in decided.unneeded_since.items()}
    assert days == remembered


def test_packs_of_a_snapshot_that_goes_now_are_not_gone_now() -> None:
    decided = decide([manifest(1, "a", days=10), manifest(2, "b")], "ab", unneeded={"a": 50})
    assert decided.manifests == ("s1",)
    assert decided.packs == ()


def test_an_unreadable_manifest_protects_every_pack() -> None:
    decided = decide([manifest(2, "b")], "abx", unneeded={"x": 50}, unreadable=("s1",))
    assert decided.packs == ()
    assert decided.blocked_by == ("s1",)
    assert set(decided.unneeded_since) == {"a", "x"}


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

    collect(target, RULES, now=1.0)  # sees what the aborted one left
    assert {name for name in store.objects if "manifests" in name} == {
        first.manifest,
        second.manifest,
    }
    (decided,) = collect(target, RULES, now=8 * DAY)  # that goes, and the old manifest
    assert decided.manifests == (first.manifest,)
    assert decided.freed_bytes >= 8 * MIB
    assert load(target.open(second.manifest), new) == new
    collect(target, RULES, now=8 * DAY + 1)
    (decided,) = collect(target, RULES, now=10 * DAY)  # the old packs
    assert decided.freed_bytes > 3 * MIB
    assert len(store.objects) < before
    assert load(target.open(second.manifest), new) == new
    (decided,) = collect(target, RULES, now=99 * DAY)
    assert (decided.manifests, decided.packs) == ((), ())
    assert load(target.open(second.manifest), new) == new


def test_a_plan_may_be_carried_out_twice_and_beside_another(tmp_path: Path) -> None:
    store = StoreInMemory()
    target = repository(store, tmp_path, now=0.0)
    save(target, key(), {("task", 1): [(0, filled(MIB, 1))]})
    target.remove(target.list()[0].manifest)
    collect(target, RULES, now=0.0)
    one = plan(examine(target, "ada"), RULES, 2 * DAY)
    two = plan(examine(target, "ada"), RULES, 2 * DAY)
    assert one == two
    assert one.packs
    for decided in (one, two, one):
        execute(target, decided)
    assert not [name for name in store.objects if name.startswith("packs/")]


def test_a_damaged_manifest_stops_collection_of_its_owner_only(tmp_path: Path) -> None:
    store = StoreInMemory()
    target = repository(store, tmp_path, now=0.0)
    memory: Memory = {("task", 1): [(0, filled(MIB, 1))]}
    damaged = save(target, key(), memory).manifest
    store.objects[damaged] = store.objects[damaged][:-1]
    bobs = save(target, key(owner="bob"), memory).manifest
    target.remove(bobs)
    store.objects["collect/ada"] = b"not JSON"
    collect(target, RULES, now=0.0)
    plans = {decided.owner: decided for decided in collect(target, RULES, now=90 * DAY)}
    assert plans["ada"].blocked_by == (damaged,)
    assert plans["ada"].packs == ()
    assert plans["bob"].packs
    assert damaged in store.objects
    assert {name.split("/")[1] for name in store.objects if name.startswith("packs/")} == {"ada"}
