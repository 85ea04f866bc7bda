"""What would come of work before it is submitted."""

from __future__ import annotations

from dataclasses import replace

from fastapi import APIRouter
from fastapi.responses import Response

from scheduler_bridge import wire
from scheduler_bridge.api.callers import Caller, Right
from scheduler_bridge.api.operations import Operations
from scheduler_bridge.api.routes import Who, as_json
from scheduler_bridge.errors import NotAllowed
from scheduler_bridge.model.what_if import Outlook
from scheduler_bridge.model.workload import WorkloadSpec


def outlook_routes(operations: Operations) -> APIRouter:
    """Everybody asks for themselves; who may submit for others, for them too."""
    router = APIRouter(tags=["workloads"])
    scheduler, sights = operations.scheduler, operations.sights

    @router.post("/what-if", response_model=list[Outlook])
    async def what_if(who: Who, body: wire.WhatIfBody) -> Response:
        spec = _own(who, body.spec)
        teams = operations.teams_of(who, spec.user)
        for team in (spec.team, *(each.team for each in body.variants if each.team)):
            operations.require_team(who, team)
        found = scheduler.outlooks.what_if(spec, body.variants, teams)
        return as_json(wire.OUTLOOKS, tuple(sights.outlook(who, each) for each in found))

    return router


def _own(who: Caller, spec: WorkloadSpec) -> WorkloadSpec:
    if who.sees_all:
        who.require(Right.SUBMIT)
        return spec
    if spec.user and not who.owns(spec.user):
        raise NotAllowed(f"user: {who.name} may ask for {who.name} only.", remedy="Leave it out.")
    return replace(spec, user=who.user)
