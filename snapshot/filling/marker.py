"""Says of a sandbox's folder that its tree lacks memory: set before a restore, gone with the last page.

It outlives everybody who could know. Whoever begins another tree in the folder clears it.
"""

from __future__ import annotations

from pathlib import Path

FILE = "filling"


def put(directory: Path) -> None:
    """The tree that is about to be restored lacks memory."""
    (directory / FILE).touch(mode=0o600)


def clear(directory: Path) -> None:
    """The folder's tree lacks nothing, or there is none. May be repeated."""
    (directory / FILE).unlink(missing_ok=True)


def is_set(directory: Path) -> bool:
    """Whether the folder's tree still lacks memory."""
    return (directory / FILE).exists()
