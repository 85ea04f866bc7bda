"""Snapshots in a store: write, open, list, remove. A snapshot exists when its manifest does."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from snapshot.cache import PackCache
from snapshot.errors import (
    AlreadyExistsError,
    KeyUnavailableError,
    MissingError,
    NewerFormatError,
    StoreDeniedError,
    TamperedError,
)
from snapshot.keyfiles import LocalWrapping
from snapshot.keys import Keys
from snapshot.ledger import Known
from snapshot.manifests import FRONT_BYTES, read, read_summary
from snapshot.model import SnapshotKey, Stored, StoreSettings
from snapshot.names import manifest_prefix, parse_manifest_key
from snapshot.reader import START_FRESH, Snapshot
from snapshot.removal import mark
from snapshot.stores.base import Store
from snapshot.stores.directory import DirectoryStore
from snapshot.stores.retry import Patience, RetryingStore, again
from snapshot.writer import SnapshotWriter

log = logging.getLogger(__name__)

_Found = list[tuple[str, SnapshotKey]]
"""Manifests' keys, and the same taken apart."""


class Repository:
    """All snapshots in one store. Safe to use from threads; holds none of its own."""

    def __init__(
        self,
        store: Store,
        keys: Keys,
        *,
        cache: PackCache | None,
        workers: int | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.store, self.keys, self.cache = store, keys, cache
        self._workers = workers or os.cpu_count() or 2
        self._now = now

    def writer(
        self, key: SnapshotKey, facts: dict[str, Any], *, base: str | None = None
    ) -> SnapshotWriter:
        """Begin a snapshot. Chunks that the session's current one (or the snapshot `base` of the
        same owner) has are not stored again. Raises `AlreadyExistsError` unless the key is newer
        than all of the session's."""
        current = self._newest(key.owner, key.session)
        if current is not None and _order(current[1]) >= _order(key):
            raise AlreadyExistsError(
                f"The session {key.session} has a snapshot {current[0]}, not older than "
                f"({key.epoch}, {key.sequence}).",
                remedy="Use a higher sequence, or let the newer holder of the session go on.",
            )
        source = base or (current[0] if current else None)
        return SnapshotWriter(
            self.store,
            self.keys.current(key.owner),
            key,
            facts,
            cache=self.cache,
            known=self._known(key.owner, source),
            workers=self._workers,
            now=self._now,
        )

    def open(self, manifest_key: str) -> Snapshot:
        """A snapshot whose manifest was verified. Raises `TamperedError`, `MissingError`,
        `NewerFormatError`, `KeyUnavailableError`."""
        try:
            key = parse_manifest_key(manifest_key)
        except ValueError as error:
            raise MissingError(f"There is no snapshot {manifest_key!r}.") from error
        try:
            body, stored, user_key = read(key, self.store.get(manifest_key), self.keys)
        except TamperedError as error:
            message = f"The snapshot {manifest_key} cannot be trusted: {error.message}"
            raise TamperedError(message, remedy=START_FRESH) from error
        except MissingError as error:
            raise MissingError(
                f"There is no snapshot {manifest_key}.", remedy="Start the session fresh."
            ) from error
        return Snapshot(self.store, user_key, self.cache, self._workers, body, stored)

    def list(self, owner: str | None = None, session: str | None = None) -> tuple[Stored, ...]:
        """All snapshots, of an owner, or of an owner's session, oldest first within a session. One
        whose summary cannot be read is listed with sizes of 0, as it may still be the current."""
        return tuple(self._summary(name, key) for name, key in self._manifests(owner, session))

    def current(self, owner: str, session: str) -> Stored | None:
        """The session's snapshot with the highest (epoch, sequence), if there is one."""
        newest = self._newest(owner, session)
        return None if newest is None else self._summary(*newest)

    def remove(self, manifest_key: str) -> None:
        """Remove a snapshot; what only it needed is collected after the grace period, so that a
        resume that is still reading it goes on. No error if it is gone."""
        key = parse_manifest_key(manifest_key)
        packs: list[str] | None = None
        try:
            packs = [pack.id for pack in self.open(manifest_key).body.packs]
        except MissingError:
            return
        except (TamperedError, NewerFormatError, KeyUnavailableError) as error:
            log.warning("what the removed snapshot needed is not known: %s", error)
        mark(self.store, key, at=self._now(), packs=packs)
        self.store.delete(manifest_key)

    def _known(self, owner: str, manifest: str | None) -> Known:
        """What a new snapshot need not store again. An earlier one that cannot be read is no
        reason not to write a new one."""
        if manifest is None:
            return Known()
        try:
            earlier = self.open(manifest)
        except (TamperedError, MissingError, NewerFormatError, KeyUnavailableError) as error:
            log.warning("nothing is shared with %s: %s", manifest, error)
            return Known()
        if earlier.key.owner != owner or not earlier.sealed_by(self.keys.current(owner)):
            return Known()
        return Known.of(earlier.body)

    def _newest(self, owner: str, session: str) -> tuple[str, SnapshotKey] | None:
        found = self._manifests(owner, session)
        return max(found, key=lambda pair: _order(pair[1]), default=None)

    def _manifests(self, owner: str | None, session: str | None) -> _Found:
        found = []
        for entry in self.store.list(manifest_prefix(owner, session)):
            try:
                found.append((entry.key, parse_manifest_key(entry.key)))
            except ValueError:
                log.warning("the object %s is no manifest", entry.key)
        return found

    def _summary(self, name: str, key: SnapshotKey) -> Stored:
        try:
            return read_summary(key, self.store.get(name, end=FRONT_BYTES), self.keys)
        except (TamperedError, MissingError, NewerFormatError, KeyUnavailableError) as error:
            log.warning("the summary of %s cannot be read: %s", name, error)
            return Stored(name, key, 0, 0, 0.0)


def _order(key: SnapshotKey) -> tuple[int, int]:
    return key.epoch, key.sequence


def open_repository(
    settings: StoreSettings, *, patience: Patience | None = None, ask: bool = True
) -> Repository:
    """The repository that the settings name. Makes the bucket, the folders and a key-encryption
    key where there is none; without `ask` the store is not spoken to, and its bucket must be there.
    Raises `StoreDeniedError`, `StoreUnavailableError`."""
    patience = patience or Patience()
    store = RetryingStore(_open_store(settings, patience, ask=ask), patience)
    cache = None
    if settings.cache_directory:
        cache = PackCache(Path(settings.cache_directory), settings.cache_bytes)
    keys = Keys(store, LocalWrapping(Path(settings.keys_directory)))
    return Repository(store, keys, cache=cache)


def _open_store(settings: StoreSettings, patience: Patience, *, ask: bool) -> Store:
    if settings.kind == "directory":
        return DirectoryStore(Path(settings.location))
    if settings.kind != "s3":
        raise StoreDeniedError(
            f"There is no kind of store called {settings.kind!r}.", remedy="Use s3 or directory."
        )
    # Imported here because that takes a fifth of a second, for which a filler's memory waits.
    from snapshot.stores.s3 import S3Settings, S3Store

    access, secret = _credentials(Path(settings.credentials_file))
    opened = S3Store(
        S3Settings(settings.location, settings.bucket, access, secret, region=settings.region)
    )
    if ask:
        again(opened.create_bucket, patience)
    return opened


def _credentials(path: Path) -> tuple[str, str]:
    try:
        document = json.loads(path.read_bytes())
        return str(document["access_key"]), str(document["secret_key"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise StoreDeniedError(
            f"The store's credentials cannot be read from {path} ({type(error).__name__}).",
            remedy='It holds JSON: {"access_key": …, "secret_key": …}.',
        ) from error
