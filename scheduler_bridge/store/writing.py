"""A batch as rows: few statements for many records, all in the caller's transaction."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from sqlalchemy import Connection, Table, bindparam, delete, insert, select, update

from scheduler_bridge.model.nodes import NodeRecord
from scheduler_bridge.model.phases import TERMINAL
from scheduler_bridge.model.teams import ChangeSet
from scheduler_bridge.model.workload import Event, Pause, Workload
from scheduler_bridge.store.base import LeaseRecord
from scheduler_bridge.store.records import CHANGE_SET, LEASE, NODE, PAUSE, WORKLOAD
from scheduler_bridge.store.tables import (
    EVENTS,
    HELD_GPUS,
    LEASES,
    NODES,
    PAUSES,
    TEAM_CHANGES,
    WORKLOADS,
)


def _known_and_changed(table: Table) -> tuple[Any, Any]:
    return (
        select(table.c.id).where(table.c.id.in_(bindparam("ids", expanding=True))),
        update(table).where(table.c.id == bindparam("this")),
    )


# made once: to build a statement costs more than to run it
_STATEMENTS: Final = {table: _known_and_changed(table) for table in (WORKLOADS, LEASES)}
_RELEASE: Final = delete(HELD_GPUS).where(HELD_GPUS.c.lease_id == bindparam("lease"))
_ADD_EVENTS: Final = insert(EVENTS).returning(EVENTS.c.id, sort_by_parameter_order=True)


def write_workloads(connection: Connection, workloads: tuple[Workload, ...]) -> None:
    _upsert(connection, WORKLOADS, [_workload_row(workload) for workload in workloads])


def _workload_row(workload: Workload) -> dict[str, Any]:
    # its lease is a row of its own; place and reason in the queue are worked out anew each cycle
    bare = replace(workload, lease=None, position=None, wait_reason="")
    return {
        "id": workload.id,
        "live_key": None if workload.phase in TERMINAL else workload.key,
        "kind": workload.spec.kind.value,
        "user": workload.spec.user,
        "data": WORKLOAD.dump_python(bare, mode="json"),
    }


def write_leases(connection: Connection, records: tuple[LeaseRecord, ...]) -> None:
    rows = [
        {
            "id": record.lease.id,
            "workload_id": record.lease.workload_id,
            "released_at": record.released_at,
            "data": LEASE.dump_python(record, mode="json"),
        }
        for record in records
    ]
    new = _upsert(connection, LEASES, rows)
    # releases first: a GPU may change hands within one batch
    released = [{"lease": r.lease.id} for r in records if r.released_at is not None]
    held = [
        {"gpu_uuid": gpu.uuid, "lease_id": record.lease.id}
        for record in records
        if record.lease.id in new and record.released_at is None
        for gpu in record.lease.gpus
    ]
    if released:
        connection.execute(_RELEASE, released)
    if held:
        connection.execute(insert(HELD_GPUS), held)


def _upsert(connection: Connection, table: Table, rows: list[dict[str, Any]]) -> frozenset[str]:
    """Write the rows, known ones first: what they let go of, new ones may take. Gives the ids of the
    new ones. Few statements for many rows."""
    if not rows:
        return frozenset()
    select_known, update_known = _STATEMENTS[table]
    known = set(connection.execute(select_known, {"ids": [row["id"] for row in rows]}).scalars())
    if known:
        changed = [{**row, "this": row["id"]} for row in rows if row["id"] in known]
        connection.execute(update_known, changed)
    new = [row for row in rows if row["id"] not in known]
    if new:
        connection.execute(insert(table), new)
    return frozenset(row["id"] for row in new)


def write_pauses(connection: Connection, pauses: tuple[Pause, ...]) -> None:
    connection.execute(delete(PAUSES))
    for pause in pauses:
        connection.execute(
            insert(PAUSES).values(scope=pause.scope, data=PAUSE.dump_python(pause, mode="json"))
        )


def write_change_set(connection: Connection, change_set: ChangeSet) -> None:
    connection.execute(
        insert(TEAM_CHANGES).values(
            id=change_set.id,
            based_on=change_set.based_on,
            data=CHANGE_SET.dump_python(change_set, mode="json"),
        )
    )


def write_node(connection: Connection, record: NodeRecord) -> None:
    data = NODE.dump_python(record, mode="json")
    done = connection.execute(update(NODES).where(NODES.c.name == record.name).values(data=data))
    if done.rowcount == 0:
        connection.execute(insert(NODES).values(name=record.name, data=data))


def write_events(connection: Connection, events: tuple[Event, ...]) -> tuple[Event, ...]:
    if not events:
        return ()
    rows = [
        {name: _text(getattr(event, name)) for name in Event.__slots__ if name != "id"}
        for event in events
    ]
    ids = connection.execute(_ADD_EVENTS, rows).scalars().all()
    return tuple(replace(event, id=int(key)) for event, key in zip(events, ids, strict=True))


def _text(value: Any) -> Any:
    """A text as every database takes it: NUL and halves of characters are replaced."""
    if isinstance(value, str) and not value.isprintable():
        return value.replace("\0", "\ufffd").encode(errors="replace").decode()
    return value
