"""Garbage collection: look, plan (pure), execute.

Which snapshots go is decided elsewhere (`retention`, or a person). A pack goes when no manifest of
its owner has needed it for the grace period, counted from the run that first saw it unneeded and from
the last removal of a snapshot that needed it (see `removal`). The grace period must be longer than the
longest suspend, as packs come before the manifest that needs them, and than the longest filling after
a resume, which may still read packs of a snapshot that was removed meanwhile. A writer that shares old
packs makes sure that they are there before it commits.

Beside another collector: what a run saw is written as a numbered note before anything is deleted, and
a number can be taken once. Whoever comes second deletes nothing. A run may die anywhere; the next one
finds the same things due.

If any manifest of an owner cannot be read, nobody knows what it needs: no pack of that owner goes.

Sparse packs are not repacked here: that would mean reading them, storing their live chunks again and
rewriting manifests that are being resumed from. The next suspend does it for less, as it has the
memory at hand: it takes nothing over from packs that it would use too little of (see `ledger.Known`).
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from snapshot.errors import (
    AlreadyExistsError,
    MissingError,
    SnapshotError,
    StoreUnavailableError,
)
from snapshot.names import (
    collect_key,
    collect_prefix,
    manifest_prefix,
    owner_of,
    pack_key,
    pack_prefix,
)
from snapshot.removal import Mark, marks
from snapshot.repository import Repository
from snapshot.retention import Manifest
from snapshot.stores.base import Store

log = logging.getLogger(__name__)

GRACE_SECONDS = 86400.0
CLOCK_TOLERANCE_SECONDS = 600.0
_ROOTS = ("packs/", "manifests/", "collected/", "removed/")


class ClockError(SnapshotError):
    """This machine's clock and the store's disagree: nothing may be called old here."""


@dataclass(frozen=True, slots=True)
class Inventory:
    """What an owner has in the store. `packs` maps ids to bytes; `unneeded_since` is what earlier
    runs saw, in UNIX seconds, and `run` the number of the latest of them; `unreadable` are manifests
    that could not be opened; `removals` are marks of removed ones."""

    owner: str
    manifests: tuple[Manifest, ...]
    packs: Mapping[str, int]
    unneeded_since: Mapping[str, float] = field(default_factory=dict)
    unreadable: tuple[str, ...] = ()
    removals: tuple[Mark, ...] = ()
    run: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to go now, what the next run must know, and what will be due later. `marks` are those
    of removals long ago; `blocked_by` names unreadable manifests; `is_last` when the owner has nothing
    any more, and so nothing needs to be remembered."""

    owner: str
    run: int
    manifests: tuple[str, ...]
    packs: tuple[str, ...]
    freed_bytes: int
    waiting_bytes: int
    unneeded_since: Mapping[str, float]
    marks: tuple[str, ...] = ()
    blocked_by: tuple[str, ...] = ()
    is_last: bool = False


def plan(
    inventory: Inventory, *, now: float, grace: float = GRACE_SECONDS, going: Collection[str] = ()
) -> Plan:
    """Pure. What `execute` should do now; `going` are names of manifests that were given up."""
    needed = {pack for manifest in inventory.manifests for pack in manifest.packs}
    kept = {p for m in inventory.manifests if m.name not in going for p in m.packs}
    unneeded = {
        pack: _since(inventory, pack, now) for pack in sorted(inventory.packs) if pack not in needed
    }
    due = tuple(pack for pack, since in unneeded.items() if now - since >= grace)
    if inventory.unreadable:
        due = ()
    freed = sum(inventory.packs[pack] for pack in due)
    here = {m.name for m in inventory.manifests} | set(inventory.unreadable)
    return Plan(
        owner=inventory.owner,
        run=inventory.run + 1,
        manifests=tuple(sorted(here.intersection(going))),
        packs=due,
        freed_bytes=freed,
        waiting_bytes=sum(s for p, s in inventory.packs.items() if p not in kept) - freed,
        unneeded_since=unneeded,
        marks=tuple(mark.name for mark in inventory.removals if now - mark.at >= grace),
        blocked_by=inventory.unreadable,
        is_last=not here and not inventory.packs,
    )


def _since(inventory: Inventory, pack: str, now: float) -> float:
    seen = inventory.unneeded_since.get(pack, now)
    removed = (mark.at for mark in inventory.removals if mark.covers(pack))
    return min(max((seen, *removed)), now)


def owners(repository: Repository) -> tuple[str, ...]:
    """Everybody of whom there is anything that may be collected."""
    keys = [entry.key for root in _ROOTS for entry in repository.store.list(root)]
    return tuple(sorted({owner for key in keys if (owner := owner_of(key)) is not None}))


def examine(repository: Repository, owner: str) -> Inventory:
    """What an owner has now. Notes are read before packs and packs before manifests, so that a pack
    of a snapshot that is committed meanwhile is seen as needed, or not at all."""
    run, remembered = _remembered(repository.store, owner)
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
    removals = marks(repository.store, owner)
    return Inventory(owner, tuple(manifests), packs, remembered, tuple(unreadable), removals, run)


def execute(repository: Repository, decided: Plan) -> bool:
    """Carry a plan out. False, having deleted nothing, when another collector was faster."""
    store = repository.store
    note = {"by": uuid.uuid4().hex, "unneeded_since": dict(decided.unneeded_since)}
    try:
        store.put(
            collect_key(decided.owner, decided.run), json.dumps(note).encode(), if_absent=True
        )
    except AlreadyExistsError:
        log.info("another collector looks after %s", decided.owner)
        return False
    for name in decided.manifests:
        repository.remove(name)
    for pack in decided.packs:
        store.delete(pack_key(decided.owner, pack))
        if repository.cache is not None:
            repository.cache.drop(pack)
    for mark in decided.marks:
        store.delete(mark)
    for entry in list(store.list(collect_prefix(decided.owner))):
        if decided.is_last or entry.key < collect_key(decided.owner, decided.run):
            store.delete(entry.key)
    return True


def collect(
    repository: Repository, *, now: float, grace: float = GRACE_SECONDS, going: Collection[str] = ()
) -> tuple[Plan, ...]:
    """One run over everybody: the plans that were carried out."""
    done = []
    for owner in owners(repository):
        decided = plan(examine(repository, owner), now=now, grace=grace, going=going)
        if execute(repository, decided):
            done.append(decided)
    return tuple(done)


def sweep(store: Store, *, now: float, grace: float = GRACE_SECONDS) -> int:
    """Remove what interrupted uploads left that no listing shows; how many."""
    return store.sweep(now - grace)


def check_clock(store: Store, now: float) -> None:
    """Raises `ClockError` when the store's clock says another time than `now`: a collector whose
    clock is ahead would take for old what has just been stored."""
    key = f"probe/clock-{uuid.uuid4().hex}"
    store.put(key, b"?")
    try:
        said = next(entry.modified for entry in store.list(key))
    finally:
        store.delete(key)
    if abs(said - now) > CLOCK_TOLERANCE_SECONDS:
        raise ClockError(
            f"This machine's clock and the store's differ by {abs(said - now):.0f} s.",
            remedy="Set the clock; nothing is collected meanwhile.",
        )


def _manifest(repository: Repository, name: str) -> Manifest:
    snapshot = repository.open(name)
    key, packs = snapshot.key, frozenset(pack.id for pack in snapshot.body.packs)
    order = (key.epoch, key.sequence)
    return Manifest(name, key.owner, key.session, order, snapshot.stored.created_at, packs)


def _remembered(store: Store, owner: str) -> tuple[int, dict[str, float]]:
    """The number of the latest run, and what it noted; nothing if that is unreadable, which only
    delays."""
    prefix = collect_prefix(owner)
    latest = max((entry.key for entry in store.list(prefix)), default="")
    if not latest:
        return 0, {}
    run = int(latest.removeprefix(prefix))
    try:
        document = json.loads(store.get(latest))["unneeded_since"]
        return run, {str(pack): float(since) for pack, since in document.items()}
    except (MissingError, ValueError, LookupError, AttributeError, TypeError):
        log.warning("what garbage collection noted of %s is unreadable and begun again", owner)
        return run, {}
