"""Files of a frozen tree, held on to while the world changes.

A running program keeps the very file it opened or mapped, whatever happens to its name. A frozen one
must find it again by name. So at the freeze each file gets a second name in the sandbox's own
folder (a hard link: no bytes are copied), and at the thaw the images are told to use that name
where the first one means another file by then. Across disks, mapped files are copied instead. Folders
cannot have second names: where one is gone, an empty one stands in for it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from snapshot import images, linux
from snapshot.model import SandboxSpec
from snapshot.plan import DEVICE_FOLDER, PIN_FOLDER, Mount
from snapshot.printable import printable

COPY_BYTES = 256 * 2**20
"""At most this much of mapped files goes into a snapshot when they cannot be linked."""

_NOT_ON_DISK = ("/proc/", "/dev/", "/sys/", f"{DEVICE_FOLDER}/")


class PinError(Exception):
    """A file that the tree needs is gone and was not kept. The message names it."""

    def __init__(self, path: str) -> None:
        self.path = printable(path, keep_end=True)
        super().__init__(f"The file {self.path} that the session had open is gone.")


@dataclass(frozen=True, slots=True)
class Pin:
    """One file or folder at the freeze. `held` says how it was kept: `link`, `copy` or not at all."""

    id: int
    name: str
    device: int
    inode: int
    size: int
    modified_ns: int
    mode: int
    uid: int
    gid: int
    held: str = ""


@dataclass(frozen=True, slots=True)
class Adaptation:
    """What the thaw has to change in the images, and what to tell the user about it."""

    changes: dict[int, images.Change]
    notes: tuple[str, ...]


class Namespace:
    """Host files behind the paths inside a sandbox."""

    def __init__(self, spec: SandboxSpec, mounts: Sequence[Mount]) -> None:
        self._root = f"{spec.directory}/root"
        self._mounts = sorted(mounts, key=lambda mount: -len(mount.target))

    def open(self, path: str) -> int:
        """A descriptor (O_PATH) of the file at `path` inside, following no links: the user owns
        some of the folders on the way. Raises `OSError`."""
        base, rest = self._split(path)
        if not rest:
            return os.open(base, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        folder = os.open(base, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return linux.open_beneath(folder, rest, os.O_PATH | os.O_NOFOLLOW)
        finally:
            os.close(folder)

    def stat(self, path: str) -> os.stat_result | None:
        """What is at `path` now, None if nothing."""
        try:
            with _opened(self, path) as descriptor:
                return os.fstat(descriptor)
        except OSError:
            return None

    def _split(self, path: str) -> tuple[str, str]:
        for mount in self._mounts:
            if path == mount.target:
                return mount.source, ""
            if path.startswith(f"{mount.target}/"):
                return mount.source, path[len(mount.target) + 1 :]
        return self._root, path.lstrip("/")


@contextlib.contextmanager
def _opened(space: Namespace, path: str) -> Iterator[int]:
    descriptor = space.open(path)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def hold(
    files: Iterable[images.RegularFile],
    space: Namespace,
    folder: Path,
    *,
    open_files: frozenset[int],
) -> tuple[Pin, ...]:
    """Give every file on disk a second name below `folder` while the tree is held.

    Files that cannot be linked are marked `copy` where only mapped (`open_files` are written to, a
    copy would part from them) and while COPY_BYTES last; the caller stores those.
    """
    folder.mkdir(mode=0o755, exist_ok=True)
    folder.chmod(0o755)
    place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return _hold_all(files, space, place, open_files)
    finally:
        os.close(place)


def _hold_all(
    files: Iterable[images.RegularFile], space: Namespace, place: int, open_files: frozenset[int]
) -> tuple[Pin, ...]:
    pins, left = [], COPY_BYTES
    for file in files:
        if file.name.startswith(_NOT_ON_DISK):
            continue
        try:
            it = space.open(file.name)
        except OSError:
            # Gone, or reached only through a link that was laid there since: not the tree's file.
            continue
        try:
            found = os.fstat(it)
            if stat.S_ISDIR(found.st_mode):
                pins.append(_pin(file, found, ""))
            if not stat.S_ISREG(found.st_mode):
                continue
            held = _link(it, place, str(file.id))
            if not held and file.id not in open_files and found.st_size <= left:
                held, left = "copy", left - found.st_size
            pins.append(_pin(file, found, held))
        finally:
            os.close(it)
    return tuple(pins)


def _link(descriptor: int, folder: int, name: str) -> str:
    try:
        # Only with a folder's descriptor does Python make the call that follows /proc/self/fd/N.
        os.link(f"/proc/self/fd/{descriptor}", name, dst_dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.EXDEV, errno.EMLINK, errno.EPERM, errno.EACCES):
            return ""
        raise
    return "link"


def _pin(file: images.RegularFile, found: os.stat_result, held: str) -> Pin:
    return Pin(
        id=file.id,
        name=file.name,
        device=found.st_dev,
        inode=found.st_ino,
        size=found.st_size,
        modified_ns=found.st_mtime_ns,
        mode=found.st_mode,
        uid=found.st_uid,
        gid=found.st_gid,
        held=held,
    )


def read(pin: Pin, space: Namespace) -> bytes:
    """The content of a file marked `copy`."""
    with (
        _opened(space, pin.name) as descriptor,
        open(f"/proc/self/fd/{descriptor}", "rb") as handle,
    ):
        return handle.read()


def put_back(pin: Pin, content: bytes, folder: Path) -> None:
    """Lay a copied file into the pin folder. Nothing happens if it is there already."""
    place = folder / str(pin.id)
    if place.exists():
        return
    folder.mkdir(mode=0o755, exist_ok=True)
    temporary = place.with_suffix(".new")
    temporary.write_bytes(content)
    os.chown(temporary, pin.uid, pin.gid)
    # Never set-user-ID: all accounts of this machine can reach it, whatever the file is by now.
    temporary.chmod(pin.mode & 0o777)
    temporary.replace(place)


def adapt(pins: Iterable[Pin], space: Namespace, folder: Path) -> Adaptation:
    """How to bring the tree back into the world as it is now. Raises `PinError`."""
    changes: dict[int, images.Change] = {}
    notes: list[str] = []
    for pin in pins:
        now = space.stat(pin.name)
        if stat.S_ISDIR(pin.mode):
            if now is None or not stat.S_ISDIR(now.st_mode):
                changes[pin.id] = images.Change(unchecked=True, name=_stand_in(pin, folder))
                notes.append(f"The folder {pin.name} is gone; an empty one stands in for it.")
            continue
        if now is not None and not stat.S_ISREG(now.st_mode):
            now = None
        if now is not None and _is_same(pin, now):
            if (now.st_size, now.st_mtime_ns) != (pin.size, pin.modified_ns):
                changes[pin.id] = images.Change(unchecked=True)
                notes.append(f"{pin.name} changed meanwhile; the session sees it as it is now.")
            continue
        if now is not None and _is_equal(pin, now):
            continue
        kept = folder / str(pin.id)
        if kept.exists():
            inside = f"{PIN_FOLDER}/{folder.name}/{pin.id}"
            changes[pin.id] = images.Change(unchecked=_has_grown(pin, kept), name=inside)
            if not pin.name.startswith(f"{PIN_FOLDER}/"):
                what = "was removed" if now is None else "was replaced"
                notes.append(f"{pin.name} {what} meanwhile; the session keeps the file it had.")
        elif now is None:
            raise PinError(pin.name)
        else:
            changes[pin.id] = images.Change(unchecked=True)
            notes.append(f"{pin.name} was replaced meanwhile; the session sees the new one.")
    return Adaptation(changes, tuple(notes))


def _stand_in(pin: Pin, folder: Path) -> str:
    """An empty folder that cannot be written to; its path inside."""
    folder.mkdir(mode=0o755, exist_ok=True)
    place = folder / str(pin.id)
    place.mkdir(exist_ok=True)
    place.chmod(0o555)
    return f"{PIN_FOLDER}/{folder.name}/{pin.id}"


def _is_same(pin: Pin, now: os.stat_result) -> bool:
    return (now.st_dev, now.st_ino) == (pin.device, pin.inode)


def _is_equal(pin: Pin, now: os.stat_result) -> bool:
    """Another copy of the same file, as on another machine or after a restored backup."""
    return (now.st_size, now.st_mtime_ns) == (pin.size, pin.modified_ns)


def _has_grown(pin: Pin, kept: Path) -> bool:
    return kept.stat().st_size != pin.size


def forget_others(spec: SandboxSpec, kept: str) -> None:
    """Remove the pins of all earlier freezes: they are superseded once a new one is committed."""
    for folder in Path(spec.directory, "pins").iterdir():
        if folder.name != kept:
            shutil.rmtree(folder)
