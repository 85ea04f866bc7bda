"""The system calls a sandbox may not make (pure).

Two reasons put a call on the list: CRIU cannot dump what it creates (io_uring, userfaultfd), or it
widens what a session could attack (nested user namespaces, kernel keyrings, BPF, perf). `clone3` is
answered with ENOSYS because its flags live in memory that a filter cannot read; the C library then
uses `clone`, whose flags it can.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterator
from typing import Final

AUDIT_ARCH_X86_64: Final = 0xC000003E
CLONE_NEWUSER: Final = 0x10000000
X32_BIT: Final = 0x40000000

DENIED: Final[dict[str, int]] = {
    "userfaultfd": 323,
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "add_key": 248,
    "request_key": 249,
    "keyctl": 250,
    "bpf": 321,
    "perf_event_open": 298,
    "open_by_handle_at": 304,
    "mount": 165,
    "umount2": 166,
    "pivot_root": 155,
    "setns": 308,
    "fsopen": 430,
    "move_mount": 429,
    "open_tree": 428,
    "mount_setattr": 442,
}
NO_NEW_USER_NAMESPACE: Final[dict[str, int]] = {"clone": 56, "unshare": 272}
UNKNOWN_TO_SANDBOX: Final[dict[str, int]] = {"clone3": 435}

_LOAD_WORD, _JUMP_EQ, _JUMP_SET, _JUMP_GE, _RETURN = 0x20, 0x15, 0x45, 0x35, 0x06
_NR, _ARCH, _ARG0 = 0, 4, 16
_ALLOW, _KILL = 0x7FFF0000, 0x80000000


def _refuse(code: int) -> int:
    return 0x00050000 | code


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("<HBBI", code, if_true, if_false, value)


def _instructions() -> Iterator[bytes]:
    yield _step(_LOAD_WORD, _ARCH)
    yield _step(_JUMP_EQ, AUDIT_ARCH_X86_64, 1, 0)
    yield _step(_RETURN, _KILL)
    yield _step(_LOAD_WORD, _NR)
    yield _step(_JUMP_GE, X32_BIT, 0, 1)
    yield _step(_RETURN, _refuse(errno.ENOSYS))
    for number in DENIED.values():
        yield _step(_JUMP_EQ, number, 0, 1)
        yield _step(_RETURN, _refuse(errno.EPERM))
    for number in UNKNOWN_TO_SANDBOX.values():
        yield _step(_JUMP_EQ, number, 0, 1)
        yield _step(_RETURN, _refuse(errno.ENOSYS))
    for number in NO_NEW_USER_NAMESPACE.values():
        yield _step(_JUMP_EQ, number, 0, 4)
        yield _step(_LOAD_WORD, _ARG0)
        yield _step(_JUMP_SET, CLONE_NEWUSER, 0, 1)
        yield _step(_RETURN, _refuse(errno.EPERM))
        yield _step(_RETURN, _ALLOW)
    yield _step(_RETURN, _ALLOW)


def program() -> bytes:
    """The filter as classic BPF, 8 bytes an instruction (seccomp(2), linux/filter.h)."""
    return b"".join(_instructions())
