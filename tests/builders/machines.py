"""A fleet of several machines in one process, whose agents report when the test says so."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from scheduler_bridge.agent.inventory import virtual_gpus
from scheduler_bridge.engine.settings import ManualClock, Settings
from scheduler_bridge.engine.steward import Steward
from scheduler_bridge.inprocess import InProcessScheduler
from scheduler_bridge.model.phases import Phase
from scheduler_bridge.model.workload import (
    Grant,
    Instruction,
    Node,
    Report,
    SnapshotRef,
    Workload,
    WorkloadSpec,
)
from tests.fakes.scheduler_clusters import ClusterWithoutProcesses


def machines(*names: str, gpus: int = 2) -> tuple[Node, ...]:
    """Machines of the same size."""
    return tuple(
        Node(name, virtual_gpus(gpus, Path("/nowhere"), node=name, mark=name)) for name in names
    )


class Fleet:
    """A scheduler, its clock, a cluster without processes, and supervisors played by the test."""

    def __init__(
        self, *names: str, gpus: int = 2, settings: Settings | None = None, reports: bool = True
    ) -> None:
        self.names = names
        self.plugin = InProcessScheduler(
            nodes=machines(*names, gpus=gpus), clock=ManualClock(), settings=settings
        )
        self.engine = self.plugin.engine
        self.cluster = ClusterWithoutProcesses()
        self.steward = Steward(self.engine, self.cluster)
        self.grants: dict[str, Grant] = {}
        if reports:
            self.report(names)

    def report(self, names: Iterable[str]) -> None:
        """The agents of these machines tell that they are there."""
        self.engine.hear(names)

    async def run(self, spec: WorkloadSpec, key: str, *, handle: bool = True) -> Workload:
        """Submitted, placed, taken up and running."""
        workload = await self.plugin.submit(spec, key=key)
        grant = self.grants[workload.id] = await self.plugin.take(workload.id)
        await self.beat(workload, Phase.STARTING, handle={"name": workload.id} if handle else {})
        await self.move(workload, Phase.RUNNING)
        assert grant.lease.gpus or not spec.gpus
        return await self.plugin.get(workload.id)

    async def beat(
        self,
        workload: Workload,
        phase: Phase = Phase.RUNNING,
        *,
        grant: Grant | None = None,
        handle: dict[str, object] | None = None,
    ) -> Instruction:
        """Its supervisor renews."""
        used = grant or self.grants[workload.id]
        report = Report(used.lease.epoch, phase, handle=handle or {})
        return await self.plugin.heartbeat(used.lease.id, used.credential, report)

    async def move(
        self, workload: Workload, target: Phase, snapshot: SnapshotRef | None = None
    ) -> Workload:
        """Its supervisor tells where it is."""
        used = self.grants[workload.id]
        return await self.plugin.move(
            used.lease.id, used.credential, target, cause="told by the test", snapshot=snapshot
        )

    async def now(self, workload: Workload) -> Workload:
        """The workload as it is now."""
        return await self.plugin.get(workload.id)

    def pass_time(self, seconds: float, *, heard: Iterable[str] = ()) -> None:
        """Time goes by in small steps, while these machines go on reporting."""
        left = seconds
        while left > 0:
            step = min(left, 10.0)
            left -= step
            assert isinstance(self.plugin.clock, ManualClock)
            self.plugin.clock.advance(step)
            self.engine.hear(heard)
            self.engine.tick()
