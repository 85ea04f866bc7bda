"""The store in a SQL database: SQLite (WAL) on one machine, PostgreSQL elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, Engine, Row, delete, func, insert, select

from scheduler_bridge.model.workload import Event, Workload
from scheduler_bridge.store import writing
from scheduler_bridge.store.base import Batch, LeaseRecord, Snapshot
from scheduler_bridge.store.errors import translated
from scheduler_bridge.store.records import CHANGE_SET, LEASE, NODE, PAUSE, WORKLOAD
from scheduler_bridge.store.sql_estimates import SqlEstimates
from scheduler_bridge.store.sql_ledger import SqlLedger
from scheduler_bridge.store.tables import (
    EARMARKS,
    EVENTS,
    LEASES,
    NODES,
    PAUSES,
    TEAM_CHANGES,
    WORKLOADS,
)


class SqlStore:
    """See `store.base.Store`. Made by `store.opening`."""

    def __init__(self, engine: Engine, wrote: Callable[[int], object] = lambda _id: None) -> None:
        """`wrote` is told the id of the newest event after each write that has one."""
        self._engine = engine
        self._wrote = wrote
        self._ledger = SqlLedger(engine)
        self._estimates = SqlEstimates(engine)

    @property
    def ledger(self) -> SqlLedger:
        return self._ledger

    @property
    def estimates(self) -> SqlEstimates:
        return self._estimates

    def load(self) -> Snapshot:
        with self._reading() as connection:
            leases = tuple(
                LEASE.validate_python(row.data)
                for row in connection.execute(select(LEASES).where(LEASES.c.released_at.is_(None)))
            )
            live = connection.execute(
                select(WORKLOADS)
                .where(WORKLOADS.c.live_key.is_not(None))
                .order_by(WORKLOADS.c.number)
            )
            workloads = tuple(WORKLOAD.validate_python(row.data) for row in live)
            pauses = tuple(
                PAUSE.validate_python(row.data) for row in connection.execute(select(PAUSES))
            )
            earmarks = {
                row.gpu_uuid: row.workload_id for row in connection.execute(select(EARMARKS))
            }
            changes = connection.execute(select(TEAM_CHANGES).order_by(TEAM_CHANGES.c.number))
            change_sets = tuple(CHANGE_SET.validate_python(row.data) for row in changes)
            nodes = tuple(
                NODE.validate_python(row.data) for row in connection.execute(select(NODES))
            )
        by_epoch = {(r.lease.workload_id, r.lease.epoch): r.lease for r in leases}
        return Snapshot(
            tuple(replace(w, lease=by_epoch.get((w.id, w.epoch))) for w in workloads),
            leases,
            pauses,
            earmarks,
            change_sets,
            nodes,
        )

    def write(self, batch: Batch) -> tuple[Event, ...]:
        with translated("refused a write"), self._engine.begin() as connection:
            writing.write_workloads(connection, batch.workloads)
            writing.write_leases(connection, batch.leases)
            if batch.pauses is not None:
                writing.write_pauses(connection, batch.pauses)
            for node in batch.nodes:
                writing.write_node(connection, node)
            if batch.earmarks is not None:
                connection.execute(delete(EARMARKS))
                for gpu, owner in batch.earmarks.items():
                    connection.execute(insert(EARMARKS).values(gpu_uuid=gpu, workload_id=owner))
            for change_set in batch.change_sets:
                writing.write_change_set(connection, change_set)
            events = writing.write_events(connection, batch.events)
        if events:
            self._wrote(events[-1].id)
        return events

    def workload(self, workload_id: str) -> Workload | None:
        with self._reading() as connection:
            row = connection.execute(
                select(WORKLOADS.c.data).where(WORKLOADS.c.id == workload_id)
            ).first()
        return None if row is None else WORKLOAD.validate_python(row.data)

    def workloads(self, *, kind: str | None, user: str | None, limit: int) -> tuple[Workload, ...]:
        query = select(WORKLOADS.c.data).order_by(WORKLOADS.c.number.desc()).limit(limit)
        if kind is not None:
            query = query.where(WORKLOADS.c.kind == kind)
        if user is not None:
            query = query.where(WORKLOADS.c.user == user)
        with self._reading() as connection:
            rows = connection.execute(query).all()
        return tuple(WORKLOAD.validate_python(row.data) for row in reversed(rows))

    def lease(self, lease_id: str) -> LeaseRecord | None:
        with self._reading() as connection:
            row = connection.execute(select(LEASES.c.data).where(LEASES.c.id == lease_id)).first()
        return None if row is None else LEASE.validate_python(row.data)

    def events(self, *, after: int, limit: int) -> tuple[Event, ...]:
        query = select(EVENTS).where(EVENTS.c.id > after).order_by(EVENTS.c.id).limit(limit)
        with self._reading() as connection:
            return tuple(_event(row) for row in connection.execute(query))

    def history(self, workload_id: str) -> tuple[Event, ...]:
        query = select(EVENTS).where(EVENTS.c.workload_id == workload_id).order_by(EVENTS.c.id)
        with self._reading() as connection:
            return tuple(_event(row) for row in connection.execute(query))

    def last_event_id(self) -> int:
        with self._reading() as connection:
            return int(connection.execute(select(func.max(EVENTS.c.id))).scalar() or 0)

    def close(self) -> None:
        self._engine.dispose()

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        with translated("does not answer"), self._engine.connect() as connection:
            yield connection


def _event(row: Row[Any]) -> Event:
    return Event(**{name: getattr(row, name) for name in Event.__slots__})
