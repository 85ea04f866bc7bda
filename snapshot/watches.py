"""inotify watches of a frozen tree, in `files.img` (pure).

A watch is on a file, not on a name, so CRIU looks for a name to restore it by. It may find the second
name that an earlier freeze gave to the file (see `snapshot.pins`), which is gone by the next thaw: the
watch then follows the file to the name it has now. A watch on something that is gone altogether is
left out, as the kernel ends the watch of a running program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from snapshot import images
from snapshot.pins import Pin
from snapshot.plan import PIN_FOLDER

_INOTIFY, _WATCH = 13, 5
_INODE, _HANDLE, _PATH = 2, 7, 4

# Ids of files in images count up from 1; these are not theirs.
_FIRST_ID = 1 << 40

Exists = Callable[[str], bool]


def to_hold(files: bytes) -> tuple[images.RegularFile, ...]:
    """Watched files that CRIU knows by an earlier freeze's name only, for `pins.hold`."""
    names = sorted({path for _, path in _watches(files) if _is_pinned(path)})
    return tuple(images.RegularFile(_FIRST_ID + n, name, -1) for n, name in enumerate(names))


def adapt(
    files: bytes, pins: Iterable[Pin], changes: Mapping[int, images.Change], exists: Exists
) -> tuple[bytes, tuple[str, ...]]:
    """The image with watches where their files are now, and notes about those that are lost."""
    names = {pin.inode: _name_now(pin, changes) for pin in pins}
    lost: list[str] = []

    def place(inode: int, path: str) -> str | None:
        name = names.get(inode, path) if _is_pinned(path) else path
        if exists(name):
            return name
        lost.append(f"{name} is gone; the session does not hear of changes to it any more.")
        return None

    magic, records = images.split(files)
    changed = images.join(magic, [_change_entry(record, place) for record in records])
    return changed, tuple(lost)


def _name_now(pin: Pin, changes: Mapping[int, images.Change]) -> str:
    change = changes.get(pin.id)
    return change.name if change and change.name else pin.name


def _is_pinned(path: str) -> bool:
    return path.startswith(f"{PIN_FOLDER}/")


def _watches(files: bytes) -> Iterator[tuple[int, str]]:
    for record in images.split(files)[1]:
        for number, _, value in images.decode(record):
            if number == _INOTIFY and isinstance(value, bytes):
                for field, _, watch in images.decode(value):
                    if field == _WATCH and isinstance(watch, bytes):
                        yield _inode_and_path(watch)


def _inode_and_path(watch: bytes) -> tuple[int, str]:
    inode, path = 0, b""
    for number, _, value in images.decode(watch):
        if number == _INODE and isinstance(value, int):
            inode = value
        elif number == _HANDLE and isinstance(value, bytes):
            path = next(
                (v for n, _, v in images.decode(value) if n == _PATH and isinstance(v, bytes)), b""
            )
    return inode, path.decode()


_Place = Callable[[int, str], str | None]


def _change_entry(record: bytes, place: _Place) -> bytes:
    return images.encode(
        (
            number,
            wire,
            _change_inotify(value, place)
            if number == _INOTIFY and isinstance(value, bytes)
            else value,
        )
        for number, wire, value in images.decode(record)
    )


def _change_inotify(record: bytes, place: _Place) -> bytes:
    kept: list[images.Field] = []
    for number, wire, value in images.decode(record):
        if number != _WATCH or not isinstance(value, bytes):
            kept.append((number, wire, value))
            continue
        inode, path = _inode_and_path(value)
        # Without a path CRIU finds the file by the kernel's handle of it.
        name = place(inode, path) if path else path
        if name is not None:
            kept.append((number, wire, _renamed(value, name)))
    return images.encode(kept)


def _renamed(watch: bytes, name: str) -> bytes:
    if not name:
        return watch
    return images.encode(
        (number, wire, _with_path(value, name) if number == _HANDLE else value)
        for number, wire, value in images.decode(watch)
    )


def _with_path(handle: int | bytes, name: str) -> int | bytes:
    if isinstance(handle, int):
        return handle
    return images.encode(
        (number, wire, name.encode() if number == _PATH else value)
        for number, wire, value in images.decode(handle)
    )
