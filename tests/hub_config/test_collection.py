"""A suspended session's last weeks, in virtual time: the real scheduler, store and rules."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from hub_config import audit, collection
from scheduler_bridge.engine.settings import ManualClock
from scheduler_bridge.inprocess import InProcessScheduler
from scheduler_bridge.model.phases import Desired, Phase
from scheduler_bridge.model.workload import Grant, SnapshotRef, Workload
from snapshot.keyfiles import LocalWrapping
from snapshot.keys import Keys
from snapshot.repository import Repository
from snapshot.retention import DAY, Decision, Policy, Rule
from tests.builders.scheduler import session
from tests.fakes.stores import StoreInMemory
from tests.hub_config.cli_store import keep

POLICY = Policy((Rule("strict", keep_suspended_for=30 * DAY, keep_ended_for=DAY),))


@dataclass
class World:
    """One scheduler and one store, and time that passes when told to."""

    scheduler: InProcessScheduler
    repository: Repository
    folder: Path

    @property
    def now(self) -> float:
        return self.scheduler.clock.now()

    async def decision(self, policy: Policy = POLICY) -> Decision:
        inventories = collection.look(self.repository)
        sessions = await collection.sessions_of(self.scheduler, inventories, None)
        needed = await collection.needed_by(self.scheduler)
        return collection.judge(policy, sessions, inventories, self.now, needed=needed)

    async def run(self, policy: Policy = POLICY, decision: Decision | None = None) -> list[str]:
        """One run; the snapshots that are left."""
        inventories = collection.look(self.repository)
        decided = decision or await self.decision(policy)
        done = await collection.agree(self.scheduler, decided)
        plans = collection.plans(inventories, done.removals, policy, self.now)
        collection.carry_out(
            self.repository, plans, done.removals, self.folder / "gone.jsonl", self.now
        )
        return [stored.manifest for stored in self.repository.list()]

    async def suspended(self) -> tuple[Workload, str]:
        workload = await self.scheduler.submit(session(), key="k")
        grant = await self.scheduler.take(workload.id)
        user = workload.spec.user
        key = keep(self.repository, user, session=workload.id)
        for phase in (Phase.RUNNING, Phase.SUSPENDING):
            await self.move(grant, phase)
        return await self.move(grant, Phase.SUSPENDED, SnapshotRef(key, 1, 1)), key

    async def move(
        self, grant: Grant, target: Phase, snapshot: SnapshotRef | None = None
    ) -> Workload:
        return await self.scheduler.move(
            grant.lease.id, grant.credential, target, cause="test", snapshot=snapshot
        )

    async def kinds(self, workload: Workload) -> list[str]:
        events = await self.scheduler.history(workload.id)
        return [event.kind for event in events if event.kind.startswith("expiry")]


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    scheduler = InProcessScheduler(gpus=2, clock=ManualClock(1000 * DAY))
    keys = LocalWrapping(tmp_path / "keys")
    store = StoreInMemory()
    repository = Repository(store, Keys(store, keys), cache=None, now=scheduler.clock.now)
    try:
        yield World(scheduler, repository, tmp_path)
    finally:
        await scheduler.aclose()


async def test_it_is_told_of_the_date_warned_twice_and_then_goes_with_a_line(world: World) -> None:
    workload, key = await world.suspended()
    for _ in range(30):
        assert await world.run() == [key]
        world.scheduler.advance(DAY)
    assert await world.kinds(workload) == ["expiry", "expiry_warning", "expiry_warning"]
    assert await world.run() == []
    ended = await world.scheduler.get(workload.id)
    assert ended.phase is Phase.STOPPED
    assert "suspended for 30 days" in (await world.scheduler.history(workload.id))[-1].cause
    (line,) = audit.read(world.folder / "gone.jsonl")
    assert (line.what, line.rule, line.reason) == (key, "strict", "suspended for 30 days")
    assert line.at == world.now
    for _ in range(2):
        world.scheduler.advance(DAY)
        await world.run()
    assert list(world.repository.store.list("packs/")) == []


async def test_a_session_that_is_resumed_between_decision_and_deed_keeps_everything(
    world: World,
) -> None:
    workload, key = await world.suspended()
    await world.run()
    world.scheduler.advance(31 * DAY)
    decision = await world.decision()
    assert [removal.manifest for removal in decision.removals] == [key]
    await world.scheduler.desire(workload.id, Desired.RUNNING, actor="a", reason="back")
    assert await world.run(decision=decision) == [key]
    assert audit.read(world.folder / "gone.jsonl") == ()
    assert (await world.scheduler.get(workload.id)).phase is not Phase.STOPPED


async def test_a_milder_policy_takes_the_date_back(world: World) -> None:
    workload, key = await world.suspended()
    await world.run()
    assert await world.run(Policy((Rule("mild"),))) == [key]
    assert (await world.scheduler.get(workload.id)).deletion is None
    assert await world.kinds(workload) == ["expiry", "expiry_withdrawn"]


async def test_a_run_that_died_after_ending_the_session_is_finished_later(world: World) -> None:
    """The scheduler was told, the store was not."""
    workload, key = await world.suspended()
    await world.run()
    world.scheduler.advance(31 * DAY)
    await collection.agree(world.scheduler, await world.decision())
    assert (await world.scheduler.get(workload.id)).phase is Phase.STOPPED
    assert await world.run() == [key]  # it ended just now
    world.scheduler.advance(DAY)
    assert await world.run() == []
    assert [line.what for line in audit.read(world.folder / "gone.jsonl")] == [key]
