"""Putting a filesystem layer back, before the processes that expect it.

What is in a layer was chosen by programs inside a session, and where it is put they may have been
before: every name is reached from the folder's descriptor without following a link or entering a
mount, and what is there is removed, never written to. Applying twice gives the same.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager

from snapshot.errors import TamperedError
from snapshot.layer import LONGEST_NAME, LayerRecord, notes
from snapshot.layer_base import begin, opened_folder, told
from snapshot.model import SandboxSpec
from snapshot.pins import Namespace
from snapshot.plan import Mount
from snapshot.printable import printable
from snapshot.record import TreeRecord
from snapshot.tree import Attributes, Item, Run, from_line
from snapshot.tree_scan import attributes_of, opened

AHEAD = 4
"""Parts that are read while earlier ones are written."""

_FOLDER = os.O_RDONLY | os.O_DIRECTORY
_SQLITE = b"SQLite format 3\0"

ReadFile = Callable[[str], bytes]


def put_back(
    about: TreeRecord, spec: SandboxSpec, mounts: Sequence[Mount], read_file: ReadFile
) -> tuple[str, ...]:
    """Apply all layers of a snapshot; returns what the user should know. Raises as `apply`."""
    apply(about.layers, spec, mounts, read_file)
    return (*notes(about.layers), *_databases(about, Namespace(spec, mounts)))


def _databases(about: TreeRecord, space: Namespace) -> Iterator[str]:
    """SQLite remembers the number of its file, which is another one now, and then only reads."""
    folders = tuple(f"{record.folder.rstrip('/')}/" for record in about.layers)
    for name in sorted({pin.name for pin in about.pins if pin.name.startswith(folders)}):
        with contextlib.suppress(OSError):
            if _begins_with(space, name, _SQLITE):
                shown = printable(name, LONGEST_NAME, keep_end=True)
                yield f"{shown} can only be read until the program opens it again."


def _begins_with(space: Namespace, name: str, magic: bytes) -> bool:
    place = space.open(name)
    try:
        if not stat.S_ISREG(os.fstat(place).st_mode):
            return False
        with open(f"/proc/self/fd/{place}", "rb", buffering=0) as handle:
            return handle.read(len(magic)) == magic
    finally:
        os.close(place)


def apply(
    records: Sequence[LayerRecord],
    spec: SandboxSpec,
    mounts: Sequence[Mount],
    read_file: ReadFile,
) -> None:
    """Make the folders what they were. Raises `LayerError`, `TamperedError`, and what reading
    does."""
    begin(spec, mounts)
    for record in records:
        # Parts are closed here and not when they are collected, which may be in any thread: ending a
        # pool in one that is just being started never returns.
        with (
            told(record.folder),
            opened_folder(spec, mounts, record.folder) as root,
            closing(_parts(record.index_name, record.index_parts, read_file)) as index,
            closing(_parts(record.data_name, record.data_parts, read_file)) as data,
        ):
            _Applying(root, index, data).run()


class _Applying:
    """Applies one folder's layer."""

    def __init__(self, root: int, index: Iterator[bytes], data: Iterator[bytes]) -> None:
        self._root = root
        self._lines = _lines(index)
        self._contents = _Contents(data)
        self._make: dict[str, Callable[[int, str, Item], None]] = {
            "file": self._file,
            "link": self._link,
            "pipe": self._pipe,
        }

    def run(self) -> None:
        """Everything in order; folders get their attributes last, as their content moves them."""
        folders = []
        for item in self._lines:
            if item.kind == "folder":
                folders.append(item)
            if item.path:
                with self._parent(item.path) as (parent, name):
                    self._step(parent, name, item)
        for item in reversed(folders):
            with opened(self._root, item.path, _FOLDER) as descriptor:
                _finish(descriptor, item)

    def _step(self, parent: int, name: str, item: Item) -> None:
        if item.kind == "folder":
            _make_folder(parent, name)
            return
        _remove(parent, name)
        if item.same_as is not None:
            with self._parent(item.same_as) as (folder, first):
                os.link(first, name, src_dir_fd=folder, dst_dir_fd=parent, follow_symlinks=False)
        elif item.kind != "gone":
            self._make[item.kind](parent, name, item)

    @contextmanager
    def _parent(self, path: str) -> Iterator[tuple[int, str]]:
        above, _, name = path.rpartition("/")
        with opened(self._root, above, _FOLDER) as parent:
            yield parent, name

    def _file(self, parent: int, name: str, item: Item) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(name, flags, 0o600, dir_fd=parent)
        try:
            for run in item.runs:
                self._contents.copy(run, descriptor)
            os.ftruncate(descriptor, item.size)
            _finish(descriptor, item)
        finally:
            os.close(descriptor)

    def _link(self, parent: int, name: str, item: Item) -> None:
        os.symlink(item.target, name, dir_fd=parent)
        os.chown(name, item.uid, item.gid, dir_fd=parent, follow_symlinks=False)
        times = (item.modified_ns, item.modified_ns)
        os.utime(name, ns=times, dir_fd=parent, follow_symlinks=False)

    def _pipe(self, parent: int, name: str, item: Item) -> None:
        os.mkfifo(name, 0o600, dir_fd=parent)
        with opened(parent, name, os.O_RDONLY | os.O_NONBLOCK) as descriptor:
            _finish(descriptor, item)


def _make_folder(parent: int, name: str) -> None:
    """A folder, if there is none; what is in it stays."""
    with contextlib.suppress(FileNotFoundError):
        if _is_folder(parent, name):
            return
        os.unlink(name, dir_fd=parent)
    os.mkdir(name, 0o700, dir_fd=parent)


def _remove(parent: int, name: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        if _is_folder(parent, name):
            shutil.rmtree(name, dir_fd=parent)
        else:
            os.unlink(name, dir_fd=parent)


def _is_folder(parent: int, name: str) -> bool:
    return stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)


def _finish(descriptor: int, item: Item) -> None:
    """Owner before mode, which it would clear; mode before ACLs, which are part of it; times last."""
    os.fchown(descriptor, item.uid, item.gid)
    os.fchmod(descriptor, item.mode)
    _set_attributes(descriptor, item.attributes)
    os.utime(descriptor, ns=(item.modified_ns, item.modified_ns))


def _set_attributes(descriptor: int, wanted: Attributes) -> None:
    there = attributes_of(descriptor)
    for name in there.keys() - wanted.keys():
        os.removexattr(descriptor, name)
    for name, value in wanted.items():
        if there.get(name) != value:
            os.setxattr(descriptor, name, value)


class _Contents:
    """The data parts, wanted in their order."""

    def __init__(self, parts: Iterator[bytes]) -> None:
        self._parts = parts
        self._number = -1
        self._part = b""

    def copy(self, run: Run, descriptor: int) -> None:
        """Write a run's bytes to their place in a file."""
        while self._number < run.part:
            self._part = next(self._parts, b"")
            self._number += 1
        data = memoryview(self._part)[run.start : run.start + run.length]
        if self._number != run.part or len(data) != run.length:
            raise TamperedError("The snapshot's filesystem layer does not fit together.")
        offset = run.offset
        while data:
            written = os.pwrite(descriptor, data, offset)
            offset, data = offset + written, data[written:]


def _parts(
    name: Callable[[int], str], count: int, read_file: ReadFile
) -> Generator[bytes, None, None]:
    """The parts in order, the next ones already on their way. At most AHEAD are held. To be closed."""
    with ThreadPoolExecutor(AHEAD, "layer") as pool:
        coming: deque[Future[bytes]] = deque()
        try:
            for number in range(count):
                coming.append(pool.submit(read_file, name(number)))
                if len(coming) >= AHEAD:
                    yield coming.popleft().result()
            while coming:
                yield coming.popleft().result()
        finally:
            for future in coming:
                future.cancel()


def _lines(parts: Iterator[bytes]) -> Iterator[Item]:
    """The items of an index whose lines may go on in the next part."""
    rest = b""
    for part in parts:
        *whole, rest = (rest + part).split(b"\n")
        yield from map(_item, whole)
    if rest:
        raise TamperedError("The index of the snapshot's filesystem layer is cut short.")


def _item(line: bytes) -> Item:
    try:
        return from_line(line)
    except ValueError as error:
        raise TamperedError("The index of the snapshot's filesystem layer is damaged.") from error
