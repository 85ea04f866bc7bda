"""REST: every operation of the plugin contract under `/api/v1`."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Request
from fastapi.responses import Response
from pydantic import TypeAdapter

from scheduler_bridge import wire
from scheduler_bridge.api.auth import Authenticator, bearer
from scheduler_bridge.api.callers import Caller, Right
from scheduler_bridge.api.operations import Operations
from scheduler_bridge.api.patience import unless_gone
from scheduler_bridge.api.rates import Rates
from scheduler_bridge.clusters.output import read_output
from scheduler_bridge.engine import expiry
from scheduler_bridge.engine.forks import fork
from scheduler_bridge.model.phases import Kind
from scheduler_bridge.model.workload import (
    Event,
    Expiry,
    Explanation,
    FleetView,
    Grant,
    Idleness,
    Instruction,
    Output,
    Pause,
    Workload,
)

MAX_WAIT_SECONDS = 60.0


def as_json(adapter: TypeAdapter[Any], value: object) -> Response:
    """A value of the model as the answer."""
    return Response(adapter.dump_json(value), media_type="application/json")


async def current_caller(
    request: Request, authorization: Annotated[str | None, Header()] = None
) -> Caller:
    """Dependency: who asks. A user who asks too often is not heard."""
    authenticator: Authenticator = request.app.state.authenticator
    caller = await authenticator.caller(authorization)
    if caller.user:
        rates: Rates = request.app.state.rates
        rates.count(caller.user)
    return caller


Who = Annotated[Caller, Depends(current_caller)]
Wait = Annotated[float, Query(ge=0, le=MAX_WAIT_SECONDS)]


def workload_routes(operations: Operations) -> APIRouter:
    """Submitting and looking."""
    router = APIRouter(tags=["workloads"])
    scheduler = operations.scheduler

    @router.post("/workloads", response_model=Workload)
    async def submit(who: Who, body: wire.SubmitBody) -> Response:
        return as_json(wire.WORKLOAD, operations.submit(who, body.spec, body.key))

    @router.get("/workloads", response_model=list[Workload])
    async def listed(
        who: Who, kind: Kind | None = None, user: str | None = None, live: bool = True
    ) -> Response:
        return as_json(wire.WORKLOADS, operations.list(who, kind, user, live))

    @router.get("/workloads/by-key", response_model=Workload | None)
    async def find(who: Who, key: str) -> Response:
        return as_json(wire.FOUND, operations.find(who, key))

    @router.get("/workloads/{workload_id}", response_model=Workload)
    async def get(who: Who, workload_id: str) -> Response:
        return as_json(wire.WORKLOAD, operations.visible(who, workload_id))

    @router.get("/workloads/{workload_id}/wait", response_model=Workload)
    async def wait(
        request: Request, who: Who, workload_id: str, version: int, timeout: Wait = 0.0
    ) -> Response:
        operations.visible(who, workload_id)
        waiting = scheduler.wait(workload_id, version=version, timeout=timeout, waiter=who.waiter)
        return as_json(wire.WORKLOAD, await unless_gone(request, waiting))

    return router


def wish_routes(operations: Operations) -> APIRouter:
    """Saying what should become of a workload, and taking up its place."""
    router = APIRouter(tags=["workloads"])
    scheduler = operations.scheduler

    @router.post("/workloads/{workload_id}/desired", response_model=Workload)
    async def desire(who: Who, workload_id: str, body: wire.DesireBody) -> Response:
        found = operations.desire(
            who, workload_id, body.desired, actor=body.actor, reason=body.reason
        )
        return as_json(wire.WORKLOAD, found)

    @router.post("/workloads/{workload_id}/fork", response_model=Workload)
    async def make_fork(who: Who, workload_id: str, body: wire.ForkBody) -> Response:
        who.require(Right.SUBMIT)
        made = fork(
            scheduler,
            workload_id,
            new=body.new,
            snapshot=body.snapshot,
            source_snapshot=body.source_snapshot,
            actor=body.actor or who.name,
        )
        return as_json(wire.WORKLOAD, made)

    @router.post("/workloads/{workload_id}/take", response_model=Grant)
    async def take(who: Who, workload_id: str) -> Response:
        return as_json(wire.GRANT, operations.take(who, workload_id))

    @router.put("/workloads/{workload_id}/idleness", status_code=204)
    async def idleness(who: Who, workload_id: str, body: Idleness) -> Response:
        who.require(Right.JUDGE_IDLENESS)
        scheduler.set_idleness(workload_id, body, actor=who.name)
        return Response(status_code=204)

    return router


def expiry_routes(operations: Operations) -> APIRouter:
    """Until when a suspended session is kept, and its end."""
    router = APIRouter(tags=["workloads"])
    scheduler = operations.scheduler

    @router.put("/workloads/{workload_id}/expiry", status_code=204)
    async def announce(who: Who, workload_id: str, body: Expiry | None = None) -> Response:
        who.require(Right.EXPIRE)
        expiry.announce(scheduler, workload_id, body, actor=who.name)
        return Response(status_code=204)

    @router.post("/workloads/{workload_id}/expire", response_model=Workload)
    async def expire(who: Who, workload_id: str, body: wire.ExpireBody) -> Response:
        who.require(Right.EXPIRE)
        ended = expiry.expire(scheduler, workload_id, snapshot=body.snapshot, actor=who.name)
        return as_json(wire.WORKLOAD, ended)

    return router


def story_routes(operations: Operations) -> APIRouter:
    """What happened to a workload, why it is as it is, and what it has written."""
    router = APIRouter(tags=["workloads"])
    scheduler = operations.scheduler

    @router.get("/workloads/{workload_id}/history", response_model=list[Event])
    async def history(who: Who, workload_id: str) -> Response:
        operations.visible(who, workload_id)
        shown = (operations.sights.event(who, e) for e in scheduler.history(workload_id))
        return as_json(wire.EVENTS, tuple(e for e in shown if e is not None))

    @router.get("/workloads/{workload_id}/why", response_model=Explanation)
    async def why(who: Who, workload_id: str) -> Response:
        workload = operations.visible(who, workload_id)
        found = scheduler.why(workload_id, operations.teams_of(who, workload.spec.user))
        return as_json(wire.EXPLANATION, operations.sights.explanation(who, found))

    @router.get("/workloads/{workload_id}/output", response_model=Output)
    async def output(
        who: Who,
        workload_id: str,
        position: Annotated[int, Query(ge=0)] = 0,
        serial: Annotated[int, Query(ge=0)] = 0,
    ) -> Response:
        workload = operations.visible(who, workload_id)
        piece = await asyncio.to_thread(read_output, workload, position=position, serial=serial)
        return as_json(wire.OUTPUT, piece)

    return router


def lease_routes(operations: Operations) -> APIRouter:
    """What a lease's holder says, with the lease's credential and nothing else."""
    router = APIRouter(tags=["leases"])
    scheduler = operations.scheduler

    @router.post("/leases/{lease_id}/heartbeat", response_model=Instruction)
    async def heartbeat(
        request: Request,
        lease_id: str,
        body: wire.HeartbeatBody,
        authorization: Annotated[str | None, Header()] = None,
    ) -> Response:
        beating = scheduler.heartbeat(lease_id, bearer(authorization), body.report, wait=body.wait)
        return as_json(wire.INSTRUCTION, await unless_gone(request, beating))

    @router.post("/leases/{lease_id}/move", response_model=Workload)
    async def move(
        lease_id: str,
        body: wire.MoveBody,
        authorization: Annotated[str | None, Header()] = None,
    ) -> Response:
        moved = scheduler.move(
            lease_id,
            bearer(authorization),
            body.target,
            cause=body.cause,
            evidence=body.evidence,
            snapshot=body.snapshot,
            exit_code=body.exit_code,
        )
        return as_json(wire.WORKLOAD, moved)

    return router


def fleet_routes(operations: Operations) -> APIRouter:
    """The fleet and the red button."""
    router = APIRouter(tags=["fleet"])

    @router.get("/fleet", response_model=FleetView)
    async def fleet(who: Who) -> Response:
        return as_json(wire.FLEET, operations.sights.fleet(who))

    @router.put("/pauses/{scope}", response_model=Pause)
    async def pause(who: Who, scope: str, body: wire.PauseBody) -> Response:
        who.require(Right.PAUSE)
        actor = who.user or body.actor or who.name
        paused = operations.scheduler.pause(
            scope, seconds=body.seconds, reason=body.reason, actor=actor
        )
        return as_json(wire.PAUSE, paused)

    return router
