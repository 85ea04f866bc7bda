"""Garbage collection: look, plan (pure), execute.

A superseded manifest goes when the rules say so; the current one of a session never does. A pack
goes when no manifest of its owner has needed it for the grace period, counted from the run that first
saw it unneeded: one clock, and two looks. The grace period must be longer than the longest suspend,
as packs come before the manifest that needs them. Safe beside running suspends and resumes and beside
another collector. A writer that shares old packs makes sure that they are there before it commits.

If any manifest of an owner cannot be read, nobody knows what it needs: no pack of that owner goes.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from snapshot.errors import MissingError, SnapshotError, StoreUnavailableError
from snapshot.model import SnapshotKey
from snapshot.names import collect_key, manifest_prefix, owner_of, pack_key, pack_prefix
from snapshot.repository import Repository

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Rules:
    """How long things stay, in seconds. `superseded` None keeps old snapshots for ever."""

    grace: float = 86400.0
    superseded: float | None = 7 * 86400.0


@dataclass(frozen=True, slots=True)
class Manifest:
    """What collection needs to know of a snapshot."""

    name: str
    key: SnapshotKey
    created_at: float
    packs: frozenset[str]


@dataclass(frozen=True, slots=True)
class Inventory:
    """What an owner has in the store. `packs` maps ids to bytes; `unneeded_since` is what earlier
    runs saw, in UNIX seconds; `unreadable` are manifests that could not be opened."""

    owner: str
    manifests: tuple[Manifest, ...]
    packs: Mapping[str, int]
    unneeded_since: Mapping[str, float] = field(default_factory=dict)
    unreadable: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to go, and what the next run must know. `blocked_by` names unreadable manifests."""

    owner: str
    manifests: tuple[str, ...]
    packs: tuple[str, ...]
    freed_bytes: int
    unneeded_since: Mapping[str, float]
    blocked_by: tuple[str, ...] = ()


def plan(inventory: Inventory, rules: Rules, now: float) -> Plan:
    """Pure. What `execute` should do now."""
    old = tuple(m.name for m in _superseded(inventory.manifests) if _is_over(m, rules, now))
    needed = {pack for manifest in inventory.manifests for pack in manifest.packs}
    unneeded = {
        pack: min(inventory.unneeded_since.get(pack, now), now)
        for pack in sorted(inventory.packs)
        if pack not in needed
    }
    due = tuple(pack for pack, since in unneeded.items() if now - since >= rules.grace)
    if inventory.unreadable:
        due = ()
    return Plan(
        owner=inventory.owner,
        manifests=old,
        packs=due,
        freed_bytes=sum(inventory.packs[pack] for pack in due),
        unneeded_since={pack: since for pack, since in unneeded.items() if pack not in due},
        blocked_by=inventory.unreadable,
    )


def owners(repository: Repository) -> tuple[str, ...]:
    """Everybody who has anything in the store."""
    keys = [e.key for root in ("packs/", "manifests/") for e in repository.store.list(root)]
    return tuple(sorted({owner for key in keys if (owner := owner_of(key)) is not None}))


def examine(repository: Repository, owner: str) -> Inventory:
    """What an owner has now. Packs are listed before manifests, so that a pack of a snapshot
    that is committed meanwhile is seen as needed, or not at all."""
    prefix = pack_prefix(owner)
    packs = {
        entry.key.removeprefix(prefix): int(entry.size) for entry in repository.store.list(prefix)
    }
    manifests: list[Manifest] = []
    unreadable: list[str] = []
    for name in [entry.key for entry in repository.store.list(manifest_prefix(owner))]:
        try:
            manifests.append(_manifest(repository, name))
        except StoreUnavailableError:
            raise
        except MissingError:
            if repository.store.head(name) is not None:
                unreadable.append(name)
        except SnapshotError as error:
            log.warning("no pack of %s is collected: %s", owner, error)
            unreadable.append(name)
    remembered = _remembered(repository, owner)
    return Inventory(owner, tuple(manifests), packs, remembered, tuple(unreadable))


def execute(repository: Repository, decided: Plan) -> None:
    """Carry a plan out, soon after it was made. May be repeated."""
    memory = json.dumps(dict(decided.unneeded_since)).encode()
    repository.store.put(collect_key(decided.owner), memory)
    for name in decided.manifests:
        repository.remove(name)
    for pack in decided.packs:
        repository.store.delete(pack_key(decided.owner, pack))
        if repository.cache is not None:
            repository.cache.drop(pack)


def collect(repository: Repository, rules: Rules, now: float) -> tuple[Plan, ...]:
    """One run over everybody: the plans, carried out."""
    plans = []
    for owner in owners(repository):
        decided = plan(examine(repository, owner), rules, now)
        execute(repository, decided)
        plans.append(decided)
    return tuple(plans)


def _superseded(manifests: Iterable[Manifest]) -> list[Manifest]:
    """All but the newest of each session."""
    newest: dict[str, Manifest] = {}
    ordered = sorted(manifests, key=lambda m: (m.key.epoch, m.key.sequence))
    for manifest in ordered:
        newest[manifest.key.session] = manifest
    return [m for m in ordered if newest[m.key.session] is not m]


def _is_over(manifest: Manifest, rules: Rules, now: float) -> bool:
    return rules.superseded is not None and now - manifest.created_at >= rules.superseded


def _manifest(repository: Repository, name: str) -> Manifest:
    snapshot = repository.open(name)
    packs = frozenset(pack.id for pack in snapshot.body.packs)
    return Manifest(name, snapshot.key, snapshot.stored.created_at, packs)


def _remembered(repository: Repository, owner: str) -> dict[str, float]:
    """What earlier runs noted; nothing if it is unreadable, which only delays."""
    try:
        document = json.loads(repository.store.get(collect_key(owner)))
        return {str(pack): float(since) for pack, since in document.items()}
    except MissingError:
        return {}
    except (ValueError, AttributeError, TypeError):
        log.warning("what garbage collection noted of %s is unreadable and begun again", owner)
        return {}
