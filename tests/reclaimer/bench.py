"""One session at a real scheduler, with the supervisor's side played by the test."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from reclaimer.actions import Judged, Reclaimer
from reclaimer.policy_file import PolicyFile
from scheduler_bridge.engine.settings import ManualClock
from scheduler_bridge.inprocess import InProcessScheduler
from scheduler_bridge.model.phases import Kind, Phase
from scheduler_bridge.model.workload import (
    Grant,
    Idleness,
    Instruction,
    Report,
    SnapshotRef,
    Workload,
    WorkloadSpec,
)

START = 1_000_000.0


def quiet(now: float, since: float = START, **changes: Any) -> dict[str, Any]:
    """Telemetry of a session in which nothing happens since `since`."""
    kernel = {
        "id": "k1",
        "name": "python3",
        "state": "idle",
        "since": since,
        "last_activity": since,
    }
    return {
        "sampled_at": now,
        "kernels": [kernel],
        "terminals": [],
        "last_input": since,
        "cpu_seconds": 1.0,
        "connections": 1,
        "freezable": True,
        "blockers": [],
    } | changes


def working(now: float) -> dict[str, Any]:
    """Telemetry of a session that runs a cell."""
    kernel = {"id": "k1", "name": "python3", "state": "busy", "since": now, "last_activity": now}
    return quiet(now, kernels=[kernel])


@dataclass
class Bench:
    """A scheduler whose clock the test moves, and a reclaimer that looks when told to."""

    policy_file: PolicyFile = field(default_factory=lambda: PolicyFile(None))
    clock: ManualClock = field(default_factory=lambda: ManualClock(START))

    def __post_init__(self) -> None:
        self.scheduler = InProcessScheduler(gpus=4, clock=self.clock)
        self.reclaimer = Reclaimer(self.scheduler, self.policy_file)
        self.grants: dict[str, Grant] = {}

    @property
    def now(self) -> float:
        return self.clock.now()

    async def open_session(self, user: str = "ada", **changes: Any) -> Workload:
        """A session that has just begun to run."""
        spec = WorkloadSpec(Kind.SESSION, user, user, hub="hub", **({"gpus": 1} | changes))
        queued = await self.scheduler.submit(spec, key=f"session:hub/{user}/")
        return await self._run(queued.id)

    async def _run(self, workload_id: str) -> Workload:
        grant = self.grants[workload_id] = await self.scheduler.take(workload_id)
        return await self.move(workload_id, Phase.RUNNING, grant=grant)

    async def move(
        self, workload_id: str, target: Phase, *, grant: Grant | None = None, **more: Any
    ) -> Workload:
        """Report a phase, as its supervisor."""
        held = grant or self.grants[workload_id]
        return await self.scheduler.move(
            held.lease.id, held.credential, target, cause="the test says so", **more
        )

    async def report(self, workload_id: str, signals: dict[str, Any]) -> Instruction:
        """Send a heartbeat with telemetry."""
        grant = self.grants[workload_id]
        report = Report(epoch=grant.lease.epoch, phase=Phase.RUNNING, signals=signals)
        return await self.scheduler.heartbeat(grant.lease.id, grant.credential, report)

    async def freeze(self, workload_id: str) -> None:
        """Carry out a suspend."""
        grant = self.grants[workload_id]
        await self.move(workload_id, Phase.SUSPENDING)
        snapshot = SnapshotRef("manifests/ada/s/1-1", epoch=grant.lease.epoch, sequence=1)
        await self.move(workload_id, Phase.SUSPENDED, snapshot=snapshot)

    async def thaw(self, workload_id: str) -> Workload:
        """Bring it back once it is placed."""
        grant = self.grants[workload_id] = await self.scheduler.take(workload_id)
        await self.move(workload_id, Phase.FILLING, grant=grant)
        return await self.move(workload_id, Phase.RUNNING, grant=grant)

    async def look(self) -> tuple[Judged, ...]:
        """One pass of the reclaimer."""
        return await self.reclaimer.run_once(self.now)

    async def live(
        self, workload: Workload, seconds: float, *, step: float = 2.0, **changes: Any
    ) -> Workload:
        """Time passes; the session reports quiet telemetry and the reclaimer looks every `step`."""
        for _ in range(round(seconds / step)):
            self.scheduler.advance(step)
            await self.report(workload.id, quiet(self.now, **changes))
            await self.look()
        return await self.scheduler.get(workload.id)

    async def idleness(self, workload: Workload) -> Idleness:
        return (await self.scheduler.get(workload.id)).idleness
