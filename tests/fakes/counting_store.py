"""A store that remembers what it was asked to write."""

from __future__ import annotations

from scheduler_bridge.model.workload import Event
from scheduler_bridge.store.base import Batch
from scheduler_bridge.store.opening import open_memory
from scheduler_bridge.store.sql import SqlStore


class CountingStore(SqlStore):
    """A real one in memory; `written` are the batches since it was last cleared."""

    def __init__(self) -> None:
        self._memory = open_memory()
        super().__init__(self._memory._engine)
        self.written: list[Batch] = []

    def write(self, batch: Batch) -> tuple[Event, ...]:
        self.written.append(batch)
        return super().write(batch)
