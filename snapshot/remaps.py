"""Files that a tree has open under a name that is gone, while they have another somewhere.

CRIU gives each a name of its own in the folder where it was (`link_remap.N`), opens it by that name at
the restore and removes the name. A snapshot is restored more than once: after a restore that failed,
and in every fork, all of which see the same home. So the name is taken away again after the freeze, and
each restore makes one that nobody else uses, from the link that `pins` holds.

What lies in the sandbox's own /tmp keeps CRIU's name: nobody else sees it, and a fork has a copy.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from snapshot.images import Change
from snapshot.pins import Namespace, Pin
from snapshot.plan import INNER_RUN, INNER_TMP, PIN_FOLDER

_PREFIX: Final = "link_remap."
_OWN: Final = (f"{INNER_TMP}/", f"{INNER_RUN}/", f"{PIN_FOLDER}/")


def _shared(pins: Iterable[Pin]) -> Iterator[tuple[Pin, str, str]]:
    """Those in folders that other sandboxes may see, with folder and name."""
    for pin in pins:
        folder, name = posixpath.split(pin.name)
        if pin.held == "link" and name.startswith(_PREFIX) and not pin.name.startswith(_OWN):
            yield pin, folder, name


@contextlib.contextmanager
def _opened(space: Namespace, folder: str) -> Iterator[int]:
    descriptor = space.open(folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def take_away(pins: Iterable[Pin], space: Namespace) -> None:
    """Remove CRIU's names, once the snapshot is committed. Raises nothing: one that stays is removed
    at the restore."""
    for pin, folder, name in _shared(pins):
        with contextlib.suppress(OSError), _opened(space, folder) as place:
            _remove(name, place, pin)


def _remove(name: str, place: int, pin: Pin) -> None:
    found = os.stat(name, dir_fd=place, follow_symlinks=False)
    if (found.st_dev, found.st_ino) == (pin.device, pin.inode):
        os.unlink(name, dir_fd=place)


def renew(
    pins: Iterable[Pin], space: Namespace, folder: Path, *, sandbox: str
) -> dict[int, Change]:
    """Give each file a name that only this sandbox uses, for CRIU to open and remove. What cannot
    have one (its folder is gone) is left to `pins.adapt`."""
    changes: dict[int, Change] = {}
    for pin, where, old in _shared(pins):
        new = f"{_PREFIX}{sandbox}.{pin.id}"
        with contextlib.suppress(OSError), _opened(space, where) as place:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(new, dir_fd=place)
            os.link(folder / str(pin.id), new, dst_dir_fd=place)
            changes[pin.id] = Change(unchecked=True, name=f"{where}/{new}")
            _remove(old, place, pin)
    return changes
