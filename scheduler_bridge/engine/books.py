"""What the scheduler knows, in memory and in the store, changed only together."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from scheduler_bridge.engine.bells import Bells
from scheduler_bridge.engine.fleet import Fleet
from scheduler_bridge.engine.settings import Clock
from scheduler_bridge.errors import Conflict, NotFound, Unavailable
from scheduler_bridge.model.nodes import NodeRecord
from scheduler_bridge.model.phases import TERMINAL, Phase, is_legal
from scheduler_bridge.model.teams import ChangeSet
from scheduler_bridge.model.workload import (
    Event,
    Gpu,
    Lease,
    LeaseId,
    Node,
    Pause,
    Workload,
)
from scheduler_bridge.policy.budget_changes import replay
from scheduler_bridge.policy.values import Wait
from scheduler_bridge.store.base import Batch, LeaseRecord, Store, StoreError

EVENTS_BELL = "events"


def new_id(prefix: str) -> str:
    """A name that nobody else has; short enough for a folder and a log line."""
    return f"{prefix}-{secrets.token_hex(6)}"


@dataclass(frozen=True, slots=True)
class Changes:
    """Ids of what has changed since they were last cleared, by who follows."""

    workloads: set[str]
    leases: set[str]


class Books:
    """Live workloads, unreleased leases, pauses, earmarks, budgets, machines. Read freely, change
    through `draft`. `inventory` is what machines say of themselves; in `nodes`, those that get no new work
    because they do not answer, or are dead, are not ready."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        nodes: tuple[Node, ...],
        *,
        ids: Callable[[str], str] = new_id,
    ) -> None:
        self.store, self.clock, self.ids = store, clock, ids
        self.inventory = self.nodes = nodes
        self.bells = Bells()
        self.changed: list[Callable[[tuple[Event, ...]], None]] = []
        state = store.load()
        self.workloads: dict[str, Workload] = {w.id: w for w in state.workloads}
        self.keys: dict[str, str] = {w.key: w.id for w in state.workloads}
        self.leases: dict[str, LeaseRecord] = {r.lease.id: r for r in state.leases}
        self.pauses: dict[str, Pause] = {p.scope: p for p in state.pauses}
        self.earmarks: Mapping[str, str] = state.earmarks
        self.change_sets: tuple[ChangeSet, ...] = state.change_sets
        self.budgets = replay(state.change_sets)
        self.node_records: dict[str, NodeRecord] = {r.name: r for r in state.nodes}
        self.closed_nodes: frozenset[str] = frozenset()
        self.waits: dict[str, Wait] = {}
        self.balances: Callable[[float], Mapping[str, float]] = lambda _now: {}
        """What teams are owed less what they had, in GPU-seconds; the ledger tells."""
        self._fleet = Fleet.of(nodes)
        self._followers: list[Changes] = []

    @property
    def fleet(self) -> Fleet:
        """All machines together."""
        if self._fleet.nodes is not self.nodes:
            self._fleet = Fleet.of(self.nodes)
        return self._fleet

    def follow(self) -> Changes:
        """What changes from now on, and all there is to begin with."""
        changes = Changes(set(self.workloads), set(self.leases))
        self._followers.append(changes)
        return changes

    def get(self, workload_id: str) -> Workload:
        """Any workload, ended ones included. Raises `NotFound`."""
        workload = self.workloads.get(workload_id) or self.store.workload(workload_id)
        if workload is None:
            raise NotFound(f"There is no workload {workload_id}.")
        return workload

    def current_lease(self, workload: Workload) -> LeaseRecord | None:
        """The record of the workload's own lease."""
        return None if workload.lease is None else self.leases.get(workload.lease.id)

    def lingering(self, workload_id: str) -> list[LeaseRecord]:
        """Leases that the workload has left behind and whose sandbox is not proven empty."""
        workload = self.workloads.get(workload_id)
        current = workload.lease.id if workload and workload.lease else None
        return [
            record
            for record in self.leases.values()
            if record.lease.workload_id == workload_id and record.lease.id != current
        ]

    def is_lingering(self, record: LeaseRecord) -> bool:
        """Whether the lease is no longer its workload's current one."""
        workload = self.workloads.get(record.lease.workload_id)
        return workload is None or workload.lease is None or workload.lease.id != record.lease.id

    def node_record(self, name: str) -> NodeRecord:
        """What is stored of the machine; an empty record if nothing is."""
        return self.node_records.get(name) or NodeRecord(name)

    def set_inventory(self, nodes: tuple[Node, ...]) -> None:
        """Take over what machines say of themselves."""
        self.inventory = nodes
        closed = self.closed_nodes
        self.nodes = tuple(replace(n, ready=False) if n.name in closed else n for n in nodes)

    def close_nodes(self, names: Collection[str]) -> None:
        """These machines, and no others, get no new work."""
        if frozenset(names) != self.closed_nodes:
            self.closed_nodes = frozenset(names)
            self.set_inventory(self.inventory)

    def holders(self) -> dict[str, str]:
        """GPU uuid -> workload, lingering leases included."""
        return {
            gpu.uuid: str(record.lease.workload_id)
            for record in self.leases.values()
            for gpu in record.lease.gpus
        }

    def active_pauses(self) -> tuple[Pause, ...]:
        """Pauses that have not run out."""
        now = self.clock.now()
        return tuple(p for p in self.pauses.values() if p.until > now)

    def annotate(self, waits: Mapping[str, tuple[Wait, str]]) -> None:
        """Record places and reasons in the queue; they are worked out anew after a restart. Whoever
        is not named waits no longer, or is told when asked."""
        before, self.waits = self.waits, {name: wait for name, (wait, _) in waits.items()}
        for name in {**before, **waits}:
            if (workload := self.workloads.get(name)) is None:
                continue
            wait, text = waits.get(name, (None, ""))
            position = None if wait is None else wait.position
            if (workload.position, workload.wait_reason) != (position, text):
                self.workloads[workload.id] = replace(
                    workload, position=position, wait_reason=text, version=workload.version + 1
                )
                self.bells.ring(workload.id)

    def observe(self, workload: Workload, record: LeaseRecord, *, save: bool) -> None:
        """Take over telemetry and a renewed lease without a new version; `save` also stores it."""
        if save:
            self._store(Batch(workloads=(workload,), leases=(record,)))
        self.workloads[workload.id] = workload
        self.leases[record.lease.id] = record

    @contextmanager
    def draft(self) -> Iterator[Draft]:
        """Stage changes; they happen at the end of the block, all or none."""
        draft = Draft(self)
        yield draft
        draft.commit()

    def _store(self, batch: Batch) -> tuple[Event, ...]:
        try:
            return self.store.write(batch)
        except StoreError as error:
            raise Unavailable(
                "The scheduler could not save the change, so nothing was changed.",
                remedy="Try again; see the scheduler's log.",
            ) from error

    def apply(self, batch: Batch) -> None:
        """Write the batch, then take it over and tell everybody."""
        events = self._store(batch)
        self._tell_followers(batch)
        for record in batch.leases:
            if record.released_at is None:
                self.leases[record.lease.id] = record
            else:
                self.leases.pop(record.lease.id, None)
        for workload in batch.workloads:
            if workload.phase in TERMINAL:
                self.workloads.pop(workload.id, None)
                self.keys.pop(workload.key, None)
            else:
                self.workloads[workload.id] = workload
                self.keys[workload.key] = workload.id
        if batch.pauses is not None:
            self.pauses = {p.scope: p for p in batch.pauses}
        if batch.earmarks is not None:
            self.earmarks = batch.earmarks
        for change_set in batch.change_sets:
            self.change_sets = (*self.change_sets, change_set)
            self.budgets = self.budgets.changed(change_set.changes, change_set.id)
        self.node_records |= {record.name: record for record in batch.nodes}
        for workload in batch.workloads:
            self.bells.ring(workload.id)
        if events:
            self.bells.ring(EVENTS_BELL)
        for callback in self.changed:
            callback(events)

    def _tell_followers(self, batch: Batch) -> None:
        names = {str(workload.id) for workload in batch.workloads}
        before = (self.workloads.get(name) for name in names)
        # A lease that is left behind changes what it is, though its record does not.
        leases = {str(old.lease.id) for old in before if old is not None and old.lease is not None}
        leases.update(str(record.lease.id) for record in batch.leases)
        for changes in self._followers:
            changes.workloads.update(names)
            changes.leases.update(leases)


class Draft:
    """Changes that are not yet true."""

    def __init__(self, books: Books) -> None:
        self.books = books
        self.now = books.clock.now()
        self._workloads: dict[str, Workload] = {}
        self._leases: dict[str, LeaseRecord] = {}
        self._events: list[Event] = []
        self._pauses: tuple[Pause, ...] | None = None
        self._earmarks: Mapping[str, str] | None = None
        self._change_sets: tuple[ChangeSet, ...] = ()
        self._nodes: dict[str, NodeRecord] = {}

    def workload(self, workload_id: str) -> Workload:
        """The workload as staged so far."""
        return self._workloads.get(workload_id) or self.books.get(workload_id)

    def record(self, lease_id: str) -> LeaseRecord | None:
        """The unreleased lease as staged so far."""
        return self._leases.get(lease_id) or self.books.leases.get(lease_id)

    def is_current(self, record: LeaseRecord) -> bool:
        """Whether it is its workload's own lease, as staged so far."""
        lease = self.workload(record.lease.workload_id).lease
        return lease is not None and lease.id == record.lease.id

    def put(self, workload: Workload) -> Workload:
        """Stage a workload."""
        self._workloads[workload.id] = workload
        return workload

    def put_lease(self, record: LeaseRecord) -> LeaseRecord:
        """Stage a lease's record."""
        self._leases[record.lease.id] = record
        return record

    def put_node(self, record: NodeRecord) -> None:
        """Stage what is stored of a machine."""
        self._nodes[record.name] = record

    def set_pauses(self, pauses: tuple[Pause, ...]) -> None:
        """Replace all pauses."""
        self._pauses = pauses

    def set_earmarks(self, earmarks: Mapping[str, str]) -> None:
        """Replace all earmarks."""
        self._earmarks = dict(earmarks)

    def change_teams(self, change_set: ChangeSet) -> None:
        """Stage a change set of the teams. Nobody checks it here."""
        self._change_sets = (*self._change_sets, change_set)

    def note(
        self,
        kind: str,
        workload: Workload | None,
        *,
        cause: str,
        actor: str,
        source: str = "",
        target: str = "",
        evidence: Mapping[str, Any] | None = None,
    ) -> None:
        """Stage an event."""
        self._events.append(
            Event(
                id=0,
                at=self.now,
                workload_id=workload.id if workload else "",
                kind=kind,
                cause=cause,
                actor=actor,
                user=workload.spec.user if workload else "",
                source=source,
                target=target,
                evidence=dict(evidence or {}),
            )
        )

    def move(
        self,
        workload: Workload,
        target: Phase,
        *,
        cause: str,
        actor: str,
        evidence: Mapping[str, Any] | None = None,
        **changes: Any,
    ) -> Workload:
        """Stage a legal move. Raises `Conflict` for an illegal one."""
        if not is_legal(workload.spec.kind, workload.phase, target):
            raise Conflict(
                f"{workload.id} is {workload.phase.value}; "
                f"it cannot become {target.value} from there."
            )
        moved = replace(
            workload,
            phase=target,
            phase_since=self.now,
            position=None,
            wait_reason="",
            **changes,
        )
        self.note(
            "phase",
            moved,
            cause=cause,
            actor=actor,
            source=workload.phase.value,
            target=target.value,
            evidence=evidence,
        )
        return self.put(moved)

    def grant(
        self, workload: Workload, node: str, gpus: tuple[Gpu, ...], *, hold: float, lease: float
    ) -> Workload:
        """Stage a new lease for the workload, waiting to be taken up."""
        granted = Lease(
            id=LeaseId(self.books.ids("l")),
            workload_id=workload.id,
            epoch=workload.epoch + 1,
            node=node,
            gpus=gpus,
            granted_at=self.now,
            expires_at=self.now + max(hold, lease),
        )
        self.put_lease(LeaseRecord(granted, hold_until=self.now + hold))
        return self.put(replace(workload, lease=granted, epoch=granted.epoch))

    def release(self, record: LeaseRecord, *, ended_as: Phase, cause: str, actor: str) -> None:
        """Stage the end of a lease: its GPUs are free."""
        ended = replace(record, released_at=self.now, ended_as=ended_as.value, ended_cause=cause)
        self.put_lease(ended)
        workload = self.workload(record.lease.workload_id)
        if workload.lease is not None and workload.lease.id == record.lease.id:
            workload = self.put(replace(workload, lease=None))
        gpus = [gpu.uuid for gpu in record.lease.gpus]
        self.note(
            "lease_released",
            workload,
            cause=cause,
            actor=actor,
            evidence={"lease": record.lease.id, "epoch": record.lease.epoch, "gpus": gpus},
        )

    def leave_behind(self, workload: Workload) -> Workload:
        """Stage that the workload no longer counts on its lease, whose GPUs stay taken."""
        return self.put(replace(workload, lease=None))

    def commit(self) -> None:
        """Make it true. Nothing is changed if the store refuses."""
        workloads = tuple(
            replace(w, version=self._version(w) + 1) for w in self._workloads.values()
        )
        batch = Batch(
            workloads,
            tuple(self._leases.values()),
            tuple(self._events),
            self._pauses,
            self._earmarks,
            self._change_sets,
            nodes=tuple(self._nodes.values()),
        )
        if batch != Batch():
            self.books.apply(batch)

    def _version(self, workload: Workload) -> int:
        known = self.books.workloads.get(workload.id)
        return workload.version if known is None else known.version
