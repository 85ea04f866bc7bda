"""A new key for one user, without storing any pack again.

The new key wraps the packs' data keys in every manifest of the user; the manifests are sealed anew in
place. Resumes that are reading one of them go on, as the packs are the same. A suspend that began
before may still seal with the old key, which is therefore kept, retired, until nothing needs it and
the grace period is over: `finish` does what is left, at every garbage collection.
"""

from __future__ import annotations

import logging

from snapshot.errors import MissingError, SnapshotError, StoreUnavailableError
from snapshot.manifests import reseal
from snapshot.names import parse_manifest_key, removal_key
from snapshot.repository import Repository

log = logging.getLogger(__name__)

SETTLED_SECONDS = 600.0
"""A manifest younger than that may still be taken back by whoever wrote it, and is left for later."""


def renew(repository: Repository, owner: str, *, now: float) -> int:
    """Replace the user's key and seal what is there under the new one; how many manifests. May be
    repeated; one that was broken off is finished by `finish`."""
    repository.keys.renew(owner, now)
    return _reseal_all(repository, owner, now)


def finish(repository: Repository, owner: str, *, now: float, grace: float) -> int:
    """Seal what is still under a retired key; when there was nothing, delete the retired keys that
    nothing needs. How many of these were deleted. Two runs, as a snapshot may be copied between
    two sessions while it is sealed anew."""
    retired = repository.keys.retired(owner)
    if not retired:
        return 0
    if _reseal_all(repository, owner, now):
        return 0
    needed = _keys_in_use(repository, owner)
    if needed is None:
        return 0
    due = [k for k, since in retired.items() if now - since >= grace and k not in needed]
    for key_id in due:
        repository.keys.forget(owner, key_id)
    return len(due)


def _reseal_all(repository: Repository, owner: str, now: float) -> int:
    current = repository.keys.current(owner)
    count = 0
    for stored in repository.list(owner):
        if now - stored.created_at < SETTLED_SECONDS:
            continue
        try:
            snapshot = repository.open(stored.manifest)
        except StoreUnavailableError:
            raise
        except SnapshotError as error:
            log.warning("%s stays under its old key: %s", stored.manifest, error)
            continue
        if not snapshot.sealed_by(current):
            sealed = reseal(snapshot.stored, snapshot.body, snapshot.user_key, current)
            count += _replace(repository, stored.manifest, sealed)
    return count


def _replace(repository: Repository, manifest: str, sealed: bytes) -> bool:
    """Put a manifest in the place of the same one. One that is removed meanwhile stays removed: its
    mark is written before it goes."""
    store, removal = repository.store, removal_key(parse_manifest_key(manifest))
    if store.head(manifest) is None or store.head(removal) is not None:
        return False
    store.put(manifest, sealed)
    if store.head(removal) is not None:
        store.delete(manifest)
        return False
    return True


def _keys_in_use(repository: Repository, owner: str) -> set[str] | None:
    """The keys that manifests are sealed under; None if that is not known of one."""
    found = set()
    for stored in repository.list(owner):
        try:
            found.add(repository.open(stored.manifest).user_key.id)
        except MissingError:
            continue
        except StoreUnavailableError:
            raise
        except SnapshotError as error:
            log.warning("no retired key of %s is deleted: %s", owner, error)
            return None
    return found
