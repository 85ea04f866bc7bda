"""Server-sent events: the append-only log as it grows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Final

from fastapi import APIRouter, Header, Query
from fastapi.responses import StreamingResponse

from scheduler_bridge import wire
from scheduler_bridge.api.operations import Operations
from scheduler_bridge.api.routes import Who
from scheduler_bridge.errors import Refused
from scheduler_bridge.model.workload import Event

KEEPALIVE_SECONDS: Final = 15.0


def stream_routes(
    operations: Operations, *, keepalive_seconds: float = KEEPALIVE_SECONDS
) -> APIRouter:
    """`GET /events`: all events after an id, then new ones. Users get those of their own work, and of
    others' what the rule of the house allows."""
    router = APIRouter(tags=["events"])

    @router.get("/events", response_class=StreamingResponse)
    async def events(
        who: Who,
        after: Annotated[int, Query(ge=0)] = 0,
        last_event_id: Annotated[str | None, Header()] = None,
    ) -> StreamingResponse:
        if last_event_id is not None:
            if not last_event_id.isdecimal():
                raise Refused("Last-Event-ID: must be the number of an event.")
            after = int(last_event_id)
        source = operations.scheduler.events(after=after)
        return StreamingResponse(
            frames(source, lambda event: operations.sights.event(who, event), keepalive_seconds),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )

    return router


async def frames(
    source: AsyncIterator[Event],
    shown: Callable[[Event], Event | None],
    keepalive_seconds: float,
) -> AsyncIterator[bytes]:
    """Frames of the stream, of each event what is shown of it. A comment first, so that proxies pass
    the head on at once."""
    yield b": events\n\n"
    upcoming = asyncio.ensure_future(anext(source, None))
    try:
        while True:
            done, _ = await asyncio.wait({upcoming}, timeout=keepalive_seconds)
            if not done:
                yield b": keepalive\n\n"
                continue
            event = upcoming.result()
            if event is None:
                return
            upcoming = asyncio.ensure_future(anext(source, None))
            if (seen := shown(event)) is not None:
                yield b"id: %d\ndata: %s\n\n" % (seen.id, wire.EVENT.dump_json(seen))
    finally:
        upcoming.cancel()
        await asyncio.gather(upcoming, return_exceptions=True)
