"""A private place in memory for CRIU's images: never on a disk, gone when we are gone.

It is private because it is mounted nowhere, not by its mode: CRIU reads images with the rights of
the sandbox's own root, an ordinary account of the host.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from snapshot import linux

PERCENT_OF_MEMORY = 90


@dataclass(frozen=True, slots=True)
class Scratch:
    """A folder in memory. `path` leads there in this process, and in a child that was given
    `descriptor` (`pass_fds`)."""

    descriptor: int

    @property
    def path(self) -> Path:
        return Path(f"/proc/self/fd/{self.descriptor}")

    def file_names(self) -> list[str]:
        """Names of the regular files directly in it, sorted."""
        return sorted(name for name in os.listdir(self.descriptor) if self._is_file(name))

    def _is_file(self, name: str) -> bool:
        found = os.stat(name, dir_fd=self.descriptor, follow_symlinks=False)
        return stat.S_ISREG(found.st_mode)

    def read(self, name: str) -> bytes:
        """One file's content."""
        with open(self.open(name, os.O_RDONLY), "rb") as handle:
            return handle.read()

    def write(self, name: str, content: bytes) -> None:
        """Create one file."""
        with open(self.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as handle:
            handle.write(content)

    def open(self, name: str, flags: int) -> int:
        """A descriptor of one file. Raises `ValueError` for a name that leads elsewhere."""
        if "/" in name or name in {"", ".", ".."}:
            raise ValueError(f"not a plain file name: {name!r}")
        return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644, dir_fd=self.descriptor)


@contextlib.contextmanager
def scratch() -> Iterator[Scratch]:
    """A new empty one, given back to the machine's memory at the end."""
    mounted = linux.private_tmpfs(PERCENT_OF_MEMORY)
    try:
        # The descriptor of a new mount is only a place (O_PATH): open its root for reading too.
        place = Scratch(os.open(f"/proc/self/fd/{mounted}", os.O_RDONLY | os.O_DIRECTORY))
    finally:
        os.close(mounted)
    try:
        yield place
    finally:
        os.close(place.descriptor)
