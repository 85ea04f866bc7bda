"""The queue and the machines, and giving up what cannot be proven gone."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import Response

from scheduler_bridge import wire
from scheduler_bridge.api.callers import Caller, Right
from scheduler_bridge.api.operations import Operations
from scheduler_bridge.api.routes import Who, as_json
from scheduler_bridge.engine import giving_up
from scheduler_bridge.model.nodes import Losses, NodeRecord, NodeStatus
from scheduler_bridge.model.queue import QueueView
from scheduler_bridge.model.workload import Workload


def _author(who: Caller, said: str) -> str:
    """A person's own name counts; a service may say for whom it asks."""
    return who.user or said or who.name


def node_routes(operations: Operations) -> APIRouter:
    """Everybody looks, by the rule of the house; administrators give up."""
    router = APIRouter(tags=["fleet"])
    scheduler, sights = operations.scheduler, operations.sights

    @router.get("/queue", response_model=QueueView)
    async def queue(who: Who) -> Response:
        return as_json(wire.QUEUE, sights.queue(who))

    @router.get("/nodes", response_model=list[NodeStatus])
    async def nodes(who: Who) -> Response:
        return as_json(wire.NODES, sights.nodes(who))

    @router.get("/nodes/{name}/losses", response_model=Losses)
    async def losses_of_node(who: Who, name: str) -> Response:
        who.require(Right.GIVE_UP)
        return as_json(wire.LOSSES, giving_up.losses_of_node(scheduler, name))

    @router.post("/nodes/{name}/declare-dead", response_model=NodeRecord)
    async def declare_dead(who: Who, name: str, body: wire.GiveUpBody) -> Response:
        who.require(Right.GIVE_UP)
        record = giving_up.declare_dead(
            scheduler,
            name,
            reason=body.reason,
            actor=_author(who, body.actor),
            at_once=body.at_once,
            given_up=body.given_up,
        )
        return as_json(wire.NODE_RECORD, record)

    @router.post("/nodes/{name}/revive", response_model=NodeRecord)
    async def revive(who: Who, name: str, body: wire.ReviveBody) -> Response:
        who.require(Right.GIVE_UP)
        actor = _author(who, body.actor)
        record = giving_up.revive(scheduler, name, reason=body.reason, actor=actor)
        return as_json(wire.NODE_RECORD, record)

    @router.get("/workloads/{workload_id}/losses", response_model=Losses)
    async def losses_of_session(who: Who, workload_id: str) -> Response:
        who.require(Right.GIVE_UP)
        return as_json(wire.LOSSES, giving_up.losses_of_session(scheduler, workload_id))

    @router.post("/workloads/{workload_id}/force-stop", response_model=Workload)
    async def force_stop(who: Who, workload_id: str, body: wire.GiveUpBody) -> Response:
        who.require(Right.GIVE_UP)
        stopped = giving_up.force_stop(
            scheduler,
            workload_id,
            reason=body.reason,
            actor=_author(who, body.actor),
            given_up=body.given_up,
        )
        return as_json(wire.WORKLOAD, stopped)

    return router
