"""Letting CRIU make userfaultfds for the time of one restore.

In a user namespace of its own a tree may make one that also serves the kernel's accesses only while
`vm.unprivileged_userfaultfd` is 1. That is a setting of the whole host: it is raised for the
seconds of a restore and put back by the last restore that leaves. Sessions cannot use it meanwhile,
their seccomp filter refuses the call. What it was is kept in the lock file, so that a restore that
was killed leaves it to the next one, or to `settle`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

SETTING = Path("/proc/sys/vm/unprivileged_userfaultfd")
LOCK = Path("/run/hubernate-userfaultfd")


def is_possible() -> bool:
    """Whether this kernel has userfaultfd and we may allow it."""
    return SETTING.exists() and os.access(SETTING, os.W_OK)


@contextlib.contextmanager
def allowed() -> Iterator[None]:
    """Trees may make userfaultfds inside. Safe from several processes. Raises `OSError`."""
    lock = _open()
    try:
        fcntl.flock(lock, fcntl.LOCK_SH)
        while not _is_raised(lock):
            # Never waits for the end of another's restore: one that begins now raises it for both.
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _raise(lock)
            # Between the two another one may leave, as the last one, and lower it: hence the loop.
            fcntl.flock(lock, fcntl.LOCK_SH)
        yield
    finally:
        _leave(lock)


def settle() -> bool:
    """Put back what a killed restore left raised. True if there was something to put back."""
    if not LOCK.exists():
        return False
    lock = _open()
    return _leave(lock)


def _open() -> int:
    return os.open(LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def _is_raised(lock: int) -> bool:
    """Whether it was raised by one of us, and nobody has lowered it since."""
    return bool(os.pread(lock, 16, 0).strip()) and SETTING.read_text().strip() == "1"


def _raise(lock: int) -> None:
    if not os.pread(lock, 16, 0).strip():
        os.pwrite(lock, SETTING.read_text().encode(), 0)
    SETTING.write_text("1")


def _leave(lock: int) -> bool:
    """Lower the setting unless others are in the window. Gives up our part in any case."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        before = os.pread(lock, 16, 0).strip()
        if not before:
            return False
        SETTING.write_text(before.decode())
        os.ftruncate(lock, 0)
        return True
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
