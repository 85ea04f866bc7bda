"""Marks of removed snapshots: when each went, and which packs it needed.

A resume may still read packs of a snapshot that was removed a moment ago. Garbage collection therefore
counts a pack as unneeded from the latest removal of a snapshot that needed it, whatever it had seen
before. A mark is written before its manifest goes, and forgotten after the grace period.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from dataclasses import dataclass

from snapshot.errors import MissingError
from snapshot.model import SnapshotKey
from snapshot.names import removal_key, removal_prefix
from snapshot.stores.base import Store

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Mark:
    """One removal, in UNIX seconds. `packs` None: the manifest could not be read, so it may have
    needed any."""

    name: str
    at: float
    packs: frozenset[str] | None

    def covers(self, pack: str) -> bool:
        """Whether the removed snapshot needed the pack, or may have."""
        return self.packs is None or pack in self.packs


def mark(store: Store, key: SnapshotKey, *, at: float, packs: Iterable[str] | None) -> None:
    """Note that a snapshot is about to be removed."""
    note = {"at": at, "packs": None if packs is None else sorted(packs)}
    store.put(removal_key(key), json.dumps(note).encode())


def marks(store: Store, owner: str) -> tuple[Mark, ...]:
    """All marks of an owner's snapshots. One that cannot be read counts from when it was stored."""
    found = []
    for entry in list(store.list(removal_prefix(owner))):
        try:
            document = json.loads(store.get(entry.key))
            packs = document["packs"]
            found.append(
                Mark(entry.key, float(document["at"]), None if packs is None else frozenset(packs))
            )
        except MissingError:
            continue
        except (ValueError, LookupError, TypeError):
            log.warning("the mark %s cannot be read", entry.key)
            found.append(Mark(entry.key, entry.modified, None))
    return tuple(found)
