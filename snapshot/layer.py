"""The filesystem layer: what a session changed outside its volumes, kept in its snapshot.

Where the disk below a session stays, nothing of this is needed. Where it does not (a pod's container
is made anew from its image), the folders in `SandboxSpec.layer` are looked at before the first
program starts, and at the freeze, while the tree is held, what has changed since is stored: an index
of lines (see `tree.Item`) and the contents of files, both in parts of at most PART bytes, so that a
layer of any size passes through little memory.

Kept: content, holes, owners, modes, modification times, user attributes and ACLs, symbolic and hard
links, named pipes, and what was removed. Not kept: sockets (those of running programs come back with
them), devices, what is mounted below, access times, file capabilities, and the numbers of files.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from snapshot.layer_base import LayerError, baseline, opened_folder, told
from snapshot.model import SandboxSpec
from snapshot.plan import Mount, key_of
from snapshot.ports import SnapshotWriter
from snapshot.printable import printable
from snapshot.tree import Changes, Entry, Item, Run, Tree, difference, to_line
from snapshot.tree_scan import MOUNTED, opened, scan

__all__ = ["PART", "LayerError", "LayerRecord", "capture", "notes"]

PART = 4 * 2**20
"""Bytes of one part. The writer holds a few of them."""

ALONE = 2**20
"""A file of this size begins a part of its own, so that it is found again in the next snapshot."""

SMALL_HOLE = 2**16
"""Holes below this are stored as zeros: a file may have millions of them."""

NAMED = 3
"""So many of what was left out are named to the user, the rest is counted."""

LONGEST_NAME = 80


@dataclass(frozen=True, slots=True)
class LayerRecord:
    """A folder's layer in a snapshot: under which names its parts are, and what was left out."""

    folder: str
    key: str
    index_parts: int
    data_parts: int
    items: int
    bytes: int
    left_out: tuple[str, ...] = ()

    def index_name(self, part: int) -> str:
        """The snapshot's file with this part of the index."""
        return f"layer-{self.key}-index-{part}"

    def data_name(self, part: int) -> str:
        """The snapshot's file with this part of the contents."""
        return f"layer-{self.key}-data-{part}"


def capture(
    spec: SandboxSpec, mounts: Sequence[Mount], writer: SnapshotWriter
) -> tuple[LayerRecord, ...]:
    """Store what has changed, while nothing runs. Raises `LayerError`."""
    records = []
    for folder in spec.layer:
        with told(folder), opened_folder(spec, mounts, folder) as root:
            now = scan(root)
            empty = LayerRecord(folder, key_of(folder), 0, 0, 0, 0)
            changes = difference(baseline(spec, folder, root), now)
            records.append(_Taking(root, now, writer, empty).take(changes))
    return tuple(records)


def notes(records: Sequence[LayerRecord]) -> tuple[str, ...]:
    """What to tell the user about what the layers do not have."""
    return tuple(
        f"Not kept of {record.folder}: {', '.join(record.left_out)}."
        for record in records
        if record.left_out
    )


class _Parts:
    """Bytes on their way into the snapshot, a part at a time."""

    def __init__(self, writer: SnapshotWriter, name: Callable[[int], str]) -> None:
        self._writer, self._name = writer, name
        self._buffer = bytearray()
        self.number = 0

    @property
    def room(self) -> int:
        """Bytes that the part still takes. Never 0."""
        return PART - len(self._buffer)

    def add(self, data: bytes) -> tuple[int, int]:
        """Where they are now: (part, start). There must be room."""
        placed = self.number, len(self._buffer)
        self._buffer += data
        if not self.room:
            self.close()
        return placed

    def write(self, data: bytes) -> None:
        """Add any number of bytes, wherever a part ends."""
        while data:
            piece, data = data[: self.room], data[self.room :]
            self.add(piece)

    def close(self) -> None:
        """The next bytes begin a part."""
        if self._buffer:
            self._writer.add_file(self._name(self.number), bytes(self._buffer))
            self._buffer.clear()
            self.number += 1


class _Taking:
    """Stores the changes of one folder."""

    def __init__(self, root: int, now: Tree, writer: SnapshotWriter, record: LayerRecord) -> None:
        self._root, self._now, self._record = root, now, record
        self._index = _Parts(writer, record.index_name)
        self._data = _Parts(writer, record.data_name)
        self._first_names: dict[tuple[int, int], str] = {}
        self._left_out = dict(now.left_out)
        self._items = self._bytes = 0

    def take(self, changes: Changes) -> LayerRecord:
        """Store them all."""
        for path in changes.removed:
            self._put(Item(path, "gone"))
        for path in changes.changed:
            if (item := self._item(path, self._now.entries[path])) is not None:
                self._put(item)
        self._index.close()
        self._data.close()
        return replace(
            self._record,
            index_parts=self._index.number,
            data_parts=self._data.number,
            items=self._items,
            bytes=self._bytes,
            left_out=_summary(self._left_out),
        )

    def _put(self, item: Item) -> None:
        self._index.write(to_line(item))
        self._items += 1

    def _item(self, path: str, entry: Entry) -> Item | None:
        item = Item(
            path,
            entry.kind,
            mode=entry.mode,
            uid=entry.uid,
            gid=entry.gid,
            modified_ns=entry.modified_ns,
            target=entry.target,
            attributes=entry.attributes,
        )
        if entry.names > 1:
            first = self._first_names.setdefault(entry.inode, path)
            if first != path:
                return Item(path, entry.kind, same_as=first)
        if entry.kind != "file":
            return item
        try:
            return replace(item, size=entry.size, runs=self._contents(path, entry))
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            self._left_out[path] = MOUNTED
            self._first_names.pop(entry.inode, None)
            return None

    def _contents(self, path: str, entry: Entry) -> tuple[Run, ...]:
        runs: list[Run] = []
        with opened(self._root, path, os.O_RDONLY | os.O_NONBLOCK) as descriptor:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode) or found.st_size != entry.size:
                raise OSError(errno.ESTALE, f"{path} changed while it was read")
            if entry.size >= ALONE:
                self._data.close()
            for start, end in _data_ranges(descriptor, entry.size):
                runs += self._range(descriptor, start, end)
            if entry.size >= ALONE:
                self._data.close()
        return tuple(runs)

    def _range(self, descriptor: int, start: int, end: int) -> Iterator[Run]:
        while start < end:
            data = os.pread(descriptor, min(self._data.room, end - start), start)
            if not data:
                raise OSError(errno.ESTALE, "a file became shorter while it was read")
            yield Run(start, len(data), *self._data.add(data))
            start += len(data)
            self._bytes += len(data)


def _data_ranges(descriptor: int, size: int) -> Iterator[tuple[int, int]]:
    """Where a file has bytes, without its holes but the small ones."""
    begun, end = _next_data(descriptor, 0, size)
    while begun < size:
        start, stop = _next_data(descriptor, end, size)
        if start - end >= SMALL_HOLE or start == size:
            yield begun, end
            begun = start
        end = stop


def _next_data(descriptor: int, offset: int, size: int) -> tuple[int, int]:
    """The first bytes from `offset` on: (start, end); both are the file's size if there are none."""
    try:
        start = os.lseek(descriptor, offset, os.SEEK_DATA)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return size, size
    return min(start, size), min(os.lseek(descriptor, start, os.SEEK_HOLE), size)


def _summary(left_out: Mapping[str, str]) -> tuple[str, ...]:
    """Sockets and devices counted, the rest named."""
    counted = Counter(why for why in left_out.values() if why in _COUNTED)
    named = sorted(path for path, why in left_out.items() if why not in _COUNTED)
    lines = [f"{count} {_COUNTED[why]}" for why, count in sorted(counted.items())]
    lines += [
        f"{printable(path, LONGEST_NAME, keep_end=True)} ({left_out[path]})"
        for path in named[:NAMED]
    ]
    if len(named) > NAMED:
        lines.append(f"{len(named) - NAMED} more")
    return tuple(lines)


_COUNTED = {
    "a socket": "socket(s); those of running programs come back with them",
    "a device": "device(s)",
}
