"""Machines as they are shown: what answers, who holds what, and until when."""

from __future__ import annotations

from scheduler_bridge.engine.giving_up import still_there
from scheduler_bridge.engine.presence import fenced_at
from scheduler_bridge.engine.scheduler import Scheduler
from scheduler_bridge.errors import NotFound
from scheduler_bridge.model.nodes import NodeHolder, NodeStanding, NodeStatus
from scheduler_bridge.model.queue import called
from scheduler_bridge.model.workload import Node
from scheduler_bridge.store.base import LeaseRecord


def node_statuses(scheduler: Scheduler) -> tuple[NodeStatus, ...]:
    """Every machine of the fleet, and after them those that are only named by a lease or by what is
    stored of them."""
    scheduler.presence.look()
    books = scheduler.books
    leases: dict[str, list[LeaseRecord]] = {}
    for record in books.leases.values():
        for name in {record.lease.node, *(gpu.node for gpu in record.lease.gpus)}:
            leases.setdefault(name, []).append(record)
    inventory = {node.name: node for node in books.inventory}
    dead = {r.name for r in books.node_records.values() if r.death is not None}
    names = [*inventory, *sorted((leases.keys() | dead) - inventory.keys())]
    return tuple(
        _status(scheduler, name, inventory.get(name), leases.get(name, [])) for name in names
    )


def _status(
    scheduler: Scheduler, name: str, node: Node | None, leases: list[LeaseRecord]
) -> NodeStatus:
    presence, record = scheduler.presence, scheduler.books.node_record(name)
    held = {gpu.uuid for lease in leases for gpu in lease.lease.gpus}
    gpus = node.gpus if node else ()
    state = NodeStanding.DEAD if record.death else NodeStanding.UNKNOWN
    if node is not None:
        state = presence.standing(node)
    taken = [lease for lease in leases if lease.taken_at is not None]
    return NodeStatus(
        name=name,
        state=state,
        gpus=len(gpus),
        free=sum(gpu.uuid not in held for gpu in gpus) if state is NodeStanding.READY else 0,
        cluster=node.cluster if node else "",
        heard_at=presence.heard_at(name),
        silent_since=record.silent_since,
        fenced_at=max((fenced_at(lease, scheduler.settings) for lease in taken), default=None),
        holders=tuple(_holder(scheduler, lease, name) for lease in leases),
        death=record.death,
        still_heard=still_there(scheduler, record),
    )


def _holder(scheduler: Scheduler, record: LeaseRecord, node: str) -> NodeHolder:
    count = sum(gpu.node == node for gpu in record.lease.gpus)
    try:
        workload = scheduler.get(record.lease.workload_id)
    except NotFound:
        return NodeHolder(str(record.lease.workload_id), count)
    return NodeHolder(
        workload_id=str(workload.id),
        gpus=count,
        kind=workload.spec.kind,
        name=called(workload.spec),
        user=workload.spec.user,
        team=workload.spec.team,
        phase=workload.phase,
        renewed_at=scheduler.presence.spoke_at(record.lease.id),
    )
