"""Sealed packs kept on this node, so that a resume where the suspend was needs no download.

Several processes share the folder without a lock: files appear by rename, are never changed, and an
open one stays readable after it was evicted. What is read is authenticated by the reader, so a
damaged file costs a download and nothing else.

Packs that are not in the store yet wait here too, as `.out-<pack>`: they are never evicted, and
count against the same bound.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from snapshot.errors import MissingError
from snapshot.stores.base import Data

log = logging.getLogger(__name__)

_TEMPORARY = ".new-"
_WAITING = ".out-"
_STALE_SECONDS = 3600.0
_LOOK_AGAIN_BYTES = 64 * 2**20


class PackCache:
    """Packs as files, at most about `limit` bytes of them, the longest unused evicted first.

    The bound may be passed by 64 MiB per process that writes. Failing to keep a pack (a full disk)
    is logged and is no error. Nothing is kept that would leave less than `keep_free` bytes of the
    disk to others.
    """

    def __init__(self, directory: Path, limit: int, *, keep_free: int = 2**30) -> None:
        self._directory = directory
        self._limit = limit
        self._keep_free = keep_free
        self._waiting: dict[str, int] = {}  # bytes of each pack that this process has spooled
        self._writing = 0  # bytes that are on their way to the disk
        self._others_waiting = (
            0  # bytes that other processes had, when the folder was last measured
        )
        self._unseen = _LOOK_AGAIN_BYTES  # written since the folder was last measured
        self._lock = threading.Lock()
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._remove_stale()
        except OSError as error:
            log.warning("the node cache %s cannot be used as it should: %s", directory, error)

    def open(self, pack: str) -> int | None:
        """A descriptor for reading the pack, which the caller closes, or None. Counts as a use."""
        try:
            descriptor = os.open(self._directory / pack, os.O_RDONLY)
        except OSError:
            return None
        with suppress(OSError):  # a disk that failed lets nobody write, and may still be read
            os.utime(descriptor)
        return descriptor

    def put(self, pack: str, data: Data) -> None:
        """Keep a pack."""
        self._write(pack, data)

    def spool(self, pack: str, data: Data) -> bool:
        """Keep a pack that is not in the store yet until it is settled or dropped. False, and
        nothing is kept, if there is no room."""
        size = len(data)
        with self._lock:
            if sum(self._waiting.values()) + self._others_waiting + size > self._limit:
                return False
            self._waiting[pack] = size
        if self._write(f"{_WAITING}{pack}", data):
            return True
        with self._lock:
            self._waiting.pop(pack, None)
        return False

    def read_spooled(self, pack: str, into: bytearray) -> None:
        """Read a spooled pack into a buffer that is long enough, and shorten that to it. Raises
        `MissingError` if somebody has taken or cut the file."""
        size = self._waiting.get(pack)
        try:
            with (self._directory / f"{_WAITING}{pack}").open("rb", buffering=0) as handle:
                read = handle.readinto(into)
        except OSError as error:
            raise _lost(pack) from error
        if read != size:
            raise _lost(pack)
        del into[size:]

    def settle(self, pack: str) -> None:
        """A spooled pack is in the store: from now on it is one like others."""
        try:
            os.rename(self._directory / f"{_WAITING}{pack}", self._directory / pack)
        except OSError as error:
            log.warning("pack %s is not kept on this node: %s", pack, error)
        with self._lock:
            self._waiting.pop(pack, None)

    def drop(self, pack: str) -> None:
        """Forget a pack. No error if it is not there."""
        for name in (pack, f"{_WAITING}{pack}"):
            with suppress(OSError):
                (self._directory / name).unlink(missing_ok=True)
        with self._lock:
            self._waiting.pop(pack, None)

    def _write(self, name: str, data: Data) -> bool:
        temporary = self._directory / f"{_TEMPORARY}{uuid.uuid4().hex}"
        try:
            with self._room_on_the_disk(len(data)), temporary.open("xb", buffering=0) as handle:
                view = memoryview(data)
                while view:
                    view = view[handle.write(view) :]
            temporary.rename(self._directory / name)
            self._count(len(data))
        except OSError as error:
            log.warning("pack %s is not kept on this node: %s", name, error)
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            return False
        return True

    @contextmanager
    def _room_on_the_disk(self, size: int) -> Iterator[None]:
        """What other threads are about to write is taken already."""
        with self._lock:
            disk = os.statvfs(self._directory)
            if disk.f_bavail * disk.f_frsize - self._writing < size + self._keep_free:
                raise OSError(errno.ENOSPC, f"less than {self._keep_free} bytes would be left")
            self._writing += size
        try:
            yield
        finally:
            with self._lock:
                self._writing -= size

    def _count(self, size: int) -> None:
        with self._lock:
            self._unseen += size
            if self._unseen < min(_LOOK_AGAIN_BYTES, self._limit // 8):
                return
            self._unseen = 0
            self._evict()

    def _evict(self) -> None:
        files = sorted(self._files())
        waiting = [size for _, size, path in files if path.name.startswith(_WAITING)]
        self._others_waiting = max(sum(waiting) - sum(self._waiting.values()), 0)
        excess = sum(size for _, size, _ in files) - self._limit
        files = [file for file in files if not file[2].name.startswith(_WAITING)]
        for _, size, path in files:
            if excess <= 0:
                return
            path.unlink(missing_ok=True)
            excess -= size

    def _files(self) -> list[tuple[float, int, Path]]:
        found = []
        with os.scandir(self._directory) as entries:
            for entry in entries:
                try:
                    status = entry.stat()
                except FileNotFoundError:
                    continue
                if not entry.name.startswith(_TEMPORARY):
                    found.append((status.st_mtime, status.st_size, Path(entry.path)))
        return found

    def _remove_stale(self) -> None:
        """What a process left that died while it wrote."""
        left = (*self._directory.glob(f"{_TEMPORARY}*"), *self._directory.glob(f"{_WAITING}*"))
        for path in left:
            try:
                if path.stat().st_mtime < time.time() - _STALE_SECONDS:
                    path.unlink()
            except FileNotFoundError:
                continue


def _lost(pack: str) -> MissingError:
    return MissingError(
        f"The pack {pack}, which waited on this node for the store, is gone or damaged.",
        remedy="Suspend again.",
    )
