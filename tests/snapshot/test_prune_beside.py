"""Collectors beside suspends, resumes and each other, on the real S3 server and in a directory."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from snapshot.cache import PackCache
from snapshot.errors import StoreUnavailableError
from snapshot.prune import collect
from snapshot.reader import Snapshot
from snapshot.repository import Repository
from snapshot.stores.base import Store
from snapshot.stores.directory import DirectoryStore
from snapshot.stores.retry import RetryingStore
from tests.builders.s3 import S3Server, s3_server
from tests.builders.snapshots import Memory, key, load, repository, save
from tests.snapshot.layouts import filled

__all__ = ["s3_server"]

MIB = 2**20
ROUNDS = 5
SESSIONS = 3
GRACE = 2.0
"""In rounds, which are the time here: no suspend and no resume outlasts one, on whatever machine."""


@pytest.fixture(params=["directory", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "directory":
        return DirectoryStore(tmp_path / "store")
    server: S3Server = request.getfixturevalue("s3_server")
    return RetryingStore(server.new_store())


@dataclass
class Stage:
    """What everybody shares: the store, the round, and the snapshots that are current."""

    store: Store
    folder: Path
    round: int = 0
    done: threading.Event = field(default_factory=threading.Event)
    current: dict[int, tuple[str, Memory]] = field(default_factory=dict)

    def open(self, *, cache: PackCache | None = None) -> Repository:
        return repository(self.store, self.folder, cache=cache, now=float(self.round))


def memory_of(session: int, turn: int) -> Memory:
    """Half of it changes from turn to turn."""
    return {("task", 1): [(0, filled(MIB, session)), (8 * MIB, filled(MIB, 100 * session + turn))]}


def one_turn(stage: Stage, session: int, turn: int) -> None:
    """Suspend; remove the snapshot before, as people do, while its resume still reads it."""
    target = stage.open()
    memory = memory_of(session, turn)
    before = stage.current.get(session)
    filling: Snapshot | None = target.open(before[0]) if before else None
    name = f"session-{session}"
    manifest = save(target, key(sequence=turn, session=name), memory).manifest
    stage.current[session] = manifest, memory
    if before and filling:
        target.remove(before[0])
        assert load(filling, before[1]) == before[1]
    assert load(stage.open().open(manifest), memory) == memory


def collector(stage: Stage) -> int:
    runs = 0
    while not stage.done.is_set():
        try:
            collect(stage.open(), now=float(stage.round), grace=GRACE)
        except StoreUnavailableError:  # the embedded server may say "not now"
            continue
        runs += 1
    return runs


def test_nothing_is_lost_and_nothing_is_left(store: Store, tmp_path: Path) -> None:
    stage = Stage(store, tmp_path)
    with ThreadPoolExecutor(SESSIONS) as people, ThreadPoolExecutor(2) as collectors:
        running = [collectors.submit(collector, stage) for _ in range(2)]
        try:
            for turn in range(1, ROUNDS + 1):
                stage.round = turn
                turns = [people.submit(one_turn, stage, s, turn) for s in range(SESSIONS)]
                for each in turns:
                    each.result()
        finally:
            stage.done.set()
        assert all(each.result() > 0 for each in running)

    for later in range(3):
        collect(stage.open(), now=ROUNDS + later * GRACE, grace=GRACE)
    target = stage.open()
    needed = set()
    for manifest, memory in stage.current.values():
        snapshot = target.open(manifest)
        assert load(snapshot, memory) == memory
        needed |= {pack.id for pack in snapshot.body.packs}
    packs = {entry.key.rpartition("/")[2] for entry in store.list("packs/")}
    assert packs == needed
    assert len(list(store.list("manifests/"))) == SESSIONS


def test_a_resume_that_fills_outlives_the_removal_and_the_run_before_it(
    store: Store, tmp_path: Path
) -> None:
    """The pack was seen unneeded long ago, needed again by a suspend that was under way then, and is
    now read by a resume of a snapshot that has just been removed."""
    stage = Stage(store, tmp_path)
    memory = memory_of(1, 1)
    first = save(stage.open(), key(sequence=1), memory).manifest
    with stage.open().writer(key(sequence=2), {}) as writer:
        stage.open().remove(first)
        collect(stage.open(), now=0.0, grace=GRACE)
        for vaddr, data in memory["task", 1]:
            writer.add_pages("task", 1, vaddr, data)
        second = writer.commit({}).manifest
    stage.round = 10
    filling = stage.open().open(second)
    stage.open().remove(second)
    collect(stage.open(), now=10.0, grace=GRACE)
    assert load(filling, memory) == memory
    collect(stage.open(), now=10.0 + GRACE, grace=GRACE)
    assert list(store.list("packs/")) == []
