"""Whatever machines, networks and administrators do: no GPU is used twice and nothing runs twice.

Supervisors are played here as they are: each renews when it can, halts its tree once it could not for
the time of a lease, and ends it when told to. Administrators give up only what may be given up without
naming it."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_bridge.clusters.base import Handle, LaunchFailed, Life
from scheduler_bridge.engine.giving_up import declare_dead, force_stop, losses_of_node, revive
from scheduler_bridge.engine.settings import ManualClock, Settings
from scheduler_bridge.engine.steward import Steward
from scheduler_bridge.errors import SchedulerError
from scheduler_bridge.inprocess import InProcessScheduler
from scheduler_bridge.model.phases import Kind, Phase
from scheduler_bridge.model.workload import Grant, Report, Workload
from tests.builders.machines import machines
from tests.builders.scheduler import job, session
from tests.fakes.scheduler_clusters import ClusterWithoutProcesses

NODES = ("a", "b")
LEASE = 600.0


@dataclass
class Holder:
    """A supervisor with its tree."""

    grant: Grant
    renewed_at: float
    lives: bool = True
    hangs: bool = False

    def runs(self, now: float) -> bool:
        """Whether its tree is neither ended nor halted."""
        return self.lives and now - self.renewed_at <= LEASE


class World(ClusterWithoutProcesses):
    """Two machines that can be cut off, and the processes on them."""

    def __init__(self) -> None:
        super().__init__()
        self.plugin = InProcessScheduler(
            nodes=machines(*NODES, gpus=3), clock=ManualClock(), settings=Settings()
        )
        self.engine = self.plugin.engine
        self.steward = Steward(self.engine, self)
        self.holders: dict[str, Holder] = {}
        self.cut: set[str] = set()
        self.count = 0

    def answering(self) -> tuple[str, ...]:
        return tuple(name for name in NODES if name not in self.cut)

    def life(self, handle: Handle) -> Life:
        holder = self.holders.get(handle.get("lease", ""))
        if holder is None or holder.grant.lease.node in self.cut:
            return Life.UNKNOWN
        return Life.ALIVE if holder.lives else Life.GONE

    def terminate(self, handle: Handle) -> None:
        holder = self.holders[handle["lease"]]
        if holder.grant.lease.node not in self.cut:
            holder.lives = False

    async def start(self) -> None:
        """Work for one GPU; every second one a session."""
        self.count += 1
        spec = (session if self.count % 3 == 0 else job)(f"u{self.count}", gpus=1)
        await self.plugin.submit(spec, key=str(self.count))

    async def launch(self, job: Workload, grant: Grant, *, adopt: bool) -> Handle:
        if grant.lease.node in self.cut:
            raise LaunchFailed("The machine is cut off.", permanent=False)
        await self.begin(grant)
        return {"lease": grant.lease.id}

    async def begin(self, grant: Grant) -> None:
        """A supervisor has its lease and starts its tree."""
        self.holders[grant.lease.id] = Holder(grant, self.plugin.clock.now())
        await self.beat(self.holders[grant.lease.id])
        self.move(grant, Phase.RUNNING)

    async def take(self) -> None:
        """Supervisors come for the places, where they can be reached."""
        await self.steward.step()
        for workload in self.engine.list(kind=Kind.SESSION):
            record = self.engine.books.current_lease(workload)
            if record and record.taken_at is None and record.lease.node not in self.cut:
                await self.begin(self.engine.take(workload.id, actor="hub"))

    def move(self, grant: Grant, target: Phase) -> None:
        try:
            self.engine.move(grant.lease.id, grant.credential, target, cause="test")
        except SchedulerError:
            return

    async def beat_all(self) -> None:
        for holder in self.holders.values():
            if holder.lives and not holder.hangs and holder.grant.lease.node not in self.cut:
                await self.beat(holder)

    async def beat(self, holder: Holder) -> None:
        lease = holder.grant.lease
        report = Report(lease.epoch, Phase.RUNNING, handle={"lease": lease.id})
        answer = await self.plugin.heartbeat(lease.id, holder.grant.credential, report)
        if answer.revoked:
            holder.lives = False
        else:
            holder.renewed_at = self.plugin.clock.now()

    async def do(self, action: str, node: str, seconds: float) -> None:
        """One thing happens; what is refused does not."""
        try:
            await self._do(action, node, seconds)
        except SchedulerError:
            return

    async def _do(self, action: str, node: str, seconds: float) -> None:
        if action == "start":
            await self.start()
        elif action == "hang":
            for holder in self.holders.values():
                if holder.grant.lease.node == node:
                    holder.hangs = not holder.hangs
        elif action == "cut":
            self.cut ^= {node}
        elif action == "pass":
            await self.pass_time(seconds)
        elif action == "dead":
            given_up = losses_of_node(self.engine, node).ids
            declare_dead(self.engine, node, reason="x", actor="root", given_up=given_up)
        elif action == "revive":
            revive(self.engine, node, reason="x", actor="root")
        elif action == "force":
            for workload in self.engine.list():
                with contextlib.suppress(SchedulerError):
                    force_stop(self.engine, workload.id, reason="x", actor="root")
        elif action in DISASTERS:
            for each in DISASTERS[action]:
                await self.do(each, node, seconds)
                await self.take()
                self.check()

    async def pass_time(self, seconds: float) -> None:
        """Who can renew does, all the time."""
        while seconds > 0:
            step = min(seconds, 50.0)
            seconds -= step
            self.plugin.advance(step)
            await self.beat_all()
            await self.take()
            self.check()

    def check(self) -> None:
        """At most one running tree for each GPU and for each workload."""
        now = self.plugin.clock.now()
        running = [it.grant.lease for it in self.holders.values() if it.runs(now)]
        gpus = Counter(gpu.uuid for lease in running for gpu in lease.gpus)
        works = Counter(lease.workload_id for lease in running)
        assert max(gpus.values(), default=0) <= 1, gpus
        assert max(works.values(), default=0) <= 1, works


DISASTERS = {
    "a machine is given up": ("cut", "pass", "dead", "pass", "start", "revive", "cut"),
    "a session is given up": ("hang", "pass", "force", "start", "start", "pass"),
}
"""What happens one after the other, so that chance need not find it."""

STEPS = st.lists(
    st.tuples(
        st.sampled_from(("start", "hang", "cut", "pass", "dead", "revive", "force", *DISASTERS)),
        st.sampled_from(NODES),
        st.sampled_from((1.0, 61.0, 349.0, 601.0, 661.0)),
    ),
    max_size=8,
)


@settings(max_examples=100, deadline=None)
@given(STEPS)
def test_nothing_runs_twice(steps: list[tuple[Any, ...]]) -> None:
    async def play() -> World:
        world = World()
        for _ in range(3):
            await world.start()
        await world.take()
        for action, node, seconds in steps:
            await world.do(action, node, seconds)
            await world.take()
            world.check()
        return world

    asyncio.run(play()).engine.close()


async def test_the_check_sees_what_runs_twice() -> None:
    world = World()
    await world.start()
    await world.take()
    (holder,) = world.holders.values()
    node, work = holder.grant.lease.node, holder.grant.lease.workload_id
    world.cut.add(node)
    declare_dead(world.engine, node, reason="x", actor="root", at_once=True, given_up=(work,))
    revive(world.engine, node, reason="x", actor="root")
    for _ in range(6):
        await world.start()
    world.cut.clear()
    await world.take()
    with pytest.raises(AssertionError):
        world.check()
