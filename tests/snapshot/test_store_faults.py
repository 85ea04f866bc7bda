"""Saving and loading over ways that fail, to the real S3 server."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from snapshot.cache import PackCache
from snapshot.errors import StoreDeniedError, StoreUnavailableError, TamperedError
from snapshot.repository import Repository
from snapshot.stores.retry import Patience, RetryingStore
from snapshot.stores.s3 import S3Store
from tests.builders.s3 import S3Server, s3_server
from tests.builders.snapshots import Memory, key, load, repository, save
from tests.fakes.wires import (
    Wire,
    WireForSome,
    WireThatCutsBodies,
    WireThatFlipsABit,
    WireThatIsSlow,
    WireThatLosesTheAcknowledgement,
    WireThatRefuses,
    WireThatSaysNotNow,
)
from tests.snapshot.layouts import filled

__all__ = ["s3_server"]

MIB = 2**20
MEMORY: Memory = {("task", 1): [(0, filled(20 * MIB, 1))]}
QUICK = Patience(total=60.0, first=0.01, longest=0.1)


@contextmanager
def over(wire: Wire, folder: Path, *, patience: Patience = QUICK) -> Iterator[Repository]:
    """A repository in a new bucket that is reached over the wire, with nothing in its cache."""
    with wire.running():
        settings = wire.server.settings(f"test-{uuid.uuid4().hex[:16]}")
        store = S3Store(replace(settings, endpoint=wire.endpoint))
        store.create_bucket()
        cache = PackCache(folder / uuid.uuid4().hex, 1024 * MIB)
        yield repository(RetryingStore(store, patience), folder, cache=cache)


def elsewhere(target: Repository, folder: Path) -> Repository:
    """The same store, seen from a node that has nothing."""
    return repository(target.store, folder, cache=PackCache(folder / "elsewhere", 1024 * MIB))


def check(target: Repository, folder: Path) -> None:
    (stored,) = target.list()
    assert load(elsewhere(target, folder).open(stored.manifest), MEMORY) == MEMORY


@pytest.mark.parametrize("part", ["/packs/", "/manifests/", "/keys/"])
@pytest.mark.parametrize("kind", [WireThatSaysNotNow, WireThatLosesTheAcknowledgement])
def test_a_burst_of_failures_only_takes_time(
    s3_server: S3Server, tmp_path: Path, kind: type[WireForSome], part: str
) -> None:
    wire = kind(s3_server, times=6, part=part)
    with over(wire, tmp_path) as target:
        save(target, key(), MEMORY, {"f": b"x"})
        # A manifest whose acknowledgement was lost is found, and known for our own, by the next try.
        assert wire.failed in {1, 6}
        check(target, tmp_path)


def test_a_store_that_refuses_fails_the_commit_at_once(s3_server: S3Server, tmp_path: Path) -> None:
    wire = WireThatRefuses(s3_server, times=1000)
    with over(wire, tmp_path) as target:
        with pytest.raises(StoreDeniedError, match="AccessDenied"):
            save(target, key(), MEMORY)
        puts = [path for method, path in wire.requests if method == "PUT" and "/packs/" in path]
        assert len(puts) == len(set(puts))  # nobody asks again
        assert target.list() == ()
        wire.times = 0
        save(target, key(), MEMORY)
        check(target, tmp_path)


def test_failures_that_do_not_end_fail_the_commit(s3_server: S3Server, tmp_path: Path) -> None:
    wire = WireThatSaysNotNow(s3_server, times=10**9)
    with over(wire, tmp_path, patience=replace(QUICK, total=0.5)) as target:
        with pytest.raises(StoreUnavailableError, match="SlowDown"):
            save(target, key(), MEMORY)
        assert target.list() == ()


def test_answers_that_are_cut_short_are_asked_for_again(
    s3_server: S3Server, tmp_path: Path
) -> None:
    wire = WireThatCutsBodies(s3_server, times=6)
    with over(wire, tmp_path) as target:
        save(target, key(), MEMORY)
        check(target, tmp_path)
        assert wire.failed == 6


def test_a_flipped_bit_is_never_taken_for_memory(s3_server: S3Server, tmp_path: Path) -> None:
    wire = WireThatFlipsABit(s3_server, times=1000)
    with over(wire, tmp_path) as target:
        save(target, key(), MEMORY)
        with pytest.raises(TamperedError):
            check(target, tmp_path)
        wire.times = 0
        check(target, tmp_path)


def test_a_megabyte_a_second_does_not_hold_up_the_pages(
    s3_server: S3Server, tmp_path: Path
) -> None:
    wire = WireThatIsSlow(s3_server, bytes_per_second=1e6)
    memory: Memory = {("task", 1): [(0, filled(4 * MIB, 1))]}
    with over(wire, tmp_path) as target, target.writer(key(), {}) as writer:
        writer.add_pages("task", 1, 0, memory["task", 1][0][1])
        assert wire.passed < MIB  # all pages were taken, nothing of them has left
        stored = writer.commit({})
        assert wire.passed > 4 * MIB
        assert load(elsewhere(target, tmp_path).open(stored.manifest), memory) == memory
