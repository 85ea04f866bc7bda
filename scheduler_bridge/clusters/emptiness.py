"""Proof that a supervisor which is gone has left no sandbox, although it never told of one.

Whatever may hold a sandbox's devices shows itself in one of these ways:

1. a supervisor, and what it has forked until that runs a program of its own, holds the lock of its
   folder;
2. the launcher that builds a sandbox is seen by its command line until it mounts anything;
3. the launcher from then on, CRIU, and every process inside live in a mount namespace that shows
   parts of the folder. Who is inside can neither leave that nor unmount anything.

Where a process cannot be looked at, nothing is proven. A launcher may end and a sandbox begin
between two steps of one look, so only two empty looks in a row are a proof.
"""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import Final

LOCK_FILE: Final = "supervisor.lock"
_LAUNCHER: Final = b"snapshot.launch"
_STATE, _FLAGS = 0, 6
_KERNEL_THREAD: Final = 0x0020_0000
_LOOKS: Final = 2


def is_without_sandbox(folder: Path) -> bool:
    """Whether nothing lives that was started from this folder. False proves nothing."""
    if not folder.name or _is_locked(folder):
        return False
    return not any(_is_somebody_there(folder.name) for _ in range(_LOOKS))


def _is_locked(folder: Path) -> bool:
    """Whether a supervisor may be at work. One that never took its folder has started nothing."""
    try:
        descriptor = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def _is_somebody_there(name: str) -> bool:
    mark = f"/{name}/".encode()
    return any(_may_belong(int(pid), mark) for pid in os.listdir("/proc") if pid.isdigit())


def _may_belong(pid: int, mark: bytes) -> bool:
    """Whether a process may be part of that sandbox, or about to build it."""
    try:
        if not _runs_programs(pid):
            return False
        if any(mark in root for root in _mounted_roots(pid)):
            return True
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        # While a program is being exchanged for the launcher, its command line is empty for a
        # moment. That is in our mount namespace; elsewhere there are many reasons for it.
        return _LAUNCHER in command if command else _is_beside_us(pid)
    except (FileNotFoundError, ProcessLookupError):
        return False  # it has just ended
    except OSError as error:
        # A process without namespaces has closed all its files before; it only waits to be reaped.
        return error.errno != errno.EINVAL or _has_threads(pid)


def _runs_programs(pid: int) -> bool:
    """False for threads of the kernel, and for a process that has ended with all its threads."""
    with open(f"/proc/{pid}/stat", "rb") as handle:
        fields = handle.read().rpartition(b")")[2].split()
    if int(fields[_FLAGS]) & _KERNEL_THREAD:
        return False
    return fields[_STATE] not in (b"Z", b"X") or _has_threads(pid)


def _has_threads(pid: int) -> bool:
    """Whether there are threads beside the first, which may run on when that has ended."""
    try:
        return len(os.listdir(f"/proc/{pid}/task")) > 1
    except (FileNotFoundError, ProcessLookupError):
        return False


def _is_beside_us(pid: int) -> bool:
    return os.readlink(f"/proc/{pid}/ns/mnt") == os.readlink("/proc/self/ns/mnt")


def _mounted_roots(pid: int) -> list[bytes]:
    """Which folders of their file systems the process sees mounted (field 4 of mountinfo), with a
    slash at the end."""
    lines = Path(f"/proc/{pid}/mountinfo").read_bytes().splitlines()
    return [line.split(b" ")[3] + b"/" for line in lines]
