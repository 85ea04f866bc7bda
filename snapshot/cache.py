"""Sealed packs kept on this node, so that a resume where the suspend was needs no download.

Several processes share the folder without a lock: files appear by rename, are never changed, and an
open one stays readable after it was evicted. What is read is authenticated by the reader, so a
damaged file costs a download and nothing else.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
from contextlib import suppress
from pathlib import Path

from snapshot.stores.base import Data

log = logging.getLogger(__name__)

_TEMPORARY = ".new-"
_STALE_SECONDS = 3600.0
_LOOK_AGAIN_BYTES = 64 * 2**20


class PackCache:
    """Packs as files, at most about `limit` bytes of them, the longest unused evicted first.

    The bound may be passed by 64 MiB per process that writes. Failing to keep a pack (a full disk)
    is logged and is no error.
    """

    def __init__(self, directory: Path, limit: int) -> None:
        self._directory = directory
        self._limit = limit
        self._unseen = _LOOK_AGAIN_BYTES  # written since the folder was last measured
        self._lock = threading.Lock()
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._remove_stale()

    def open(self, pack: str) -> int | None:
        """A descriptor for reading the pack, which the caller closes, or None. Counts as a use."""
        try:
            descriptor = os.open(self._directory / pack, os.O_RDONLY)
        except OSError:
            return None
        os.utime(descriptor)
        return descriptor

    def put(self, pack: str, data: Data) -> None:
        """Keep a pack."""
        temporary = self._directory / f"{_TEMPORARY}{uuid.uuid4().hex}"
        try:
            with temporary.open("xb", buffering=0) as handle:
                view = memoryview(data)
                while view:
                    view = view[handle.write(view) :]
            temporary.rename(self._directory / pack)
            self._count(len(data))
        except OSError as error:
            log.warning("pack %s is not kept on this node: %s", pack, error)
            with suppress(OSError):
                temporary.unlink(missing_ok=True)

    def drop(self, pack: str) -> None:
        """Forget a pack. No error if it is not there."""
        with suppress(OSError):
            (self._directory / pack).unlink(missing_ok=True)

    def _count(self, size: int) -> None:
        with self._lock:
            self._unseen += size
            if self._unseen < min(_LOOK_AGAIN_BYTES, self._limit // 8):
                return
            self._unseen = 0
            self._evict()

    def _evict(self) -> None:
        files = sorted(self._files())
        excess = sum(size for _, size, _ in files) - self._limit
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
        for path in self._directory.glob(f"{_TEMPORARY}*"):
            try:
                if path.stat().st_mtime < time.time() - _STALE_SECONDS:
                    path.unlink()
            except FileNotFoundError:
                continue
