"""Packs kept on a node."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from snapshot.cache import PackCache

MIB = 2**20


def content(cache: PackCache, pack: str) -> bytes | None:
    descriptor = cache.open(pack)
    if descriptor is None:
        return None
    with os.fdopen(descriptor, "rb") as handle:
        return handle.read()


def age(folder: Path, pack: str, seconds: float) -> None:
    """As if it had last been used that long ago."""
    then = (folder / pack).stat().st_mtime - seconds
    os.utime(folder / pack, (then, then))


def test_a_pack_is_kept_and_forgotten(tmp_path: Path) -> None:
    cache = PackCache(tmp_path / "cache", 8 * MIB)
    cache.put("p1", b"content")
    assert content(cache, "p1") == b"content"
    assert content(PackCache(tmp_path / "cache", 8 * MIB), "p1") == b"content"
    cache.drop("p1")
    cache.drop("p1")
    assert content(cache, "p1") is None


def test_the_longest_unused_go_first(tmp_path: Path) -> None:
    cache = PackCache(tmp_path, 8 * MIB)
    for number in range(8):
        cache.put(f"p{number}", bytes(MIB))
        age(tmp_path, f"p{number}", 100 - number)
    assert content(cache, "p0") is not None  # a use
    cache.put("p8", bytes(MIB))
    cache.put("p9", bytes(MIB))
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"p0", *(f"p{number}" for number in range(3, 10))}


def test_the_bound_holds_for_what_an_earlier_process_left(tmp_path: Path) -> None:
    big = PackCache(tmp_path, 64 * MIB)
    for number in range(16):
        big.put(f"p{number}", bytes(MIB))
        age(tmp_path, f"p{number}", 100 - number)
    PackCache(tmp_path, 4 * MIB).put("new", bytes(MIB))
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 4 * MIB
    assert (tmp_path / "new").exists()


def test_an_open_pack_outlives_its_eviction(tmp_path: Path) -> None:
    cache = PackCache(tmp_path, 8 * MIB)
    cache.put("p1", b"content")
    descriptor = cache.open("p1")
    assert descriptor is not None
    cache.drop("p1")
    with os.fdopen(descriptor, "rb") as handle:
        assert handle.read() == b"content"


def test_what_waits_for_the_store_is_never_evicted_and_counts(tmp_path: Path) -> None:
    cache, other = PackCache(tmp_path, 4 * MIB), PackCache(tmp_path, 4 * MIB)
    assert cache.spool("w0", b"w" * MIB)
    age(tmp_path, ".out-w0", 100)
    for number in range(6):
        other.put(f"p{number}", bytes(MIB))
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 4 * MIB
    assert content(cache, "w0") is None  # not before it is in the store
    buffer = bytearray(2 * MIB)
    cache.read_spooled("w0", buffer)
    assert buffer == b"w" * MIB
    cache.settle("w0")
    assert content(cache, "w0") == b"w" * MIB
    for number in range(6):
        other.put(f"q{number}", bytes(MIB))
    assert content(cache, "w0") is None


def test_the_bound_of_what_waits_is_shared_with_other_processes(tmp_path: Path) -> None:
    other = PackCache(tmp_path, 8 * MIB)
    assert all(other.spool(f"o{number}", bytes(MIB)) for number in range(6))
    cache = PackCache(tmp_path, 8 * MIB)
    taken = [cache.spool(f"w{number}", bytes(MIB)) for number in range(8)]
    assert taken == [True] * taken.count(True) + [False] * taken.count(False)
    assert 1 <= taken.count(True) <= 3  # one may slip in before the folder is looked at
    for number in range(6):
        other.drop(f"o{number}")
    assert len(list(tmp_path.iterdir())) == taken.count(True)


def test_a_cache_that_cannot_be_written_fails_nothing(tmp_path: Path) -> None:
    cache = PackCache(tmp_path / "cache", 8 * MIB)
    (tmp_path / "cache").rmdir()
    (tmp_path / "cache").write_bytes(b"")  # root may write anywhere, but not below a file
    cache.put("p1", b"content")
    assert not cache.spool("p2", b"content")


def test_a_cache_that_cannot_even_be_made_fails_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    cache = PackCache(tmp_path / "file" / "cache", 8 * MIB)
    cache.put("p1", b"content")
    assert content(cache, "p1") is None
    assert not cache.spool("p2", b"content")


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_disk_that_became_read_only_is_still_read(tmp_path: Path) -> None:
    PackCache(tmp_path, 8 * MIB).put("p1", b"content")
    (tmp_path / ".new-dead").write_bytes(b"half")
    age(tmp_path, ".new-dead", 7200)
    mount = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"'
    argv = ["unshare", "--mount", "sh", "-c", mount, str(tmp_path), sys.executable, "-c", _READS]
    found = subprocess.run([*argv, str(tmp_path)], capture_output=True, text=True, check=True)
    assert found.stdout == "content"
    assert "Read-only" in found.stderr


_READS = """
import sys, os
from pathlib import Path
from snapshot.cache import PackCache
cache = PackCache(Path(sys.argv[1]), 8 * 2**20)
cache.put("p2", b"content")
sys.stdout.write(os.read(cache.open("p1"), 100).decode())
"""


def test_what_a_dead_process_left_half_written_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".new-dead").write_bytes(b"half")
    (tmp_path / ".new-live").write_bytes(b"half")
    (tmp_path / ".out-dead").write_bytes(b"whole, but of no snapshot")
    (tmp_path / ".out-live").write_bytes(b"whole")
    age(tmp_path, ".new-dead", 7200)
    age(tmp_path, ".out-dead", 7200)
    PackCache(tmp_path, 8 * MIB)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".new-live", ".out-live"]
