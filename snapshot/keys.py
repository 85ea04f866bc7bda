"""Keys: who can read what, and how everything of a user is erased.

```
key-encryption key (this machine's file, or a KMS)   wraps
  user keys (one record each in the store)           wrap
    a data key per pack and per manifest             seals
```

User keys lie wrapped **in the store**, next to what they open: every node that has the
key-encryption key can read them, and the only thing to back up besides the store is one small file
that changes only when it is rotated. Rotating the key-encryption key rewrites those records, nothing
else (see `rotation`). `erase` deletes a user's records; then nobody can read anything of that user,
in whatever cache or copy of a pack. (Buckets that keep old versions must not do so below `keys/`.)

A record is named by a random id and never replaced by another key, as stores exist that cannot
create exclusively: if two sessions create a user's first key at once there are two, both valid, and
from then on everybody uses the one that sorts first. A key that was replaced (see `renewal`) is
retired: nothing new is written with it, and it goes when nothing is sealed under it any more. Its
successor names chunks as it did, so that nothing has to be stored again.
"""

from __future__ import annotations

import hmac
import json
import logging
import uuid
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from snapshot.codec import NAME_BYTES
from snapshot.errors import KeyUnavailableError, MissingError, TamperedError
from snapshot.names import owner_of, user_key_prefix
from snapshot.sealing import KEY_BYTES, Buffer, new_key, unwrap, wrap
from snapshot.stores.base import Store

log = logging.getLogger(__name__)

RECORD_VERSION = 1


class Wrapping(Protocol):
    """The outermost key: a local file here, a KMS elsewhere."""

    def wrap(self, secret: bytes, bound: bytes) -> tuple[str, bytes]:
        """The id of the key used, and the wrapped secret."""
        ...

    def unwrap(self, key_id: str, wrapped: bytes, bound: bytes) -> bytes:
        """The secret. Raises `KeyUnavailableError` and `TamperedError`."""
        ...

    def current_id(self) -> str:
        """Which key `wrap` uses now."""
        ...

    def storing(self) -> AbstractContextManager[None]:
        """Held by whoever wraps a secret until it is stored. Several at once."""
        ...

    def changing(self) -> AbstractContextManager[None]:
        """Held by whoever changes or deletes stored secrets. One at a time, and nobody stores."""
        ...


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


@dataclass(frozen=True, slots=True)
class _Record:
    """A stored key: which key-encryption key opens it, and since when it is retired (None: not)."""

    kek: str
    wrapped: bytes
    retired: float | None = None


class Keys:
    """The user keys in a store. Opened ones are kept in memory as long as this object lives."""

    def __init__(self, store: Store, wrapping: Wrapping) -> None:
        self._store = store
        self._wrapping = wrapping
        self._open: dict[tuple[str, str], UserKey] = {}

    def current(self, owner: str) -> UserKey:
        """The key to write with; made if there is none. Raises `KeyUnavailableError` and
        `TamperedError` when none of those that there are can be opened."""
        known = self._usable(owner)
        if not known:
            self._create(owner, new_key())
            known = self._usable(owner)
        *others, last = known
        for key_id in others:
            try:
                return self.get(owner, key_id)
            except (KeyUnavailableError, TamperedError) as error:
                log.warning("another key of %s is used: %s", owner, error)
        return self.get(owner, last)

    def get(self, owner: str, key_id: str) -> UserKey:
        """A key to read with. Raises `KeyUnavailableError` and `TamperedError`."""
        found = self._open.get((owner, key_id))
        if found is None:
            found = self._load(owner, key_id)
            self._open[owner, key_id] = found
        return found

    def renew(self, owner: str, now: float) -> str:
        """Make a new key and retire the others; the new one's id. Whoever has one of them open may
        still write with it. Raises `KeyUnavailableError` where there is none."""
        with self._wrapping.changing():
            known = self._usable(owner)
            if not known:
                raise KeyUnavailableError(f"There is no key of {owner} to replace.")
            naming = self._secret(owner, known[0])[-KEY_BYTES:]
            fresh = uuid.uuid4().hex
            self._write(owner, fresh, new_key() + naming)
            for key_id in known:
                self._write(owner, key_id, self._secret(owner, key_id), retired=now)
            return fresh

    def retired(self, owner: str) -> dict[str, float]:
        """The owner's keys that were replaced, and when (UNIX seconds)."""
        ids = self._ids(owner)
        if len(ids) < 2:
            return {}
        found = ((key_id, self._record(owner, key_id).retired) for key_id in ids)
        return {key_id: at for key_id, at in found if at is not None}

    def forget(self, owner: str, key_id: str) -> None:
        """Delete one key: what is sealed under it can be opened by nobody any more."""
        with self._wrapping.changing():
            self._store.delete(user_key_prefix(owner) + key_id)
            self._open.pop((owner, key_id), None)

    def owners(self) -> tuple[str, ...]:
        """Everybody who has a key."""
        found = {owner_of(entry.key) for entry in self._store.list("keys/")}
        return tuple(sorted(owner for owner in found if owner is not None))

    def ids(self, owner: str) -> tuple[str, ...]:
        """The owner's keys, in the order in which they were listed."""
        return tuple(self._ids(owner))

    def wrapped_by(self, owner: str, key_id: str) -> str:
        """Which key-encryption key opens the record. Raises `KeyUnavailableError` where there is
        none, and `TamperedError`."""
        return self._record(owner, key_id).kek

    def rewrap(self, owner: str, key_id: str) -> None:
        """Wrap a key with the current key-encryption key. Raises `KeyUnavailableError` and
        `TamperedError`, and then has changed nothing."""
        with self._wrapping.changing():  # or a key that is erased now would come back
            record = self._record(owner, key_id)
            if record.kek != self._wrapping.current_id():
                self._write(owner, key_id, self._secret(owner, key_id), retired=record.retired)

    def erase(self, owner: str) -> int:
        """Delete the owner's keys: all their snapshots become unreadable, for everybody, for
        ever. How many were deleted."""
        with self._wrapping.changing():
            ids = self._ids(owner)
            for key_id in ids:
                self._store.delete(user_key_prefix(owner) + key_id)
                self._open.pop((owner, key_id), None)
        return len(ids)

    def _ids(self, owner: str) -> list[str]:
        prefix = user_key_prefix(owner)
        return [entry.key.removeprefix(prefix) for entry in self._store.list(prefix)]

    def _usable(self, owner: str) -> list[str]:
        """What may be written with, the one to use first."""
        ids = sorted(self._ids(owner))
        if len(ids) < 2:
            return ids
        return [key_id for key_id in ids if not self._is_retired(owner, key_id)]

    def _is_retired(self, owner: str, key_id: str) -> bool:
        try:
            return self._record(owner, key_id).retired is not None
        except (KeyUnavailableError, TamperedError):
            return False  # whoever wants to use it is told what is wrong with it

    def _create(self, owner: str, secret: bytes) -> None:
        with self._wrapping.storing():
            self._write(owner, uuid.uuid4().hex, secret)

    def _write(
        self, owner: str, key_id: str, secret: bytes, *, retired: float | None = None
    ) -> None:
        kek_id, wrapped = self._wrapping.wrap(secret, _record_bound(owner, key_id))
        record: dict[str, Any] = {
            "version": RECORD_VERSION,
            "kek": kek_id,
            "wrapped": wrapped.hex(),
        }
        if retired is not None:
            record["retired"] = retired
        self._store.put(user_key_prefix(owner) + key_id, json.dumps(record).encode())

    def _load(self, owner: str, key_id: str) -> UserKey:
        """A first key's secret serves both uses; a later one's has the first one's behind its
        own, for the names."""
        secret = self._secret(owner, key_id)
        own, first = secret[:KEY_BYTES], secret[-KEY_BYTES:]
        return UserKey(owner, key_id, _derived(own, b"wrapping"), _derived(first, b"naming"))

    def _secret(self, owner: str, key_id: str) -> bytes:
        bound = _record_bound(owner, key_id)
        record = self._record(owner, key_id)
        try:
            return self._wrapping.unwrap(record.kek, record.wrapped, bound)
        except KeyUnavailableError:
            now = self._record(owner, key_id)
            if now == record:
                raise
            # it was rotated between the two looks
            return self._wrapping.unwrap(now.kek, now.wrapped, bound)

    def _record(self, owner: str, key_id: str) -> _Record:
        try:
            text = self._store.get(user_key_prefix(owner) + key_id)
        except MissingError as error:
            raise KeyUnavailableError(
                f"The key {key_id} of {owner} is not in the store: it was erased or lost.",
                remedy="What it sealed cannot be opened any more; start fresh.",
            ) from error
        try:
            record: dict[str, Any] = json.loads(text)
            retired = record.get("retired")
            return _Record(
                str(record["kek"]),
                bytes.fromhex(record["wrapped"]),
                None if retired is None else float(retired),
            )
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise TamperedError(f"The key record {key_id} of {owner} is damaged.") from error


def is_key_id(text: str) -> bool:
    """Whether it has the form of a user key's id (it comes from where anybody may have written)."""
    return len(text) == 32 and set("0123456789abcdef").issuperset(text)


def _record_bound(owner: str, key_id: str) -> bytes:
    return json.dumps(["user key", owner, key_id]).encode()


def _derived(secret: bytes, use: bytes) -> bytes:
    return HKDFExpand(SHA256(), KEY_BYTES, b"hubernate " + use).derive(secret)
