"""Looking at a folder that somebody else fills: no link is followed, no mount is entered.

What is left out, and said: sockets and devices, what is mounted below, and folders nested so deeply
that the kernel takes no path to them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager

from snapshot import linux
from snapshot.tree import Attributes, Entry, Kind, Tree

MAX_ENTRIES = 500_000
"""They are all in memory at once, at about half a kilobyte each."""

MAX_WEIGHT = 2**28
"""Bytes of all names, link targets and attributes together."""
ATTRIBUTES = ("user.", "system.posix_acl_access", "system.posix_acl_default")
"""Others need privileges that no session has, or belong to the file system."""
_NOT_OURS = ("user.overlay.",)

_KINDS: dict[int, Kind] = {
    stat.S_IFDIR: "folder",
    stat.S_IFREG: "file",
    stat.S_IFLNK: "link",
    stat.S_IFIFO: "pipe",
}
MOUNTED = "mounted there"
_WHY_NOT = {
    errno.EXDEV: MOUNTED,
    errno.ENAMETOOLONG: "nested too deeply",
    errno.ELOOP: "changed while it was looked at",
    errno.ENOTDIR: "changed while it was looked at",
    errno.ENOENT: "changed while it was looked at",
}


class TooManyFilesError(Exception):
    """The folder has more entries than can be kept."""


def scan(root: int) -> Tree:
    """Everything below an open folder, and the folder itself. Raises `OSError`,
    `TooManyFilesError`."""
    return _Scan(root).run()


@contextmanager
def opened(root: int, path: str, flags: int) -> Iterator[int]:
    """A descriptor of what is at `path` below `root`, reached without links or mounts."""
    descriptor = linux.open_beneath(root, path or ".", flags | os.O_NOFOLLOW, same_mount=True)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


class _Scan:
    """One look, bounded in memory: how much there is, programs inside decide."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._weight = 0
        top = _entry("folder", os.fstat(root), attributes=attributes_of(root))
        self._tree = Tree({"": top})

    def run(self) -> Tree:
        """Folder after folder, without holding more than one open."""
        waiting = [""]
        while waiting:
            folder = waiting.pop()
            try:
                with opened(self._root, folder, os.O_RDONLY | os.O_DIRECTORY) as descriptor:
                    waiting += self._folder(descriptor, folder)
            except OSError as error:
                if error.errno not in _WHY_NOT:
                    raise
                self._tree.left_out[folder] = _WHY_NOT[error.errno]
                self._tree.entries.pop(folder, None)
        return self._tree

    def _folder(self, descriptor: int, folder: str) -> list[str]:
        """Add what is directly in it; returns the folders among it."""
        below = []
        with os.scandir(descriptor) as found:
            for it in found:
                path = f"{folder}/{it.name}" if folder else it.name
                with contextlib.suppress(FileNotFoundError):
                    if self._add(path, _look(descriptor, it)):
                        below.append(path)
        return below

    def _add(self, path: str, entry: Entry | str) -> bool:
        """Remember it; True for a folder."""
        self._weight += len(path)
        if isinstance(entry, str):
            self._tree.left_out[path] = entry
        else:
            self._weight += len(entry.target) + sum(map(len, entry.attributes.values()))
            self._tree.entries[path] = entry
        if len(self._tree.entries) + len(self._tree.left_out) > MAX_ENTRIES:
            raise TooManyFilesError(f"more than {MAX_ENTRIES} files")
        if self._weight > MAX_WEIGHT:
            raise TooManyFilesError(f"more than {MAX_WEIGHT} bytes of names and attributes")
        return not isinstance(entry, str) and entry.kind == "folder"


def _look(folder: int, it: os.DirEntry[str]) -> Entry | str:
    """An entry, or what it is if it cannot be kept."""
    found = it.stat(follow_symlinks=False)
    kind = _KINDS.get(stat.S_IFMT(found.st_mode))
    if kind is None:
        return "a socket" if stat.S_ISSOCK(found.st_mode) else "a device"
    if kind == "link":
        return _entry(kind, found, target=os.readlink(it.name, dir_fd=folder))
    return _entry(kind, found, attributes=attributes_of(f"/proc/self/fd/{folder}/{it.name}"))


def _entry(
    kind: Kind,
    found: os.stat_result,
    *,
    target: str = "",
    attributes: Attributes | None = None,
) -> Entry:
    return Entry(
        kind,
        stat.S_IMODE(found.st_mode),
        found.st_uid,
        found.st_gid,
        found.st_size,
        found.st_mtime_ns,
        found.st_ctime_ns,
        (found.st_dev, found.st_ino),
        found.st_nlink if kind != "folder" else 1,
        target,
        attributes or {},
    )


def attributes_of(file: str | int) -> Attributes:
    """The extended attributes that a layer keeps. A path's last name is not followed."""
    try:
        names = os.listxattr(file, follow_symlinks=isinstance(file, int))
        return {
            name: os.getxattr(file, name, follow_symlinks=isinstance(file, int))
            for name in names
            if name.startswith(ATTRIBUTES) and not name.startswith(_NOT_OURS)
        }
    except OSError as error:
        if error.errno in (errno.ENOTSUP, errno.ENODATA, errno.ENOENT):
            return {}
        raise
