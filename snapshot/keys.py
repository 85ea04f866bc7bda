"""Keys: who can read what, and how everything of a user is erased.

```
key-encryption key (this machine's file, or a KMS)   wraps
  user keys (one record each in the store)           wrap
    a data key per pack and per manifest             seals
```

User keys lie wrapped **in the store**, next to what they open: every node that has the
key-encryption key can read them, and the only thing to back up besides the store is one small file
that does not change. Rotating the key-encryption key rewrites those records, nothing else.
`erase` deletes a user's records; then nobody can read anything of that user, in whatever cache or
copy of a pack. (Buckets that keep old versions must not do so below `keys/`.)

A record is named by a random id and never replaced by another key, as stores exist that cannot
create exclusively: if two sessions create a user's first key at once there are two, both valid, and
from then on everybody uses the one that sorts first.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from snapshot.codec import NAME_BYTES
from snapshot.errors import KeyUnavailableError, MissingError, TamperedError
from snapshot.names import user_key_prefix
from snapshot.sealing import KEY_BYTES, Buffer, new_key, unwrap, wrap
from snapshot.stores.base import Store

CURRENT = "kek.key"
RECORD_VERSION = 1


class Wrapping(Protocol):
    """The outermost key: a local file here, a KMS elsewhere."""

    def wrap(self, secret: bytes, bound: bytes) -> tuple[str, bytes]:
        """The id of the key used, and the wrapped secret."""
        ...

    def unwrap(self, key_id: str, wrapped: bytes, bound: bytes) -> bytes:
        """The secret. Raises `KeyUnavailableError` and `TamperedError`."""
        ...


class LocalWrapping:
    """Key-encryption keys in a folder: `kek.key`, and `kek-ID.key` for each one that a rotation
    has not finished replacing. Created on first use with mode 0600; others must not read them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def wrap(self, secret: bytes, bound: bytes) -> tuple[str, bytes]:
        key = self._read_or_create()
        return _fingerprint(key), wrap(key, secret, bound)

    def unwrap(self, key_id: str, wrapped: bytes, bound: bytes) -> bytes:
        return unwrap(self._find(key_id), wrapped, bound)

    def rotate(self) -> None:
        """Make a new current key; the old one stays for what it still opens."""
        old = self._read_or_create()
        retired = self._directory / f"kek-{_fingerprint(old)}.key"
        if not retired.exists():
            os.link(self._directory / CURRENT, retired)
        fresh = self._write_new(new_key())
        fresh.rename(self._directory / CURRENT)

    def forget_retired(self) -> None:
        """Delete all keys but the current one. Only when nothing is wrapped by them any more."""
        for path in self._directory.glob("kek-*.key"):
            path.unlink()

    def _find(self, key_id: str) -> bytes:
        for name in (CURRENT, f"kek-{key_id}.key"):
            path = self._directory / name
            if path.exists() and _fingerprint(key := _read_key(path)) == key_id:
                return key
        raise KeyUnavailableError(
            f"The key-encryption key {key_id} is not in {self._directory}.",
            remedy="Bring the file back from its backup; without it these snapshots stay closed.",
        )

    def _read_or_create(self) -> bytes:
        path = self._directory / CURRENT
        if not path.exists():
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            fresh = self._write_new(new_key())
            try:
                os.link(fresh, path)
            except FileExistsError:
                pass  # another process was first; its key counts
            finally:
                fresh.unlink()
        return _read_key(path)

    def _write_new(self, key: bytes) -> Path:
        path = self._directory / f".new-{uuid.uuid4().hex}"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as handle:
            handle.write(base64.b64encode(key) + b"\n")
            handle.flush()
            os.fsync(handle.fileno())
        return path


@dataclass(frozen=True, slots=True)
class UserKey:
    """One user's key, opened. Wraps data keys and names chunks; both uses have their own key."""

    owner: str
    id: str
    _wrapping: bytes = field(repr=False)
    _naming: bytes = field(repr=False)

    def name(self, content: Buffer) -> bytes:
        """A chunk's name. HMAC-SHA-256, as processors compute SHA-256 themselves: twice the speed
        of BLAKE2b where measured. Nobody without the key can tell what a name stands for."""
        return hmac.digest(self._naming, content, "sha256")[:NAME_BYTES]

    def wrap(self, data_key: bytes, purpose: str) -> bytes:
        """The data key for `purpose` (which pack or manifest it seals), wrapped."""
        return wrap(self._wrapping, data_key, self._bound(purpose))

    def unwrap(self, wrapped: bytes, purpose: str) -> bytes:
        """The data key. Raises `TamperedError`, also when it was wrapped for another purpose."""
        return unwrap(self._wrapping, wrapped, self._bound(purpose))

    def _bound(self, purpose: str) -> bytes:
        return json.dumps([self.owner, self.id, purpose]).encode()


class Keys:
    """The user keys in a store. Opened ones are kept in memory as long as this object lives."""

    def __init__(self, store: Store, wrapping: Wrapping) -> None:
        self._store = store
        self._wrapping = wrapping
        self._open: dict[tuple[str, str], UserKey] = {}

    def current(self, owner: str) -> UserKey:
        """The key to write with; made if there is none."""
        known = self._ids(owner)
        if not known:
            self._create(owner)
            known = self._ids(owner)
        return self.get(owner, min(known))

    def get(self, owner: str, key_id: str) -> UserKey:
        """A key to read with. Raises `KeyUnavailableError` and `TamperedError`."""
        found = self._open.get((owner, key_id))
        if found is None:
            found = self._load(owner, key_id)
            self._open[owner, key_id] = found
        return found

    def rewrap(self, owner: str) -> int:
        """Wrap the owner's keys with the current key-encryption key; how many there are."""
        ids = self._ids(owner)
        for key_id in ids:
            self._write(owner, key_id, self._secret(owner, key_id))
        return len(ids)

    def erase(self, owner: str) -> int:
        """Delete the owner's keys: all their snapshots become unreadable, for everybody, for
        ever. How many were deleted."""
        ids = self._ids(owner)
        for key_id in ids:
            self._store.delete(user_key_prefix(owner) + key_id)
            self._open.pop((owner, key_id), None)
        return len(ids)

    def _ids(self, owner: str) -> list[str]:
        prefix = user_key_prefix(owner)
        return [entry.key.removeprefix(prefix) for entry in self._store.list(prefix)]

    def _create(self, owner: str) -> None:
        self._write(owner, uuid.uuid4().hex, new_key())

    def _write(self, owner: str, key_id: str, secret: bytes) -> None:
        kek_id, wrapped = self._wrapping.wrap(secret, _record_bound(owner, key_id))
        record = {"version": RECORD_VERSION, "kek": kek_id, "wrapped": wrapped.hex()}
        self._store.put(user_key_prefix(owner) + key_id, json.dumps(record).encode())

    def _load(self, owner: str, key_id: str) -> UserKey:
        secret = self._secret(owner, key_id)
        return UserKey(owner, key_id, _derived(secret, b"wrapping"), _derived(secret, b"naming"))

    def _secret(self, owner: str, key_id: str) -> bytes:
        try:
            text = self._store.get(user_key_prefix(owner) + key_id)
        except MissingError as error:
            raise KeyUnavailableError(
                f"The key {key_id} of {owner} is not in the store: it was erased or lost.",
                remedy="What it sealed cannot be opened any more; start fresh.",
            ) from error
        try:
            record: dict[str, Any] = json.loads(text)
            kek_id, wrapped = str(record["kek"]), bytes.fromhex(record["wrapped"])
        except (ValueError, LookupError, TypeError) as error:
            raise TamperedError(f"The key record {key_id} of {owner} is damaged.") from error
        return self._wrapping.unwrap(kek_id, wrapped, _record_bound(owner, key_id))


def is_key_id(text: str) -> bool:
    """Whether it has the form of a user key's id (it comes from where anybody may have written)."""
    return len(text) == 32 and set("0123456789abcdef").issuperset(text)


def _record_bound(owner: str, key_id: str) -> bytes:
    return json.dumps(["user key", owner, key_id]).encode()


def _derived(secret: bytes, use: bytes) -> bytes:
    return HKDFExpand(SHA256(), KEY_BYTES, b"hubernate " + use).derive(secret)


def _fingerprint(key: bytes) -> str:
    return hashlib.sha256(b"hubernate kek" + key).hexdigest()[:16]


def _read_key(path: Path) -> bytes:
    """The key in a file. Raises `KeyUnavailableError` for one that others may read or that is
    damaged."""
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
