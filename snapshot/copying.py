"""One snapshot for several sessions: a manifest of its own for each, over the same packs."""

from __future__ import annotations

from snapshot import manifests
from snapshot.errors import StoreDeniedError
from snapshot.model import SnapshotKey, Stored
from snapshot.names import parse_manifest_key
from snapshot.repository import Repository


def copy_snapshot(repository: Repository, manifest: str, key: SnapshotKey, *, now: float) -> Stored:
    """The same snapshot once more, as `key`, which belongs to another session of the same owner.

    No page is read or stored again, and each of the two lives on when the other is removed. Raises
    `TamperedError`, `MissingError`, `NewerFormatError`, `KeyUnavailableError`,
    `AlreadyExistsError`, and `StoreDeniedError` for another owner.
    """
    source = parse_manifest_key(manifest)
    if source.owner != key.owner:
        raise StoreDeniedError("A snapshot is copied for its own owner only.")
    # the packs stay sealed under the user key that they have, so the copy is sealed under it too
    body, stored, user_key = manifests.read(source, repository.store.get(manifest), repository.keys)
    summary = manifests.Summary(stored.memory_bytes, 0, now, stored.constraints, stored.timings)
    sealed, copied = manifests.seal(key, user_key, body, summary)
    repository.store.put(copied.manifest, sealed, if_absent=True)
    return copied
