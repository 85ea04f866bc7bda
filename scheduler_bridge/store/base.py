"""Contract of the scheduler's store, and the records that only the scheduler sees."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from scheduler_bridge.model.nodes import NodeRecord
from scheduler_bridge.model.teams import ChangeSet
from scheduler_bridge.model.workload import Event, Lease, Pause, Workload

if TYPE_CHECKING:
    from scheduler_bridge.store.estimates import EstimateStore
    from scheduler_bridge.store.ledger import LedgerStore


class StoreError(Exception):
    """Base. Nothing was written."""


class StateTooNew(StoreError):
    """The state was written by a newer version. It was not touched."""


class StateLocked(StoreError):
    """Another scheduler owns this state."""


class StateMoved(StoreError):
    """What the state holds is no longer what this scheduler knows. It has to be started again."""


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """A lease with what must not be public.

    `credential_hash` is empty until somebody took the lease up; `former_hashes` are those of holders
    fenced off since. `hold_until` is how long it waits to be taken up. `handle` is the latest one its
    holder reported. `ended_as` is the phase that released it, which makes a repeated report of the
    same end harmless, `ended_cause` why, in words for its former holder. `forced`: an administrator gave
    it up, and its sandbox is to be ended without mercy.
    """

    lease: Lease
    credential_hash: str = ""
    former_hashes: tuple[str, ...] = ()
    taken_at: float | None = None
    hold_until: float = 0.0
    handle: dict[str, Any] = field(default_factory=dict)
    released_at: float | None = None
    ended_as: str = ""
    ended_cause: str = ""
    forced: bool = False


@dataclass(frozen=True, slots=True)
class Batch:
    """Changes that are written together or not at all. `earmarks` None leaves them as they are;
    `nodes` has those that changed."""

    workloads: tuple[Workload, ...] = ()
    leases: tuple[LeaseRecord, ...] = ()
    events: tuple[Event, ...] = ()
    pauses: tuple[Pause, ...] | None = None
    earmarks: Mapping[str, str] | None = None
    change_sets: tuple[ChangeSet, ...] = ()
    nodes: tuple[NodeRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that lives: what a scheduler loads at its start."""

    workloads: tuple[Workload, ...] = ()
    leases: tuple[LeaseRecord, ...] = ()
    pauses: tuple[Pause, ...] = ()
    earmarks: Mapping[str, str] = field(default_factory=dict)
    change_sets: tuple[ChangeSet, ...] = ()
    nodes: tuple[NodeRecord, ...] = ()


class Store(Protocol):
    """Synchronous: a write is done when the call returns, so that nothing can come between a booked
    resource and its record. No method retries; all raise `StoreError` for a broken store, and after
    `StateLocked` or `StateMoved` the program must end."""

    @property
    def ledger(self) -> LedgerStore:
        """Its part for GPU time."""
        ...

    @property
    def estimates(self) -> EstimateStore:
        """Its part for estimates."""
        ...

    def load(self) -> Snapshot:
        """Live workloads in order of submission, unreleased leases, pauses, earmarks, and all change
        sets of teams in the order in which they were written."""
        ...

    def write(self, batch: Batch) -> tuple[Event, ...]:
        """Write all of it in one transaction; the events come back with their ids. A change set that
        is based on the same one as an earlier is refused."""
        ...

    def workload(self, workload_id: str) -> Workload | None:
        """Any workload, also an ended one (without its lease)."""
        ...

    def workloads(self, *, kind: str | None, user: str | None, limit: int) -> tuple[Workload, ...]:
        """The latest `limit` workloads, in order of submission, ended ones included."""
        ...

    def lease(self, lease_id: str) -> LeaseRecord | None:
        """Any lease, also a released one."""
        ...

    def events(self, *, after: int, limit: int) -> tuple[Event, ...]:
        """Events with ids above `after`, oldest first."""
        ...

    def history(self, workload_id: str) -> tuple[Event, ...]:
        """The events of one workload, oldest first."""
        ...

    def last_event_id(self) -> int:
        """Id of the newest event, 0 if there is none."""
        ...

    def close(self) -> None:
        """Release the database. May be called twice."""
        ...
