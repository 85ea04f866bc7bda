"""Locks that a frozen tree held on files, as far as they can be had again.

The kernel forgets them when the tree ends. CRIU asks for them again at the restore and waits as long
as it takes, also for a program that keeps the file locked for days. A lock that somebody else has
taken is left out instead, and told: which of both goes on is for people to decide.
"""

from __future__ import annotations

import fcntl
import os
import stat
import struct
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from snapshot import images
from snapshot.pins import Namespace

FILE = "filelocks.img"

_POSIX, _FLOCK, _OPEN_FILE = 1, 2, 4
_FILES_ID = 2  # in ids-N.img
_ID, _DESCRIPTOR = 1, 4  # in fdinfo-N.img
_OFD_GETLK = 36
_FLOCK_STRUCT = "=hhxxxxqqixxxx"  # type, whence, start, length, pid

Read = Callable[[str], bytes]


class Lock(NamedTuple):
    """One lock: style (of POSIX, of `flock`, of an open file), F_RDLCK or F_WRLCK, whose descriptor,
    and which bytes (`length` 0: to the end)."""

    style: int
    type: int
    pid: int
    descriptor: int
    start: int
    length: int


def adapt(read: Read, files: bytes, space: Namespace) -> tuple[bytes, tuple[str, ...]]:
    """The image of locks without those that somebody else has, and notes about them. `files` is
    `files.img` as CRIU will read it. Raises `images.ImageError`."""
    magic, records = images.split(read(FILE))
    name_of = _names(read, files)
    kept, notes = [], []
    for record in records:
        lock = _lock(record)
        name = name_of(lock.pid, lock.descriptor)
        if name is None or is_free(space, name, lock):
            kept.append(record)
        else:
            notes.append(
                f"{name} is locked by another program; the session goes on without its lock."
            )
    return images.join(magic, kept), tuple(notes)


def _lock(record: bytes) -> Lock:
    values = {number: value for number, _, value in images.decode(record) if isinstance(value, int)}
    return Lock(*(values.get(number, 0) for number in range(1, 7)))


def _names(read: Read, files: bytes) -> Callable[[int, int], str | None]:
    """What a task's descriptor is open on, None if that is no regular file."""
    names = {file.id: file.name for file in images.regular_files(files)}

    @cache
    def table(pid: int) -> dict[int, int]:
        ids = next(iter(_numbers(read(f"ids-{pid}.img"))), {})
        rows = _numbers(read(f"fdinfo-{ids.get(_FILES_ID, 0)}.img"))
        return {row.get(_DESCRIPTOR, 0): row.get(_ID, 0) for row in rows}

    return lambda pid, descriptor: names.get(table(pid).get(descriptor, 0))


def _numbers(data: bytes) -> list[dict[int, int]]:
    return [
        {number: value for number, _, value in images.decode(record) if isinstance(value, int)}
        for record in images.split(data)[1]
    ]


def is_free(space: Namespace, name: str, lock: Lock) -> bool:
    """Whether nobody has a lock that would keep this one out. Takes it for a moment at most."""
    try:
        place = space.open(name)
    except OSError:
        return True  # whether the tree comes back without the file is not decided here
    try:
        if not stat.S_ISREG(os.fstat(place).st_mode):
            return True
        handle = os.open(f"/proc/self/fd/{place}", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return True
    finally:
        os.close(place)
    try:
        return _can_be_had(handle, lock)
    finally:
        os.close(handle)


def _can_be_had(handle: int, lock: Lock) -> bool:
    if lock.style == _FLOCK:
        kind = fcntl.LOCK_SH if lock.type == fcntl.F_RDLCK else fcntl.LOCK_EX
        try:
            fcntl.flock(handle, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
    if lock.style in (_POSIX, _OPEN_FILE):
        wanted = struct.pack(_FLOCK_STRUCT, lock.type, os.SEEK_SET, lock.start, lock.length, 0)
        found = fcntl.fcntl(handle, _OFD_GETLK, wanted)
        return bool(struct.unpack(_FLOCK_STRUCT, found)[0] == fcntl.F_UNLCK)
    return True
