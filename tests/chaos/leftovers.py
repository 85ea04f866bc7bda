"""What else a machine could be left with: mounts, namespaces without a process, a setting.

The setting belongs to the whole machine, and others may be in the middle of a restore: it counts as
left behind only while nobody is.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from snapshot import proc
from snapshot.filling import window

KINDS: Final = ("pid:[", "net:[", "mnt:[", "user:[", "ipc:[", "uts:[", "cgroup:[")


@dataclass(frozen=True, slots=True)
class Traces:
    """The machine at one moment: mount points of our mount namespace, namespaces that only an open
    descriptor keeps, and whether everybody may make userfaultfds though nobody restores."""

    mounts: frozenset[str]
    namespaces: frozenset[str]
    is_raised: bool


def traces() -> Traces:
    """As it is now."""
    return Traces(
        frozenset(line.split()[4] for line in proc.read_text("/proc/self/mountinfo").splitlines()),
        frozenset(_kept()),
        is_left_raised(window.LOCK),
    )


def is_left_raised(lock: Path) -> bool:
    """Whether a restore that was killed has left the setting raised."""
    try:
        with lock.open("rb") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return bool(handle.read())
    except (FileNotFoundError, BlockingIOError):
        return False


def _kept() -> set[str]:
    found, inhabited = set(), set()
    for pid in proc.all_pids():
        with contextlib.suppress(OSError):
            for name in os.listdir(f"/proc/{pid}/ns"):
                inhabited.add(os.readlink(f"/proc/{pid}/ns/{name}"))
            for name in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    found.add(os.readlink(f"/proc/{pid}/fd/{name}"))
    return {link for link in found - inhabited if link.startswith(KINDS)}


def left(before: Traces, now: Traces) -> tuple[str, ...]:
    """What was not there before, in words (pure)."""
    found = [f"mount {each}" for each in sorted(now.mounts - before.mounts)]
    found += [f"namespace {each}" for each in sorted(now.namespaces - before.namespaces)]
    if now.is_raised and not before.is_raised:
        found.append("vm.unprivileged_userfaultfd is raised, and nobody restores")
    return tuple(found)
