"""Writing: many threads, bounded memory, and what is left when it fails."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext, suppress
from pathlib import Path

import pytest

from snapshot.cache import PackCache
from snapshot.chunker import PAGE
from snapshot.errors import MissingError, SnapshotError, StoreUnavailableError
from snapshot.outbox import CONNECTIONS, WAITING
from snapshot.packs import PACK_BYTES
from snapshot.stores.retry import Patience, RetryingStore
from snapshot.writer import BATCHES_WAITING
from tests.builders.s3 import running_s3_server
from tests.builders.snapshots import Memory, key, load, repository, save
from tests.fakes.stores import (
    StoreInMemory,
    StoreThatCounts,
    StoreThatDiesAfter,
    StoreThatIsSlowToWrite,
)
from tests.snapshot.layouts import filled

MIB = 2**20


def test_many_threads_add_at_once(tmp_path: Path) -> None:
    target = repository(StoreInMemory(), tmp_path)
    memory: Memory = {("task", n): [(n * MIB, filled(3 * MIB + n * PAGE, n))] for n in range(1, 9)}
    files = {f"{n}.img": filled(n * 1000, n) for n in range(40)}
    with target.writer(key(), {}) as writer, ThreadPoolExecutor(8) as pool:
        adding = [pool.submit(writer.add_file, name, data) for name, data in files.items()]

        def add(number: int) -> None:
            vaddr, data = memory["task", number][0]
            for start in range(0, len(data), 5 * PAGE):
                writer.add_pages("task", number, vaddr + start, data[start : start + 5 * PAGE])

        adding += [pool.submit(add, number) for number in range(1, 9)]
        for each in adding:
            each.result()
        stored = writer.commit({})
    snapshot = target.open(stored.manifest)
    assert load(snapshot, memory) == memory
    assert {name: snapshot.read_file(name) for name in snapshot.file_names()} == files


def test_the_manifest_is_written_last(tmp_path: Path) -> None:
    store = StoreThatCounts(StoreInMemory())
    target = repository(store, tmp_path)
    stored = save(target, key(), {("task", 1): [(0, filled(40 * MIB, 1))]}, {"f": b"x"})
    assert store.written[-1] == stored.manifest
    assert sum(name.startswith("manifests/") for name in store.written) == 1
    assert sum(name.startswith("packs/") for name in store.written) >= 5


def different(count: int) -> Iterator[bytes]:
    """Mebibytes of which no two have a block in common, and that cannot be compressed."""
    data = filled(MIB, 1)
    for number in range(count):
        content = number.to_bytes(8, "big") * (PAGE // 8) + data[PAGE:]
        yield content[number:] + content[:number]


@pytest.fixture
def held(tmp_path: Path) -> StoreThatIsSlowToWrite:
    """A store that takes keys, and no pack before its gate is opened."""
    return StoreThatIsSlowToWrite(StoreInMemory(), prefix="packs/")


def test_a_slow_store_does_not_slow_the_dump_while_the_node_has_room(
    tmp_path: Path, held: StoreThatIsSlowToWrite
) -> None:
    cache = PackCache(tmp_path / "cache", 1024 * MIB)
    target = repository(held, tmp_path, cache=cache)
    with target.writer(key(), {}) as writer:
        for number, data in enumerate(different(200)):
            writer.add_pages("task", 1, number * MIB, data)  # nothing has left yet
        until(lambda: waiting_bytes(tmp_path / "cache") >= 172 * MIB)
        assert held.waiting == 0  # two processors: both belong to the dump
        held.gate.set()
        stored = writer.commit({})
    assert waiting_bytes(tmp_path / "cache") == 0
    memory: Memory = {("task", 1): [(n * MIB, data) for n, data in enumerate(different(200))]}
    counting = StoreThatCounts(held)
    found = repository(counting, tmp_path, cache=PackCache(tmp_path / "cache", 1024 * MIB))
    assert load(found.open(stored.manifest), memory) == memory
    assert not any(name.startswith("packs/") for name, _, _ in counting.got)


def waiting_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob(".out-*"))


@pytest.mark.parametrize("spool", [0, 64])
def test_when_the_node_is_full_the_dump_is_slowed_and_memory_does_not_grow(
    tmp_path: Path, held: StoreThatIsSlowToWrite, spool: int
) -> None:
    cache = PackCache(tmp_path / "cache", spool * MIB)
    target = repository(held, tmp_path, cache=cache)
    writer = target.writer(key(), {})
    added = 0
    blocked = threading.Event()

    def add() -> None:
        nonlocal added
        for number, data in enumerate(different(400)):
            writer.add_pages("task", 1, number * MIB, data)
            added += MIB

    adder = threading.Thread(target=add)
    adder.start()
    previous = -1
    while previous != added or added == 0:  # until nothing moves any more
        previous = added
        blocked.wait(0.3)
    limit = (3 + BATCHES_WAITING) * 5 * MIB + (2 * 2 + CONNECTIONS + WAITING) * PACK_BYTES
    assert spool * MIB <= added <= limit + spool * MIB
    assert waiting_bytes(tmp_path / "cache") <= spool * MIB
    assert adder.is_alive()
    held.gate.set()
    adder.join()
    assert writer.commit({}).memory_bytes == 400 * MIB


def test_a_full_disk_costs_the_local_copy_and_nothing_else(
    tmp_path: Path, small_disk: Path
) -> None:
    memory: Memory = {("task", 1): [(n * MIB, data) for n, data in enumerate(different(100))]}
    cache = PackCache(small_disk, 1024 * MIB, keep_free=0)
    target = repository(StoreInMemory(), tmp_path, cache=cache)
    stored = save(target, key(), memory)
    assert load(target.open(stored.manifest), memory) == memory
    assert waiting_bytes(small_disk) == 0
    kept = sum(path.stat().st_size for path in small_disk.iterdir())
    assert 0 < kept <= 40 * MIB


def test_some_of_the_disk_is_left_to_others(tmp_path: Path, small_disk: Path) -> None:
    memory: Memory = {("task", 1): [(n * MIB, data) for n, data in enumerate(different(60))]}
    cache = PackCache(small_disk, 1024 * MIB, keep_free=20 * MIB)
    save(repository(StoreInMemory(), tmp_path, cache=cache), key(), memory)
    disk = os.statvfs(small_disk)
    assert 20 * MIB <= disk.f_bavail * disk.f_frsize < 40 * MIB


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 40 MiB."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", folder], check=True)
    yield folder
    subprocess.run(["umount", folder], check=True)


@pytest.mark.parametrize("harm", [Path.unlink, lambda path: os.truncate(path, 1000)])
def test_a_pack_that_somebody_took_from_the_node_fails_the_commit(
    tmp_path: Path, held: StoreThatIsSlowToWrite, harm: Callable[[Path], None]
) -> None:
    target = repository(held, tmp_path, cache=PackCache(tmp_path / "cache", 1024 * MIB))
    with target.writer(key(), {}) as writer:
        for number, data in enumerate(different(60)):
            writer.add_pages("task", 1, number * MIB, data)
        until(lambda: waiting_bytes(tmp_path / "cache") >= 32 * MIB)
        for path in (tmp_path / "cache").glob(".out-*"):
            harm(path)
        held.gate.set()
        with pytest.raises(MissingError, match="Suspend again"):
            writer.commit({})
    assert target.list() == ()


def test_a_store_that_dies_fails_the_commit_and_leaves_no_snapshot(tmp_path: Path) -> None:
    inner = StoreInMemory()
    good = repository(inner, tmp_path)
    first = save(good, key(sequence=1), {("task", 1): [(0, filled(PAGE, 1))]})
    dying = StoreThatDiesAfter(inner, writes=2)
    cache = PackCache(tmp_path / "cache", 100 * MIB)
    target = repository(dying, tmp_path, cache=cache)
    memory: Memory = {("task", 1): [(0, filled(40 * MIB, 2))]}
    with pytest.raises(StoreUnavailableError, match="died"):
        save(target, key(sequence=2), memory)
    assert [stored.manifest for stored in good.list()] == [first.manifest]
    until(lambda: list((tmp_path / "cache").iterdir()) == [])
    second = save(good, key(sequence=2), memory)
    assert load(good.open(second.manifest), memory) == memory


def test_a_store_that_dies_before_the_manifest_leaves_no_snapshot(tmp_path: Path) -> None:
    inner = StoreInMemory()
    repository(inner, tmp_path).keys.current("ada")
    dying = StoreThatDiesAfter(inner, writes=1)
    with pytest.raises(StoreUnavailableError):
        save(repository(dying, tmp_path), key(), {("task", 1): [(0, filled(PAGE, 1))]})
    assert dying.refused == 1
    assert [name.split("/")[0] for name in inner.objects] == ["keys", "packs"]


def test_adding_stops_once_the_store_is_dead(tmp_path: Path) -> None:
    inner = StoreInMemory()
    repository(inner, tmp_path).keys.current("ada")
    writer = repository(StoreThatDiesAfter(inner), tmp_path).writer(key(), {})
    with pytest.raises(StoreUnavailableError), writer:
        for number in range(1000):
            writer.add_pages("task", 1, number * MIB, filled(MIB, number))


def crew_beside(before: set[threading.Thread]) -> list[threading.Thread]:
    """The engine's own threads that were not there before: other tests' may come and go."""
    crews = ("seal", "ship", "read")
    return [t for t in threading.enumerate() if t not in before and t.name.startswith(crews)]


def test_leaving_without_a_commit_leaves_nothing_that_counts(tmp_path: Path) -> None:
    store = StoreInMemory()
    cache = PackCache(tmp_path / "cache", 100 * MIB)
    target = repository(store, tmp_path, cache=cache)
    before = set(threading.enumerate())
    with target.writer(key(), {}) as writer:
        writer.add_pages("task", 1, 0, filled(30 * MIB, 1))
        writer.add_file("f", b"x")
    writer.abort()  # again
    assert target.list() == ()
    until(lambda: not crew_beside(before))
    assert list((tmp_path / "cache").iterdir()) == []
    with pytest.raises(SnapshotError, match="given up"):
        writer.add_file("g", b"y")
    with pytest.raises(SnapshotError, match="given up"):
        writer.commit({})


def test_giving_up_does_not_wait_for_a_store_that_hangs(tmp_path: Path) -> None:
    slow = StoreThatIsSlowToWrite(StoreInMemory())
    slow.gate.set()
    cache = PackCache(tmp_path / "cache", 100 * MIB)
    target = repository(slow, tmp_path, cache=cache)
    before = set(threading.enumerate())
    with ThreadPoolExecutor(1, "commit") as pool, target.writer(key(), {}) as writer:
        slow.gate.clear()
        writer.add_pages("task", 1, 0, filled(20 * MIB, 1))
        committing = pool.submit(writer.commit, {})
        until(lambda: slow.waiting > 0)
        writer.abort()
        assert crew_beside(before)  # uploads are still under way
        slow.gate.set()
        with pytest.raises(SnapshotError, match="given up"):
            committing.result()
    until(lambda: not crew_beside(before))
    assert list((tmp_path / "cache").iterdir()) == []
    assert target.list() == ()


@pytest.mark.parametrize("held", ["packs/", "manifests/"])
def test_a_commit_that_is_given_up_takes_its_manifest_back(tmp_path: Path, held: str) -> None:
    slow = StoreThatIsSlowToWrite(StoreInMemory(), prefix=held)
    target = repository(slow, tmp_path)
    writer = target.writer(key(), {})
    writer.add_pages("task", 1, 0, filled(MIB, 1))
    with ThreadPoolExecutor(1) as pool:
        committing = pool.submit(writer.commit, {})
        until(lambda: slow.waiting > 0)
        writer.abort()
        slow.gate.set()
        with pytest.raises(SnapshotError, match="given up"):
            committing.result()
    assert target.list() == ()


def test_giving_up_after_the_commit_changes_nothing(tmp_path: Path) -> None:
    cache = PackCache(tmp_path / "cache", 100 * MIB)
    target = repository(StoreInMemory(), tmp_path, cache=cache)
    with target.writer(key(), {}) as writer:
        writer.add_pages("task", 1, 0, filled(MIB, 1))
        stored = writer.commit({})
        writer.abort()
    assert target.list() == (stored,)
    assert len(list((tmp_path / "cache").iterdir())) == 1


def until(holds: Callable[[], bool]) -> None:
    """Wait for another thread's doing, with a deadline."""
    deadline = time.monotonic() + 30.0
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_commit_leaves_no_thread(tmp_path: Path) -> None:
    target = repository(StoreInMemory(), tmp_path)
    before = set(threading.enumerate())
    memory: Memory = {("task", 1): [(0, filled(20 * MIB, 1))]}
    load(target.open(save(target, key(), memory).manifest), memory)
    assert not crew_beside(before)


def test_bad_additions_are_refused_and_harm_nothing(tmp_path: Path) -> None:
    target = repository(StoreInMemory(), tmp_path)
    with target.writer(key(), {}) as writer:
        writer.add_file("f", b"x")
        with pytest.raises(ValueError, match="'f' was added before"):
            writer.add_file("f", b"y")
        with pytest.raises(ValueError, match="not to 'file'"):
            writer.add_pages("file", 1, 0, bytes(PAGE))
        writer.add_pages("task", 1, PAGE, filled(PAGE, 1))
        for vaddr, size in ((PAGE, PAGE), (0, PAGE), (5, PAGE), (2 * PAGE, 7)):
            with pytest.raises(ValueError, match=r"whole pages|in order"):
                writer.add_pages("task", 1, vaddr, bytes(size))
        stored = writer.commit({})
    assert target.open(stored.manifest).read_file("f") == b"x"


def test_compression_only_where_it_pays(tmp_path: Path) -> None:
    target = repository(StoreInMemory(), tmp_path)
    noise = save(target, key(session="n"), {("task", 1): [(0, filled(8 * MIB, 1))]})
    text: Memory = {("task", 1): [(0, b"the quick brown fox " * (8 * MIB // 20 // PAGE * PAGE))]}
    words = save(target, key(session="t"), text)
    assert 8 * MIB <= noise.stored_bytes < 8.1 * MIB
    assert words.stored_bytes < 0.05 * words.memory_bytes
    assert load(target.open(words.manifest), text) == text


def test_text_behind_noise_is_still_compressed(tmp_path: Path) -> None:
    target = repository(StoreInMemory(), tmp_path)
    text = b"the quick brown fox " * (8 * MIB // 20 // PAGE * PAGE)
    memory: Memory = {("task", 1): [(0, filled(8 * MIB, 1)), (8 * MIB, text)]}
    stored = save(target, key(), memory)
    assert stored.stored_bytes - 8 * MIB < 0.1 * len(text)
    assert load(target.open(stored.manifest), memory) == memory


@pytest.mark.parametrize("comes_back", [True, False])
def test_the_real_server_killed_in_the_middle(tmp_path: Path, comes_back: bool) -> None:
    memory: Memory = {("task", 1): [(0, filled(64 * MIB, 1))]}
    with ExitStack() as stack:
        server = stack.enter_context(running_s3_server(tmp_path))
        inner = server.new_store()
        patience = Patience(total=60.0 if comes_back else 0.5)
        target = repository(RetryingStore(inner, patience), tmp_path)
        writer = stack.enter_context(target.writer(key(), {}))
        (_, data), *_ = memory["task", 1]
        for start in range(0, len(data), 8 * MIB):
            if start == 32 * MIB:
                server.kill()
            if start == 48 * MIB and comes_back:
                stack.enter_context(running_s3_server(tmp_path, again=server))
            with nullcontext() if comes_back else suppress(StoreUnavailableError):
                writer.add_pages("task", 1, start, data[start : start + 8 * MIB])
        if comes_back:
            assert load(target.open(writer.commit({}).manifest), memory) == memory
            return
        with pytest.raises(StoreUnavailableError, match="cannot be reached"):
            writer.commit({})
        stack.enter_context(running_s3_server(tmp_path, again=server))
        assert target.list() == ()
        stored = save(target, key(), memory)
        assert load(target.open(stored.manifest), memory) == memory


def test_listings_show_constraints_and_timings_as_text_and_numbers(tmp_path: Path) -> None:
    target = repository(StoreInMemory(), tmp_path)
    extra = {"constraints": {"kernel": 6}, "timings": {"dump": 1}}
    stored = save(target, key(), {}, {"f": b"x"}, extra)
    assert target.list() == (stored,)
    assert (stored.constraints, stored.timings) == ({"kernel": "6"}, {"dump": 1.0})
    assert target.open(stored.manifest).extra == extra
