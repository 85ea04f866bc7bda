"""Processes as /proc shows them: identity, namespaces, members of a sandbox.

Only reads. A process may vanish between two reads: functions then say so with None or leave it out.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from snapshot.model import Process

_STATE, _PARENT, _STARTED = 0, 1, 19
GONE_STATES = frozenset({"Z", "X", "x"})


@dataclass(frozen=True, slots=True)
class Stat:
    """The fields of /proc/PID/stat that we use. `started` is in clock ticks since boot."""

    pid: int
    name: str
    state: str
    parent: int
    started: int


def stat(pid: int) -> Stat | None:
    """What /proc/PID/stat says now, or None if there is no such process."""
    text = read_text(f"/proc/{pid}/stat")
    if not text:
        return None
    # The name may itself hold spaces and brackets; the last bracket ends it.
    head, _, tail = text.rpartition(")")
    fields = tail.split()
    name = head.partition("(")[2]
    return Stat(pid, name, fields[_STATE], int(fields[_PARENT]), int(fields[_STARTED]))


def read_text(path: str) -> str:
    """A small file of /proc as text, empty if it cannot be read (gone, or not ours to read)."""
    try:
        with open(path, encoding="utf-8", errors="replace") as handle:
            return handle.read()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return ""


def identify(pid: int) -> Process | None:
    """The process with this PID now, or None if there is none."""
    found = stat(pid)
    return Process(found.pid, found.started) if found else None


def exists(process: Process) -> bool:
    """True while exactly this process exists, running, stopped or as a zombie."""
    found = stat(process.pid)
    return found is not None and found.started == process.started


def has_ended(process: Process) -> bool:
    """True once this process can run no instruction any more (a zombie counts).

    The first process of a PID namespace becomes a zombie only after the kernel has killed and
    reaped every other member, so for it this is also the proof that the namespace is empty. A
    zombie leader whose other threads still run does not count.
    """
    found = stat(process.pid)
    if found is None or found.started != process.started:
        return True
    return found.state in GONE_STATES and len(_names(f"/proc/{process.pid}/task")) <= 1


def all_pids() -> Iterator[int]:
    """PIDs of all processes of this machine."""
    return (int(name) for name in _names("/proc") if name.isdigit())


def pid_namespace(pid: int) -> str:
    """The name of the PID namespace a process lives in, empty if it is gone."""
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return ""


def members(first: Process) -> tuple[Process, ...]:
    """Every process in the PID namespace of `first`, itself first; empty once it has ended."""
    namespace = pid_namespace(first.pid)
    if not namespace or has_ended(first) or namespace == pid_namespace(os.getpid()):
        return ()
    # PIDs are read before identities: one that was reused meanwhile shows another namespace.
    pids = [pid for pid in all_pids() if pid_namespace(pid) == namespace]
    found = [process for process in map(identify, sorted(pids)) if process]
    return tuple(sorted(found, key=lambda process: (process != first, process.pid)))


def children(pid: int) -> tuple[int, ...]:
    """PIDs of the direct children of all threads of a process."""
    found: list[int] = []
    for task in _names(f"/proc/{pid}/task"):
        found += map(int, read_text(f"/proc/{pid}/task/{task}/children").split())
    return tuple(found)


def threads(pid: int) -> tuple[int, ...]:
    """The ids of all threads of a process, itself among them; empty once it is gone."""
    return tuple(map(int, _names(f"/proc/{pid}/task")))


def arguments(pid: int) -> tuple[str, ...]:
    """The argument vector, empty for a zombie or a process that is gone."""
    text = read_text(f"/proc/{pid}/cmdline")
    return tuple(text.removesuffix("\0").split("\0")) if text else ()


def command(pid: int) -> str:
    """The command line for people, cut to 200 characters; the process's name if it has none."""
    words = " ".join(arguments(pid))
    if not words:
        found = stat(pid)
        words = found.name if found else ""
    return words[:200]


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except (FileNotFoundError, ProcessLookupError, NotADirectoryError):
        return []
