"""REST of the teams: the tree, its history, changes and undos."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import Response

from scheduler_bridge import wire
from scheduler_bridge.api.callers import Caller, Right
from scheduler_bridge.api.operations import Operations
from scheduler_bridge.api.routes import Who, as_json
from scheduler_bridge.engine import teams
from scheduler_bridge.engine.scheduler import Scheduler
from scheduler_bridge.model.teams import ChangeSet, TeamsView


def team_routes(operations: Operations) -> APIRouter:
    """Users see the teams that they may use and those above them; the history, and changes of it,
    are for administrators."""
    router = APIRouter(tags=["teams"])
    scheduler = operations.scheduler

    @router.get("/teams", response_model=TeamsView)
    async def tree(who: Who) -> Response:
        return as_json(wire.TEAMS, _visible(scheduler, operations, who))

    @router.get("/teams/usable", response_model=list[str])
    async def usable(
        who: Who, user: str = "", group: Annotated[list[str] | None, Query()] = None
    ) -> Response:
        return as_json(wire.NAMES, operations.usable_teams(who, user, frozenset(group or ())))

    @router.get("/teams/changes", response_model=list[ChangeSet])
    async def changes(who: Who) -> Response:
        who.require(Right.READ)
        return as_json(wire.CHANGE_SETS, scheduler.books.change_sets)

    @router.post("/teams/changes", response_model=ChangeSet)
    async def change(who: Who, body: wire.ChangeTeamsBody) -> Response:
        who.require(Right.BUDGETS)
        author = who.user or body.actor or who.name
        return as_json(wire.CHANGE_SET, teams.change(scheduler, body.proposal, author=author))

    @router.post("/teams/changes/{change_id}/undo", response_model=ChangeSet)
    async def undo(who: Who, change_id: str, body: wire.UndoTeamsBody) -> Response:
        who.require(Right.BUDGETS)
        author = who.user or body.actor or who.name
        made = teams.undo(scheduler, change_id, author=author, reason=body.reason)
        return as_json(wire.CHANGE_SET, made)

    return router


def _visible(scheduler: Scheduler, operations: Operations, who: Caller) -> TeamsView:
    seen = teams.view(scheduler.books, scheduler.settings.rules)
    if who.sees_all:
        return seen
    return teams.narrowed(seen, operations.usable_teams(who, "", frozenset()))
