"""A store that remembers what it was asked to write."""

from __future__ import annotations

from scheduler_bridge.model.workload import Event, Workload
from scheduler_bridge.store.base import Batch, LeaseRecord, Snapshot, Store
from scheduler_bridge.store.ledger import LedgerStore


class CountingStore:
    """Passes everything on to a real store; `written` are the batches since it was last cleared."""

    def __init__(self, inner: Store) -> None:
        self._inner = inner
        self.written: list[Batch] = []

    @property
    def ledger(self) -> LedgerStore:
        return self._inner.ledger

    def write(self, batch: Batch) -> tuple[Event, ...]:
        self.written.append(batch)
        return self._inner.write(batch)

    def load(self) -> Snapshot:
        return self._inner.load()

    def workload(self, workload_id: str) -> Workload | None:
        return self._inner.workload(workload_id)

    def workloads(self, *, kind: str | None, user: str | None, limit: int) -> tuple[Workload, ...]:
        return self._inner.workloads(kind=kind, user=user, limit=limit)

    def lease(self, lease_id: str) -> LeaseRecord | None:
        return self._inner.lease(lease_id)

    def events(self, *, after: int, limit: int) -> tuple[Event, ...]:
        return self._inner.events(after=after, limit=limit)

    def history(self, workload_id: str) -> tuple[Event, ...]:
        return self._inner.history(workload_id)

    def last_event_id(self) -> int:
        return self._inner.last_event_id()

    def close(self) -> None:
        self._inner.close()
