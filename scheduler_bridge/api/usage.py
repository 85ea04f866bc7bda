"""REST of the ledger: who used how much GPU time."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import Response

from scheduler_bridge import wire
from scheduler_bridge.api.callers import Caller, Right
from scheduler_bridge.api.operations import Operations
from scheduler_bridge.api.routes import Who, as_json
from scheduler_bridge.engine.usage import Audience, report
from scheduler_bridge.model.usage import Bucket, Grouping, UsageQuestion, UsageReport

From = Annotated[datetime | None, Query(alias="from")]
To = Annotated[datetime | None, Query(alias="to")]


def usage_routes(operations: Operations) -> APIRouter:
    """Users see what was charged to teams that they may use, and what they used themselves."""
    router = APIRouter(tags=["usage"])

    @router.get("/usage", response_model=UsageReport)
    async def usage(
        who: Who,
        since: From = None,
        until: To = None,
        group_by: Grouping = Grouping.TEAM,
        bucket: Bucket | None = None,
    ) -> Response:
        """Times are UNIX seconds or ISO 8601 (without a zone: UTC), rounded to whole hours."""
        question = UsageQuestion(_seconds(since), _seconds(until), group_by, bucket)
        told = report(operations.scheduler, question, _audience(operations, who))
        return as_json(wire.USAGE, told)

    return router


def _audience(operations: Operations, who: Caller) -> Audience:
    if who.sees_all:
        return Audience()
    if not who.user:
        who.require(Right.READ)
    return Audience(operations.usable_teams(who, "", frozenset()), who.user)


def _seconds(at: datetime | None) -> float | None:
    if at is None:
        return None
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
