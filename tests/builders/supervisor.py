"""A supervisor in the test's own process, on a fake machine and the in-process scheduler."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from scheduler_bridge.model.phases import Kind, Phase
from scheduler_bridge.model.workload import Workload, WorkloadSpec
from snapshot.model import Identity, StoreSettings, Tools
from spawner.supervisor.heartbeat import Rhythm
from spawner.supervisor.machine import Machine
from spawner.supervisor.order import SupervisorOrder
from spawner.supervisor.program import supervise
from spawner.supervisor.status import Outcome, Status, read_status
from spawner.supervisor.wishes import Wishes
from tests.fakes.scheduler import SchedulerThatGoesAway

QUICK = Rhythm(poll=0.5, pause=0.02, retry=0.05, answer_by=5.0)
NO_TOOLS = Tools(criu=(), pasta=(), init=())


async def until(condition: Callable[[], Any], seconds: float = 10.0) -> Any:
    """The first true value of `condition`; it is asked every few milliseconds."""
    async with asyncio.timeout(seconds):
        while not (value := condition()):  # noqa: ASYNC110 (files give no event)
            await asyncio.sleep(0.005)
    return value


class Stage:
    """One workload of `kind` with its scheduler, its machine and its supervisor."""

    def __init__(self, folder: Path, machine: Any, *, kind: Kind = Kind.SESSION) -> None:
        self.directory = folder / "w"
        self.directory.mkdir(mode=0o711, exist_ok=True)
        self.machine = machine
        self.scheduler = SchedulerThatGoesAway(gpus=1)
        self.wishes = Wishes()
        self.kind = kind
        self.id = ""
        self.order: SupervisorOrder | None = None
        self._task: asyncio.Task[Outcome | None] | None = None

    async def submit(self, **more: Any) -> None:
        """Queue the workload; it is placed at once."""
        command = ("python", "train.py") if self.kind is Kind.JOB else ()
        spec = WorkloadSpec(self.kind, "w", "alice", gpus=1, command=command, **more)
        self.id = (await self.scheduler.submit(spec, key="w")).id

    async def make_order(self, mode: str = "start", **changes: Any) -> SupervisorOrder:
        """Take the lease and write what the supervisor is told."""
        grant = await self.scheduler.take(self.id)
        workload = await self.scheduler.get(self.id)
        self.order = SupervisorOrder(
            mode=mode,
            kind=self.kind.value,
            workload_id=self.id,
            name="w",
            user="alice",
            directory=str(self.directory),
            identity=Identity("alice", 210_000, 210_000),
            inner_root=1_000_000,
            argv=("true",),
            environment={
                "JUPYTERHUB_API_TOKEN": "new",
                "HUBERNATE_WORKLOAD": "w",
                "LANG": "C.UTF-8",
            },
            folder="/",
            lease_id=grant.lease.id,
            epoch=grant.lease.epoch,
            credential=grant.credential,
            scheduler="",
            tools=NO_TOOLS,
            store=StoreSettings("directory", "/nowhere"),
            devices=tuple(gpu.device for gpu in grant.lease.gpus),
            serve=self.kind is Kind.SESSION,
            ready_seconds=5.0,
            grace_seconds=2.0,
            processes=0,
            snapshot=workload.snapshot.key if mode == "resume" and workload.snapshot else "",
        )
        self.order = replace(self.order, **changes)
        return self.order

    async def begin(self, mode: str = "start", **changes: Any) -> None:
        """Start a supervisor for the workload's lease."""
        order = await self.make_order(mode, **changes)
        self.wishes = Wishes()
        machine: Machine = self.machine
        self._task = asyncio.create_task(
            supervise(order, machine, self.scheduler, self.wishes, rhythm=QUICK)
        )

    async def kill(self) -> None:
        """What is left of a supervisor after kill -9: its files."""
        assert self._task is not None
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        self._task = None

    async def outcome(self) -> Outcome | None:
        """How the supervisor ended."""
        assert self._task is not None
        async with asyncio.timeout(20):
            return await self._task

    @property
    def status(self) -> Status:
        """What the supervisor wrote last."""
        return read_status(self.directory) or Status(self.id, "")

    @property
    def workload(self) -> Workload:
        """As the scheduler sees it."""
        return self.scheduler.engine.get(self.id)

    async def reaches(self, phase: Phase) -> Workload:
        """Wait until the scheduler has the workload in a phase."""

        def look() -> Workload | None:
            if self._task is not None and self._task.done() and not self._task.cancelled():
                self._task.result()
            return self.workload if self.workload.phase is phase else None

        found: Workload = await until(look)
        return found

    async def close(self) -> None:
        """End everything."""
        if self._task is not None and not self._task.done():
            await self.kill()
        await self.machine.close()
        await self.scheduler.aclose()


@asynccontextmanager
async def stage(
    folder: Path, machine: Any, *, kind: Kind = Kind.SESSION, **more: Any
) -> AsyncIterator[Stage]:
    """A workload that was submitted and placed, without a supervisor yet."""
    made = Stage(folder, machine, kind=kind)
    try:
        await made.submit(**more)
        yield made
    finally:
        await made.close()
