"""A store that forgets everything: what the engine costs without a database."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

from scheduler_bridge.model.workload import Event, Workload
from scheduler_bridge.store.base import Batch, LeaseRecord, Snapshot
from scheduler_bridge.store.estimates import EstimateStore
from scheduler_bridge.store.ledger import LedgerStore
from scheduler_bridge.store.opening import open_memory


class StoreThatForgets:
    """Numbers events and keeps nothing of workloads and leases. What other parts keep (a few rows an
    hour) is in memory."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._parts = open_memory()

    @property
    def ledger(self) -> LedgerStore:
        return self._parts.ledger

    @property
    def estimates(self) -> EstimateStore:
        return self._parts.estimates

    def load(self) -> Snapshot:
        return Snapshot()

    def write(self, batch: Batch) -> tuple[Event, ...]:
        return tuple(replace(event, id=next(self._numbers)) for event in batch.events)

    def workload(self, workload_id: str) -> Workload | None:
        return None

    def workloads(self, *, kind: str | None, user: str | None, limit: int) -> tuple[Workload, ...]:
        return ()

    def lease(self, lease_id: str) -> LeaseRecord | None:
        return None

    def events(self, *, after: int, limit: int) -> tuple[Event, ...]:
        return ()

    def history(self, workload_id: str) -> tuple[Event, ...]:
        return ()

    def last_event_id(self) -> int:
        return 0

    def close(self) -> None:
        self._parts.close()
