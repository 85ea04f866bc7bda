"""What happened to the memory since the tree runs again, in memory that supervisor and filler share.

A filler that is killed takes nothing with it: its successor applies the same events to the same
layout. Only a kill between reading an event and writing it down could lose one; `reading` is set for
those microseconds, and a successor that finds it set knows that it must not go on. Neither does a
filler that failed there: it would put pages where they do not belong any more.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import struct
import threading
from collections.abc import Iterator
from typing import NamedTuple

from snapshot.filling.uffd import Message

_HEADER = struct.Struct("<II")
_RECORD = struct.Struct("<IIQQQ")
_FIRST = 64
_GROWTH = 64 * 1024
MOST_RECORDS = 2**22
"""128 MiB: a tree that moves and forks its memory without end does not fill the machine's with it."""


class TornError(ValueError):
    """Events may have been read that nobody wrote down: nobody knows what is where any more."""


class Record(NamedTuple):
    """An event of the address space number `territory` (in the order in which they appeared)."""

    territory: int
    message: Message


class Journal:
    """One journal; every holder of its descriptor sees the same. One process writes."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._map = mmap.mmap(descriptor, 0)
        self._lock = threading.Lock()
        self._has_failed = False

    @classmethod
    def create(cls) -> Journal:
        """An empty one."""
        descriptor = os.memfd_create("journal", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, _GROWTH)
        return cls(descriptor)

    @property
    def is_torn(self) -> bool:
        """Whether its writer ended in the middle of reading events."""
        return bool(_HEADER.unpack_from(self._map)[0])

    def check(self) -> None:
        """Raises `TornError` after `reading` has failed here."""
        if self._has_failed:
            raise TornError("events were read and could not be written down")

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Round reading events, writing them down and handing their descriptors on. What fails in
        the middle is as torn as what is killed there: raises `TornError` from then on."""
        with self._lock:
            self.check()
            struct.pack_into("<I", self._map, 0, 1)
            try:
                yield
            except BaseException:
                self._has_failed = True
                raise
            struct.pack_into("<I", self._map, 0, 0)

    def add(self, territory: int, message: Message) -> None:
        """Write one event down, within `reading`. Raises `OSError` when there is no room."""
        count = _HEADER.unpack_from(self._map)[1]
        if count >= MOST_RECORDS:
            raise OSError(errno.ENOSPC, "the memory changed too often while it was filled")
        offset = _FIRST + count * _RECORD.size
        if offset + _RECORD.size > len(self._map):
            os.ftruncate(self.descriptor, len(self._map) + _GROWTH)
            self._map.resize(len(self._map) + _GROWTH)
        _RECORD.pack_into(self._map, offset, territory, *message)
        struct.pack_into("<I", self._map, 4, count + 1)

    def __iter__(self) -> Iterator[Record]:
        size = os.fstat(self.descriptor).st_size
        if size > len(self._map):
            self._map.resize(size)
        for index in range(_HEADER.unpack_from(self._map)[1]):
            territory, *fields = _RECORD.unpack_from(self._map, _FIRST + index * _RECORD.size)
            yield Record(territory, Message(*fields))

    def close(self) -> None:
        """Forget it; the other holders keep theirs. May be repeated."""
        if not self._map.closed:
            self._map.close()
            os.close(self.descriptor)
