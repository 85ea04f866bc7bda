"""The kernel's userfaultfd: its events, and the calls that put pages into another process.

Layouts and numbers: linux/userfaultfd.h. Descriptors come from CRIU, non-blocking, with the events
fork, remap, remove and unmap switched on: the task that causes one waits until it was read.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import Final, NamedTuple

PAGE: Final = 4096
_COPY, _ZEROPAGE, _WAKE = 0xC028AA03, 0xC020AA04, 0x8010AA02
_MESSAGE = struct.Struct("<B7xQQQ")
_MESSAGES_AT_ONCE = 64
HIGHEST_ADDRESS: Final = 0x7FFF_FFFF_F000

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ioctl.argtypes = (ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p)


class Event(IntEnum):
    """What a message tells."""

    FAULT = 0x12
    FORK = 0x13
    REMAP = 0x14
    REMOVE = 0x15
    UNMAP = 0x16


class Message(NamedTuple):
    """One message; what `a`, `b` and `c` are depends on the event.

    FAULT: flags, address. FORK: the child's descriptor. REMAP: from, to, length. REMOVE and UNMAP:
    start, end.
    """

    event: int
    a: int
    b: int
    c: int


class _CopyCall(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("dst", "src", "length", "mode")] + [
        ("copied", ctypes.c_int64)
    ]


class _ZeroCall(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("start", "length", "mode")] + [
        ("zeroed", ctypes.c_int64)
    ]


class _Range(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("start", "length")]


class Outcome(NamedTuple):
    """How far a call came: whole pages done, and the errno that ended it (0: none)."""

    pages: int
    error: int


def read(descriptor: int) -> Iterator[Message]:
    """The messages that wait, without waiting for more. Raises `OSError`."""
    try:
        data = os.read(descriptor, _MESSAGE.size * _MESSAGES_AT_ONCE)
    except BlockingIOError:
        return
    yield from (Message(*fields) for fields in _MESSAGE.iter_unpack(data))


def copy(descriptor: int, address: int, source: int, pages: int) -> Outcome:
    """Put `pages` pages from our memory at `source` to `address` there, and wake who waits.

    EEXIST: the next page is there already. EAGAIN: events wait to be read. ENOENT: not one mapping
    of this descriptor. ESRCH: the process is gone.
    """
    call = _CopyCall(address, source, pages * PAGE, 0, 0)
    return _outcome(_ioctl(descriptor, _COPY, call), call.copied, pages)


def zero(descriptor: int, address: int, pages: int) -> Outcome:
    """The same with zeros."""
    call = _ZeroCall(address, pages * PAGE, 0, 0)
    return _outcome(_ioctl(descriptor, _ZEROPAGE, call), call.zeroed, pages)


def wake(descriptor: int, address: int, length: int) -> None:
    """Let tasks that wait in this range look again. Does nothing if there are none."""
    _ioctl(descriptor, _WAKE, _Range(address, length))


def wake_all(descriptor: int) -> None:
    """Let every waiting task ask again: an earlier reader took its question with it."""
    wake(descriptor, 0x10000, HIGHEST_ADDRESS - 0x10000)


def _ioctl(descriptor: int, request: int, call: ctypes.Structure) -> int:
    """0, or the errno. ctypes releases the interpreter's lock meanwhile."""
    if _libc.ioctl(descriptor, request, ctypes.byref(call)) == 0:
        return 0
    return ctypes.get_errno()


def _outcome(error: int, done: int, pages: int) -> Outcome:
    """The kernel reports bytes, or a negative errno in their place."""
    if error == 0 and done == pages * PAGE:
        return Outcome(pages, 0)
    finished = done // PAGE if done > 0 else 0
    return Outcome(finished, error or (-done if done < 0 else errno.EAGAIN))
