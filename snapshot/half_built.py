"""What a CRIU that was killed leaves of a tree: processes that belong to nobody, and go on waiting.

They are no longer its children, and they may have sessions and groups of their own. What all of them
have is the mounts that were made for this sandbox alone.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from snapshot import proc
from snapshot.model import Process


def half_built(directory: Path) -> list[Process]:
    """All processes with mounts of the sandbox's folder, other than those that see what we see.

    While a restore runs, or after it failed, these are that restore's: no other tree of the
    sandbox exists then."""
    ours, found = _mounts_of("self"), []
    for pid in proc.all_pids():
        if _mounts_of(pid) in ("", ours):
            continue
        if f"{directory}/" in proc.read_text(f"/proc/{pid}/mountinfo"):
            process = proc.identify(pid)
            found += [process] if process else []
    return found


def _mounts_of(pid: int | str) -> str:
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/{pid}/ns/mnt")
    return ""
