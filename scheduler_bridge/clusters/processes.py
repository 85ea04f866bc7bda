"""Host processes that cannot be confused with later ones of the same PID."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from typing import Any


def is_alive(process: Mapping[str, Any]) -> bool:
    """Whether this very process lives. A zombie does not; the first process of a PID namespace
    becomes one only after everything in the namespace has ended."""
    try:
        with open(f"/proc/{int(process['pid'])}/stat", "rb") as handle:
            fields = handle.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return False
    state, started = fields[0], int(fields[19])
    return started == int(process["started"]) and state not in (b"Z", b"X")


def started(pid: int) -> int:
    """Field 22 of /proc/PID/stat. Raises `OSError` if there is no such process."""
    with open(f"/proc/{pid}/stat", "rb") as handle:
        return int(handle.read().rpartition(b")")[2].split()[19])


def kill(process: Mapping[str, Any]) -> None:
    """SIGKILL for this very process, if it lives."""
    try:
        descriptor = os.pidfd_open(int(process["pid"]))
    except OSError:
        return
    try:
        # looked at after the descriptor pins it: the PID cannot pass to another in between
        if is_alive(process):
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        os.close(descriptor)
