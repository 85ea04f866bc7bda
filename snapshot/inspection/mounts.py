"""The mounts a process sees, and which folders on the way to a file a restore cannot pass."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field

from snapshot import proc
from snapshot.inspection.facts import IdMaps, Inode

PASS, WRITE = 1, 2


@dataclass(frozen=True, slots=True)
class Mounts:
    """Of one process: its mounts' numbers, and file systems by device number as the kernel counts
    (major shifted by 20, plus minor)."""

    numbers: frozenset[int]
    kinds: dict[int, str]


def read(pid: int) -> Mounts:
    """What /proc/PID/mountinfo says."""
    return parse(proc.read_text(f"/proc/{pid}/mountinfo"))


def parse(text: str) -> Mounts:
    """The same of its text (pure)."""
    numbers, kinds = set(), {}
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split()
        if len(fields) < 3 or not after:
            continue
        major, _, minor = fields[2].partition(":")
        numbers.add(int(fields[0]))
        kinds[int(major) << 20 | int(minor)] = after.split()[0]
    return Mounts(frozenset(numbers), kinds)


def inode(found: os.stat_result) -> Inode:
    """What rules need of a stat."""
    device = (os.major(found.st_rdev), os.minor(found.st_rdev))
    size = found.st_blocks * 512
    return Inode(found.st_uid, found.st_gid, found.st_mode, found.st_nlink, size, device)


@dataclass(slots=True)
class Ways:
    """Answers, for one tree, which folder on the way to a path is closed. Remembers what it saw, so
    that 2,000 files in one folder cost one look."""

    root: str
    ids: IdMaps
    _seen: dict[str, str] = field(default_factory=dict)
    _parents: dict[str, bool] = field(default_factory=dict)

    def closed_folder(self, path: str) -> str:
        """The first folder above `path` that cannot be passed, empty if there is none. Folders that
        are gone count as passable: a restore makes them anew."""
        folder = os.path.dirname(path)
        known = self._seen.get(folder)
        if known is None:
            known = next((name for name in _above(path) if not self._passes(name)), "")
            self._seen[folder] = known
        return known

    def closed_parent(self, path: str) -> bool:
        """Whether no file can be created next to `path`."""
        folder = os.path.dirname(path)
        known = self._parents.get(folder)
        if known is None:
            known = self._parents[folder] = not self._lets(folder, PASS | WRITE)
        return known

    def _passes(self, folder: str) -> bool:
        return self._lets(folder, PASS)

    def _lets(self, folder: str, wanted: int) -> bool:
        try:
            found = os.lstat(self.root + folder)
        except OSError:
            return True
        return not stat.S_ISDIR(found.st_mode) or self.ids.lets(inode(found), wanted)


def _above(path: str) -> Iterator[str]:
    """`/a`, `/a/b` of `/a/b/c`; the root itself is everybody's."""
    parts = path.split("/")[1:-1]
    for count in range(1, len(parts) + 1):
        yield "/" + "/".join(parts[:count])
