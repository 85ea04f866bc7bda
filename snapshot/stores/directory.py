"""Objects as files below one directory: for tests, single machines and shared file systems."""

from __future__ import annotations

import os
import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from snapshot.errors import (
    AlreadyExistsError,
    MissingError,
    StoreDeniedError,
    StoreUnavailableError,
)
from snapshot.stores.base import Data, Entry, Size, check_key

_TEMPORARY = ".new-"  # no key can name it: see `_is_object`


class DirectoryStore:
    """`Store` on a directory. Written to a temporary file, synchronised, renamed, then the folder
    is synchronised: after `put` returned, the object survives a power cut."""

    def __init__(self, root: Path) -> None:
        self._root = root
        root.mkdir(mode=0o700, parents=True, exist_ok=True)

    @property
    def excludes(self) -> bool:
        """A hard link is made or refused in one step."""
        return True

    def put(self, key: str, data: Data, *, if_absent: bool = False) -> None:
        path = self._path(key)
        with self._translated(key):
            temporary = self._write(path, data)
            try:
                if if_absent:
                    os.link(temporary, path)
                else:
                    os.rename(temporary, path)
            except FileExistsError as error:
                raise AlreadyExistsError(f"The object {key} exists already.") from error
            finally:
                temporary.unlink(missing_ok=True)
            _synchronise(path.parent)

    def get(self, key: str, *, start: int | None = None, end: int | None = None) -> bytes:
        first = start or 0
        with self._translated(key), self._path(key).open("rb") as handle:
            handle.seek(first)
            return handle.read(-1 if end is None else max(end - first, 0))

    def head(self, key: str) -> Size | None:
        try:
            with self._translated(key):
                status = self._path(key).stat()
        except MissingError:
            return None
        return Size(status.st_size) if stat.S_ISREG(status.st_mode) else None

    def list(self, prefix: str) -> Iterator[Entry]:
        with self._translated(prefix):
            found = sorted(self._walk(self._root / prefix.rpartition("/")[0], prefix))
        for key, path in found:
            try:
                status = path.stat()
            except FileNotFoundError:  # deleted meanwhile
                continue
            yield Entry(key, Size(status.st_size), status.st_mtime)

    def delete(self, key: str) -> None:
        with suppress(MissingError), self._translated(key):
            self._path(key).unlink(missing_ok=True)

    def sweep(self, before: float) -> int:
        swept = 0
        for parent, _, names in os.walk(self._root):
            for path in (Path(parent, name) for name in names if name.startswith(_TEMPORARY)):
                with suppress(FileNotFoundError):
                    if path.stat().st_mtime < before:
                        path.unlink()
                        swept += 1
        return swept

    def _walk(self, folder: Path, prefix: str) -> Iterator[tuple[str, Path]]:
        for parent, _, names in os.walk(folder):
            for name in names:
                path = Path(parent, name)
                key = path.relative_to(self._root).as_posix()
                if not name.startswith(_TEMPORARY) and key.startswith(prefix):
                    yield key, path

    def _path(self, key: str) -> Path:
        check_key(key)
        if key.rpartition("/")[2].startswith(_TEMPORARY):
            raise ValueError(f"not a key of an object: {key!r}")
        return self._root / key

    @staticmethod
    def _write(path: Path, data: Data) -> Path:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = path.parent / f"{_TEMPORARY}{uuid.uuid4().hex}"
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "wb", buffering=0) as handle:
                view = memoryview(data)
                while view:
                    view = view[handle.write(view) :]
                os.fsync(handle.fileno())
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        return temporary

    @contextmanager
    def _translated(self, key: str) -> Iterator[None]:
        try:
            yield
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
            raise MissingError(f"There is no object {key} in {self._root}.") from error
        except PermissionError as error:
            message = f"The store {self._root} refused {key}: {error.strerror}."
            raise StoreDeniedError(message) from error
        except OSError as error:
            message = f"The store {self._root} failed on {key}: {error.strerror}."
            raise StoreUnavailableError(message) from error


def _synchronise(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
