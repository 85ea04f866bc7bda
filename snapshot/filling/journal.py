"""What happened to the memory since the tree runs again, in memory that supervisor and filler share.

A filler that is killed takes nothing with it: its successor applies the same events to the same
layout. Only a kill between reading an event and writing it down could lose one; `reading` is set for
those
microseconds, and a successor that finds it set knows that it must not go on.
"""

from __future__ import annotations

import contextlib
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

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Round reading events, writing them down and handing their descriptors on."""
        with self._lock:
            struct.pack_into("<I", self._map, 0, 1)
            yield
            # Not in a `finally`: what failed in the middle is as torn as what was killed there.
            struct.pack_into("<I", self._map, 0, 0)

    def add(self, territory: int, message: Message) -> None:
        """Write one event down, within `reading`."""
        count = _HEADER.unpack_from(self._map)[1]
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
