"""Key-encryption keys as files of this machine: created, rotated, put aside, brought back.

`kek.key` is the one in use. `kek-ID.key` are others that still open something: keys that a rotation
has not finished replacing, and keys brought back from a backup. Whoever may read the folder may read
every snapshot, hence modes 0700 and 0600.

Two locks keep a rotation apart from everybody else, both given back by the kernel when their holder
dies. The folder's own: whoever wraps a secret *and stores it* holds it shared until it is stored;
whoever changes or erases what is stored holds it alone. `rotate.lock`: one rotation at a time.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import os
import uuid
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from snapshot.errors import KeyUnavailableError
from snapshot.sealing import KEY_BYTES, new_key, unwrap, wrap

CURRENT: Final = "kek.key"
ROTATION_LOCK: Final = "rotate.lock"
_OTHERS: Final = "kek-*.key"


class LocalWrapping:
    """`snapshot.keys.Wrapping` on a folder. Makes a key on first use, with mode 0600."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def wrap(self, secret: bytes, bound: bytes) -> tuple[str, bytes]:
        key = self._read_or_create()
        return fingerprint(key), wrap(key, secret, bound)

    def unwrap(self, key_id: str, wrapped: bytes, bound: bytes) -> bytes:
        return unwrap(self._find(key_id), wrapped, bound)

    def current_id(self) -> str:
        """Which key new secrets are wrapped with; made if there is none."""
        return fingerprint(self._read_or_create())

    @contextmanager
    def storing(self) -> Iterator[None]:
        with self._locked(fcntl.LOCK_SH):
            yield

    @contextmanager
    def changing(self) -> Iterator[None]:
        with self._locked(fcntl.LOCK_EX):
            yield

    @contextmanager
    def only_rotation(self) -> Iterator[None]:
        """Raises `KeyUnavailableError` while another process rotates."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self._directory / ROTATION_LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            _lock_at_once(descriptor)
            yield
        finally:
            os.close(descriptor)

    def begin_rotation(self) -> None:
        """Make a new key current; the one before stays for what it still opens. When this returns,
        nothing wrapped with the one before is on its way into the store any more."""
        old = self._read_or_create()
        aside = self._directory / f"kek-{fingerprint(old)}.key"
        if not aside.exists():
            os.link(self._directory / CURRENT, aside)
        self._synchronise()
        self._write_new(new_key()).rename(self._directory / CURRENT)
        self._synchronise()
        with self.changing():
            pass

    def forget_others(self, needed: Collection[str]) -> None:
        """Delete all keys but the current one and those with the ids that are still needed."""
        for path in self._directory.glob(_OTHERS):
            if fingerprint(read_key(path)) not in needed:
                path.unlink()
        self._synchronise()

    def all(self) -> Mapping[str, bytes]:
        """Every key by its id, the current one first; empty where there is none yet."""
        paths = (self._directory / CURRENT, *sorted(self._directory.glob(_OTHERS)))
        keys = (read_key(path) for path in paths if path.exists())
        return {fingerprint(key): key for key in keys}

    def bring_back(self, keys: Mapping[str, bytes]) -> tuple[str, ...]:
        """Take in keys of a backup, the first of which was current when it was made; returns the
        ids of those that were not here. Where there is a current key it stays so."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        here = self.all()
        added = tuple(key_id for key_id in keys if key_id not in here)
        for key_id in added:
            name = CURRENT if not (self._directory / CURRENT).exists() else f"kek-{key_id}.key"
            self._put(self._write_new(keys[key_id]), self._directory / name)
        return added

    def _find(self, key_id: str) -> bytes:
        for name in (CURRENT, f"kek-{key_id}.key"):
            try:
                key = read_key(self._directory / name)
            except FileNotFoundError:
                continue
            if fingerprint(key) == key_id:
                return key
        raise KeyUnavailableError(
            f"The key-encryption key {key_id} is not in {self._directory}.",
            remedy="Bring it back from its backup (hubernate keys import FILE); without it these "
            "snapshots stay closed.",
        )

    def _read_or_create(self) -> bytes:
        path = self._directory / CURRENT
        if not path.exists():
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._put(self._write_new(new_key()), path)
        return read_key(path)

    def _put(self, fresh: Path, path: Path) -> None:
        """Give a new key file its name, unless another process was first: then its key counts."""
        try:
            os.link(fresh, path)
        except FileExistsError:
            pass
        finally:
            fresh.unlink()
        self._synchronise()

    def _write_new(self, key: bytes) -> Path:
        path = self._directory / f".new-{uuid.uuid4().hex}"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as handle:
            handle.write(base64.b64encode(key) + b"\n")
            handle.flush()
            os.fsync(handle.fileno())
        return path

    def _synchronise(self) -> None:
        """Names in the folder survive a power cut from here on."""
        descriptor = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    @contextmanager
    def _locked(self, how: int) -> Iterator[None]:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, how)
            yield
        finally:
            os.close(descriptor)


def _lock_at_once(descriptor: int) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise KeyUnavailableError(
            "Another rotation of the keys is under way.", remedy="Wait until it is done."
        ) from error


def fingerprint(key: bytes) -> str:
    """A key's id. Tells nothing about the key, which is random."""
    return hashlib.sha256(b"hubernate kek" + key).hexdigest()[:16]


def read_key(path: Path) -> bytes:
    """The key in a file. Raises `FileNotFoundError`, and `KeyUnavailableError` for one that others
    may read or that is damaged."""
    mode = path.stat().st_mode & 0o077
    if mode:
        raise KeyUnavailableError(
            f"Others may read the key file {path}.", remedy=f"Type: chmod 600 {path}"
        )
    try:
        key = base64.b64decode(path.read_bytes(), validate=False)
    except ValueError as error:
        raise KeyUnavailableError(f"The key file {path} is damaged.") from error
    if len(key) != KEY_BYTES:
        raise KeyUnavailableError(f"The key file {path} does not hold {KEY_BYTES} bytes.")
    return key
