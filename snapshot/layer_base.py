"""How the folders of a filesystem layer were before the session: what `layer` compares with."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from snapshot.errors import SnapshotError
from snapshot.model import SandboxSpec
from snapshot.pins import Namespace
from snapshot.plan import Mount, key_of
from snapshot.tree import Fingerprints, fingerprints
from snapshot.tree_scan import TooManyFilesError, scan

_FOLDER = "layer"
TICK_NS = 20_000_000
"""Twice the coarsest step of a file system's clock."""


class LayerError(SnapshotError):
    """A layer cannot be kept or applied. The message names the folder."""


def begin(
    spec: SandboxSpec, mounts: Sequence[Mount], *, now_ns: Callable[[], int] = time.time_ns
) -> None:
    """Look at the layer's folders before anything of the session is in them. A folder that was
    looked at before, and is still the same one, keeps its first look. Raises `LayerError`."""
    if not spec.layer:
        return
    Path(spec.directory, _FOLDER).mkdir(mode=0o700, exist_ok=True)
    for folder in spec.layer:
        with told(folder), opened_folder(spec, mounts, folder) as root:
            if _read(spec, folder, root) is None:
                settled_ns = now_ns() - TICK_NS
                _write(spec, folder, _document(root, settled_ns))


def baseline(spec: SandboxSpec, folder: str, root: int) -> Fingerprints:
    """The first look. Without one all that is there counts as new, so that nothing is lost."""
    return _read(spec, folder, root) or {}


@contextmanager
def opened_folder(spec: SandboxSpec, mounts: Sequence[Mount], folder: str) -> Iterator[int]:
    """The host's folder behind a path inside."""
    place = Namespace(spec, mounts).open(folder.rstrip("/"))
    try:
        # Where the path leads was settled without links; this only opens the same for reading.
        root = os.open(f"/proc/self/fd/{place}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    finally:
        os.close(place)
    try:
        yield root
    finally:
        os.close(root)


@contextmanager
def told(folder: str) -> Iterator[None]:
    """Failures name the folder."""
    try:
        yield
    except TooManyFilesError as error:
        raise LayerError(
            f"There are {error} in {folder}.", remedy="Remove some, or move them to your home."
        ) from error
    except OSError as error:
        raise LayerError(f"The files in {folder} cannot be kept or put back: {error}.") from error


def _identity(root: int) -> list[int]:
    found = os.fstat(root)
    return [found.st_dev, found.st_ino]


def _file(spec: SandboxSpec, folder: str) -> Path:
    return Path(spec.directory, _FOLDER, f"{key_of(folder)}.json")


def _read(spec: SandboxSpec, folder: str, root: int) -> dict[str, str] | None:
    """None if there is none, or it is of another folder that was here before."""
    try:
        document = json.loads(_file(spec, folder).read_bytes())
        if document["root"] != _identity(root):
            return None
        return {str(path): str(seen) for path, seen in document["fingerprints"].items()}
    except (FileNotFoundError, ValueError, LookupError, TypeError):
        return None


def _document(root: int, settled_ns: int) -> dict[str, Any]:
    seen = fingerprints(scan(root), settled_ns=settled_ns)
    return {"root": _identity(root), "fingerprints": seen}


def _write(spec: SandboxSpec, folder: str, document: dict[str, Any]) -> None:
    path = _file(spec, folder)
    temporary = path.with_suffix(".new")
    temporary.write_text(json.dumps(document))  # names that are not UTF-8 are escaped
    temporary.replace(path)
