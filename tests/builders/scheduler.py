"""Values and a real HTTP scheduler for tests."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import uvicorn

from scheduler_bridge.agent.inventory import virtual_gpus
from scheduler_bridge.api.auth import Authenticator, HubUsers
from scheduler_bridge.api.rates import Rates
from scheduler_bridge.api.service import create_service
from scheduler_bridge.client import SchedulerClient
from scheduler_bridge.engine.books import Books
from scheduler_bridge.engine.runner import Runner
from scheduler_bridge.engine.scheduler import Scheduler
from scheduler_bridge.engine.settings import Clock, Settings, SystemClock
from scheduler_bridge.inprocess import InProcessScheduler
from scheduler_bridge.model.phases import Kind, Phase
from scheduler_bridge.model.workload import Node, SnapshotRef, Workload, WorkloadSpec
from scheduler_bridge.plugin import SchedulerPlugin
from scheduler_bridge.store.opening import open_memory

TOKENS = {
    name: f"{name}-token-for-tests-only" for name in ("admin", "hub", "reclaimer", "scheduler")
}


def session(user: str = "alice", gpus: int = 1, **more: Any) -> WorkloadSpec:
    """A session's wish."""
    return WorkloadSpec(kind=Kind.SESSION, name=f"{user}'s", user=user, gpus=gpus, **more)


def job(user: str = "bob", gpus: int = 1, **more: Any) -> WorkloadSpec:
    """A job's wish."""
    values = {"name": "train", "command": ("python", "train.py"), **more}
    return WorkloadSpec(kind=Kind.JOB, user=user, gpus=gpus, **values)


def snapshot(epoch: int = 1, sequence: int = 1) -> SnapshotRef:
    """A committed snapshot."""
    return SnapshotRef(f"manifests/a/s/{epoch:010}-{sequence:010}", epoch, sequence)


def one_node(gpus: int, tmp: str = "/nowhere") -> tuple[Node, ...]:
    """A fleet of one machine."""
    return (Node("here", virtual_gpus(gpus, Path(tmp), node="here", mark="test")),)


async def placed(client: SchedulerClient, spec: WorkloadSpec, *, key: str) -> Workload:
    """Submitted, and waited for until the planner has come to it."""
    workload = await client.submit(spec, key=key)
    async with asyncio.timeout(30):
        while workload.phase is Phase.QUEUED:
            workload = await client.wait(workload.id, version=workload.version, timeout=5)
    return workload


@contextlib.asynccontextmanager
async def served(
    *,
    gpus: int = 2,
    settings: Settings | None = None,
    clock: Clock | None = None,
    hub_api_url: str = "",
    rates: Rates | None = None,
) -> AsyncIterator[tuple[Scheduler, str]]:
    """A scheduler behind a real uvicorn on a free port; yields it and its URL."""
    books = Books(open_memory(), clock or SystemClock(), one_node(gpus))
    scheduler = Scheduler(books, settings)
    users = HubUsers(hub_api_url)
    app = create_service(scheduler, Authenticator(TOKENS, users), rates=rates)
    runner = Runner(scheduler)
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(128)
    config = uvicorn.Config(app, log_config=None, lifespan="off", timeout_graceful_shutdown=2)
    server = _QuietServer(config)
    runner.start()
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield scheduler, f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        scheduler.books.bells.close()
        await serving
        listener.close()
        await runner.stop()
        await users.aclose()
        scheduler.close()


class _QuietServer(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self):  # type: ignore[no-untyped-def]
        """Signals belong to the test runner."""
        yield


@contextlib.asynccontextmanager
async def scheduler_plugin(kind: str, *, gpus: int) -> AsyncIterator[SchedulerPlugin]:
    """One implementation of the plugin contract: `in-process`, or `http` through the real service."""
    async with contextlib.AsyncExitStack() as stack:
        plugin: SchedulerPlugin
        if kind == "http":
            _, url = await stack.enter_async_context(served(gpus=gpus))
            plugin = SchedulerClient(url, TOKENS["admin"])
        else:
            plugin = InProcessScheduler(gpus=gpus)
        stack.push_async_callback(plugin.aclose)
        yield plugin
