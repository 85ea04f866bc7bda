"""The store in a SQL database: SQLite (WAL) on one machine, PostgreSQL elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

from pydantic import TypeAdapter
from sqlalchemy import Connection, Engine, Row, delete, func, insert, select, update

from scheduler_bridge.model.nodes import NodeRecord
from scheduler_bridge.model.phases import TERMINAL
from scheduler_bridge.model.teams import ChangeSet
from scheduler_bridge.model.workload import Event, Pause, Workload
from scheduler_bridge.store.base import Batch, LeaseRecord, Snapshot
from scheduler_bridge.store.errors import translated
from scheduler_bridge.store.sql_estimates import SqlEstimates
from scheduler_bridge.store.sql_ledger import SqlLedger
from scheduler_bridge.store.tables import (
    EARMARKS,
    EVENTS,
    HELD_GPUS,
    LEASES,
    NODES,
    PAUSES,
    TEAM_CHANGES,
    WORKLOADS,
)

_WORKLOAD = TypeAdapter(Workload)
_LEASE = TypeAdapter(LeaseRecord)
_PAUSE = TypeAdapter(Pause)
_CHANGE_SET = TypeAdapter(ChangeSet)
_NODE = TypeAdapter(NodeRecord)


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
                _LEASE.validate_python(row.data)
                for row in connection.execute(select(LEASES).where(LEASES.c.released_at.is_(None)))
            )
            live = connection.execute(
                select(WORKLOADS)
                .where(WORKLOADS.c.live_key.is_not(None))
                .order_by(WORKLOADS.c.number)
            )
            workloads = tuple(_WORKLOAD.validate_python(row.data) for row in live)
            pauses = tuple(
                _PAUSE.validate_python(row.data) for row in connection.execute(select(PAUSES))
            )
            earmarks = {
                row.gpu_uuid: row.workload_id for row in connection.execute(select(EARMARKS))
            }
            changes = connection.execute(select(TEAM_CHANGES).order_by(TEAM_CHANGES.c.number))
            change_sets = tuple(_CHANGE_SET.validate_python(row.data) for row in changes)
            nodes = tuple(
                _NODE.validate_python(row.data) for row in connection.execute(select(NODES))
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
            for workload in batch.workloads:
                _write_workload(connection, workload)
            # releases first: a GPU may change hands within one batch
            for record in sorted(batch.leases, key=lambda r: r.released_at is None):
                _write_lease(connection, record)
            if batch.pauses is not None:
                _write_pauses(connection, batch.pauses)
            for node in batch.nodes:
                _write_node(connection, node)
            if batch.earmarks is not None:
                connection.execute(delete(EARMARKS))
                for gpu, owner in batch.earmarks.items():
                    connection.execute(insert(EARMARKS).values(gpu_uuid=gpu, workload_id=owner))
            for change_set in batch.change_sets:
                _write_change_set(connection, change_set)
            events = tuple(_write_event(connection, event) for event in batch.events)
        if events:
            self._wrote(events[-1].id)
        return events

    def workload(self, workload_id: str) -> Workload | None:
        with self._reading() as connection:
            row = connection.execute(
                select(WORKLOADS.c.data).where(WORKLOADS.c.id == workload_id)
            ).first()
        return None if row is None else _WORKLOAD.validate_python(row.data)

    def workloads(self, *, kind: str | None, user: str | None, limit: int) -> tuple[Workload, ...]:
        query = select(WORKLOADS.c.data).order_by(WORKLOADS.c.number.desc()).limit(limit)
        if kind is not None:
            query = query.where(WORKLOADS.c.kind == kind)
        if user is not None:
            query = query.where(WORKLOADS.c.user == user)
        with self._reading() as connection:
            rows = connection.execute(query).all()
        return tuple(_WORKLOAD.validate_python(row.data) for row in reversed(rows))

    def lease(self, lease_id: str) -> LeaseRecord | None:
        with self._reading() as connection:
            row = connection.execute(select(LEASES.c.data).where(LEASES.c.id == lease_id)).first()
        return None if row is None else _LEASE.validate_python(row.data)

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


def _write_workload(connection: Connection, workload: Workload) -> None:
    # its lease is a row of its own; place and reason in the queue are worked out anew each cycle
    bare = replace(workload, lease=None, position=None, wait_reason="")
    values: dict[str, Any] = {
        "id": workload.id,
        "live_key": None if workload.phase in TERMINAL else workload.key,
        "kind": workload.spec.kind.value,
        "user": workload.spec.user,
        "data": _WORKLOAD.dump_python(bare, mode="json"),
    }
    done = connection.execute(
        update(WORKLOADS).where(WORKLOADS.c.id == workload.id).values(**values)
    )
    if done.rowcount == 0:
        connection.execute(insert(WORKLOADS).values(**values))


def _write_lease(connection: Connection, record: LeaseRecord) -> None:
    values = {
        "workload_id": record.lease.workload_id,
        "released_at": record.released_at,
        "data": _LEASE.dump_python(record, mode="json"),
    }
    done = connection.execute(update(LEASES).where(LEASES.c.id == record.lease.id).values(**values))
    if done.rowcount == 0:
        connection.execute(insert(LEASES).values(id=record.lease.id, **values))
        for gpu in record.lease.gpus:
            connection.execute(
                insert(HELD_GPUS).values(gpu_uuid=gpu.uuid, lease_id=record.lease.id)
            )
    if record.released_at is not None:
        connection.execute(delete(HELD_GPUS).where(HELD_GPUS.c.lease_id == record.lease.id))


def _write_pauses(connection: Connection, pauses: tuple[Pause, ...]) -> None:
    connection.execute(delete(PAUSES))
    for pause in pauses:
        connection.execute(
            insert(PAUSES).values(scope=pause.scope, data=_PAUSE.dump_python(pause, mode="json"))
        )


def _write_change_set(connection: Connection, change_set: ChangeSet) -> None:
    connection.execute(
        insert(TEAM_CHANGES).values(
            id=change_set.id,
            based_on=change_set.based_on,
            data=_CHANGE_SET.dump_python(change_set, mode="json"),
        )
    )


def _write_node(connection: Connection, record: NodeRecord) -> None:
    data = _NODE.dump_python(record, mode="json")
    done = connection.execute(update(NODES).where(NODES.c.name == record.name).values(data=data))
    if done.rowcount == 0:
        connection.execute(insert(NODES).values(name=record.name, data=data))


def _write_event(connection: Connection, event: Event) -> Event:
    values = {name: _text(getattr(event, name)) for name in Event.__slots__ if name != "id"}
    done = connection.execute(insert(EVENTS).values(**values))
    key = cast("Row[Any]", done.inserted_primary_key)
    return replace(event, id=int(key[0]))


def _text(value: Any) -> Any:
    """A text as every database takes it: NUL and halves of characters are replaced."""
    if isinstance(value, str) and not value.isprintable():
        return value.replace("\0", "\ufffd").encode(errors="replace").decode()
    return value


def _event(row: Row[Any]) -> Event:
    return Event(**{name: getattr(row, name) for name in Event.__slots__})
