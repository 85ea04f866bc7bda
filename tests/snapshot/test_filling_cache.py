"""What happens to the node cache while memory arrives from it: it costs a download, nothing else."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from snapshot import linux
from snapshot.cache import PackCache
from tests.builders.faulting import faulting

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="userfaultfds here need root")
MIB = 2**20
PAGES = 3000


def flip(pack: Path) -> None:
    """One bit of every 64 KiB, in the file that others may have open."""
    with pack.open("r+b") as handle:
        for at in range(0, pack.stat().st_size, 65536):
            handle.seek(at)
            byte = handle.read(1)
            handle.seek(at)
            handle.write(bytes([byte[0] ^ 0x20]))


def cut(pack: Path) -> None:
    os.truncate(pack, pack.stat().st_size // 3)


def make_unreadable(pack: Path) -> None:
    """As a disk that fails: it can be opened, and reading it is an error."""
    pack.unlink()
    pack.mkdir()


def remove_all(pack: Path) -> None:
    shutil.rmtree(pack.parent, ignore_errors=True)


def packs(cache: Path) -> list[Path]:
    return [path for path in cache.iterdir() if not path.name.startswith(".")]


@pytest.mark.parametrize("harm", [flip, cut, make_unreadable, Path.unlink, remove_all])
def test_harm_in_the_middle_costs_a_download_and_nothing_else(
    tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    cache = tmp_path / "cache"
    with faulting(tmp_path, "storm", pages=PAGES, cache=PackCache(cache, 64 * MIB)) as tree:
        tree.program.send_on()
        tree.program.reaches("half")
        for pack in packs(cache):
            harm(pack)
        tree.go()
        tree.program.send_on()
        tree.ends()


@pytest.fixture
def own_disk() -> Iterator[Path]:
    """A disk of its own, in memory, which vanishes with us."""
    mounted = linux.private_tmpfs(1)
    root = os.open(f"/proc/self/fd/{mounted}", os.O_RDONLY | os.O_DIRECTORY)
    os.close(mounted)
    yield Path(f"/proc/self/fd/{root}")
    os.close(root)


def test_a_disk_that_is_full_from_the_middle_on_costs_the_cache_and_nothing_else(
    tmp_path: Path, own_disk: Path
) -> None:
    """Nobody keeps a reserve here, so that writing itself fails."""
    cache = PackCache(own_disk, 64 * MIB, keep_free=-(2**62))
    with faulting(tmp_path, "storm", pages=PAGES, cache=cache) as tree:
        tree.program.send_on()
        tree.program.reaches("half")
        for pack in packs(own_disk):
            pack.unlink()
        fill_up(own_disk)
        tree.go()
        tree.program.send_on()
        tree.ends()
    assert packs(own_disk) == [own_disk / "ballast"]


def fill_up(disk: Path) -> None:
    """Nothing more can be written."""
    free = os.statvfs(disk)
    with (disk / "ballast").open("wb") as handle:
        os.posix_fallocate(handle.fileno(), 0, free.f_bavail * free.f_frsize)
