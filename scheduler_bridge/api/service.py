"""Puts the HTTP service together."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from scheduler_bridge.api import problems
from scheduler_bridge.api.auth import Authenticator
from scheduler_bridge.api.middleware import BodyLimit, HubPrefix
from scheduler_bridge.api.node_routes import node_routes
from scheduler_bridge.api.operations import Operations
from scheduler_bridge.api.outlook_routes import outlook_routes
from scheduler_bridge.api.patience import HungUp
from scheduler_bridge.api.rates import Rate, Rates
from scheduler_bridge.api.routes import (
    expiry_routes,
    fleet_routes,
    lease_routes,
    story_routes,
    wish_routes,
    workload_routes,
)
from scheduler_bridge.api.stream import stream_routes
from scheduler_bridge.api.teams import team_routes
from scheduler_bridge.api.usage import usage_routes
from scheduler_bridge.engine.scheduler import Scheduler
from scheduler_bridge.wire import PREFIX

HUB_PREFIX: Final = "/services/hubernate"
_HUNG_UP: Final = 499


def create_service(
    scheduler: Scheduler,
    authenticator: Authenticator,
    *,
    prefix: str = HUB_PREFIX,
    not_ready: Callable[[], str] = lambda: "",
    metrics: Callable[[], bytes] = lambda: b"",
    rates: Rates | None = None,
) -> FastAPI:
    """The ASGI application. `not_ready` gives the reason why it is not, or nothing. Without `rates`
    users may ask as often as `Rate` says by default."""
    app = FastAPI(title="Hubernate scheduler", version="1", docs_url=None, redoc_url=None)
    app.state.authenticator = authenticator
    app.state.rates = rates or Rates(Rate(), time.monotonic)
    operations = Operations(scheduler)
    for router in (
        workload_routes(operations),
        wish_routes(operations),
        expiry_routes(operations),
        story_routes(operations),
        lease_routes(operations),
        fleet_routes(operations),
        team_routes(operations),
        usage_routes(operations),
        node_routes(operations),
        outlook_routes(operations),
        stream_routes(operations),
    ):
        app.include_router(router, prefix=PREFIX)
    _health_routes(app, not_ready, metrics)
    problems.install(app)

    @app.exception_handler(HungUp)
    async def _gone(_request: Request, _error: HungUp) -> Response:
        return Response(status_code=_HUNG_UP)

    app.add_middleware(BodyLimit)
    app.add_middleware(HubPrefix, prefix=prefix)
    return app


def _health_routes(
    app: FastAPI, not_ready: Callable[[], str], metrics: Callable[[], bytes]
) -> None:
    @app.get("/healthz", tags=["health"])
    async def healthz() -> JSONResponse:
        """The process answers."""
        return JSONResponse({"status": "ok"})

    @app.get("/readyz", tags=["health"])
    async def readyz() -> JSONResponse:
        """It can decide and save."""
        reason = not_ready()
        if reason:
            return JSONResponse({"status": "not ready", "reason": reason}, 503)
        return JSONResponse({"status": "ready"})

    @app.get("/metrics", tags=["health"])
    async def numbers(request: Request) -> Response:
        """For Prometheus on this machine; the Hub's proxy does not lead here."""
        if request.scope.get("root_path"):
            return Response(status_code=404)
        return Response(metrics(), media_type="text/plain; version=0.0.4; charset=utf-8")
