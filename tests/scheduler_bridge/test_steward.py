"""Jobs are started, adopted, retried; what is proven gone is concluded."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler_bridge.clusters.base import LastWords, Life
from scheduler_bridge.engine.settings import ManualClock
from scheduler_bridge.engine.steward import Steward
from scheduler_bridge.inprocess import InProcessScheduler
from scheduler_bridge.model.phases import Desired, Phase
from scheduler_bridge.model.workload import Grant, Report, Workload
from tests.builders.scheduler import job, session, snapshot
from tests.fakes.scheduler_clusters import ClusterThatCannotLaunch, ClusterWithoutProcesses


class Scene:
    """A scheduler with one GPU and a cluster without processes."""

    def __init__(self, cluster: ClusterWithoutProcesses | None = None) -> None:
        self.plugin = InProcessScheduler(gpus=1, clock=ManualClock())
        self.cluster = cluster or ClusterWithoutProcesses()
        self.steward = Steward(self.plugin.engine, self.cluster)

    async def job(self, *, phase: Phase = Phase.RUNNING) -> tuple[Workload, Grant]:
        workload = await self.plugin.submit(job(), key="j")
        await self.steward.step()
        grant = self.cluster.grants[workload.id]
        await self.move(grant, phase)
        return await self.plugin.get(workload.id), grant

    async def session(self) -> tuple[Workload, Grant]:
        workload = await self.plugin.submit(session(), key="s")
        grant = await self.plugin.take(workload.id)
        report = Report(1, Phase.STARTING, handle={"name": workload.id})
        await self.plugin.heartbeat(grant.lease.id, grant.credential, report)
        await self.move(grant, Phase.RUNNING)
        return await self.plugin.get(workload.id), grant

    async def move(self, grant: Grant, target: Phase, **more: Any) -> Workload:
        return await self.plugin.move(
            grant.lease.id, grant.credential, target, cause="test", **more
        )

    async def dies(self, workload: Workload) -> Workload:
        self.cluster.lives[workload.id] = Life.GONE
        await self.steward.step()
        return await self.plugin.get(workload.id)

    async def gpus_taken(self) -> int:
        return len((await self.plugin.fleet()).holders)


async def test_a_placed_job_is_launched_once_with_its_lease() -> None:
    scene = Scene()
    workload = await scene.plugin.submit(job(), key="j")
    await scene.steward.step()
    grant = scene.cluster.grants.pop(workload.id)
    assert grant.lease == (await scene.plugin.get(workload.id)).lease
    await scene.steward.step()
    assert scene.cluster.grants == {}


async def test_sessions_are_started_by_their_spawner() -> None:
    scene = Scene()
    await scene.plugin.submit(session(), key="s")
    await scene.steward.step()
    assert scene.cluster.grants == {}


async def test_a_launch_that_fails_is_tried_again_later_and_then_given_up() -> None:
    cluster = ClusterThatCannotLaunch(permanent=False)
    scene = Scene(cluster)
    workload = await scene.plugin.submit(job(), key="j")
    await scene.steward.step()
    queued = await scene.plugin.get(workload.id)
    assert (queued.phase, queued.attempt) == (Phase.QUEUED, 1)
    assert (await scene.plugin.why(workload.id)).reason == "retry_later"
    for _ in range(2):
        scene.plugin.advance(60)
        await scene.steward.step()
    failed = await scene.plugin.get(workload.id)
    assert (failed.phase, failed.last_error) == (Phase.FAILED, "The disk is full.")
    assert cluster.tries == 3
    assert await scene.gpus_taken() == 0


async def test_a_launch_that_can_never_succeed_fails_the_job_at_once() -> None:
    scene = Scene(ClusterThatCannotLaunch(permanent=True))
    workload = await scene.plugin.submit(job(), key="j")
    await scene.steward.step()
    assert (await scene.plugin.get(workload.id)).phase is Phase.FAILED


async def test_a_job_whose_processes_are_gone_is_queued_and_started_again() -> None:
    scene = Scene()
    workload, old = await scene.job()
    again = await scene.dies(workload)
    assert again.attempt == 1
    moves = [e.target for e in await scene.plugin.history(workload.id) if e.kind == "phase"]
    assert moves[-2:] == ["lost", "queued"]
    scene.cluster.lives.clear()
    scene.plugin.advance(60)
    await scene.steward.step()
    new = scene.cluster.grants[workload.id]
    assert new.lease.epoch == old.lease.epoch + 1
    assert (await scene.plugin.get(workload.id)).phase is Phase.STARTING


async def test_a_job_whose_supervisor_is_gone_gets_another_for_the_same_processes() -> None:
    scene = Scene()
    workload, old = await scene.job()
    scene.cluster.lives[workload.id] = Life.ORPHANED
    await scene.steward.step()
    assert scene.cluster.adopted == [workload.id]
    new = scene.cluster.grants[workload.id]
    assert new.lease.id == old.lease.id
    assert new.credential != old.credential
    assert (await scene.plugin.get(workload.id)).phase is Phase.RUNNING


async def test_adopting_is_not_tried_without_a_pause() -> None:
    scene = Scene()
    workload, _ = await scene.job()
    for _ in range(3):
        scene.cluster.lives[workload.id] = Life.ORPHANED
        await scene.steward.step()
    assert len(scene.cluster.adopted) == 1
    scene.plugin.advance(11)
    await scene.steward.step()
    assert len(scene.cluster.adopted) == 2


async def test_a_session_whose_supervisor_is_gone_is_left_to_its_spawner() -> None:
    scene = Scene()
    workload, _ = await scene.session()
    scene.cluster.lives[workload.id] = Life.ORPHANED
    await scene.steward.step()
    await scene.steward.step()
    assert (await scene.plugin.get(workload.id)).phase is Phase.RUNNING
    kinds = [e.kind for e in await scene.plugin.history(workload.id)]
    assert kinds.count("supervisor_gone") == 1


async def test_a_session_that_is_gone_falls_back_to_its_snapshot() -> None:
    scene = Scene()
    workload, grant = await scene.session()
    await scene.move(grant, Phase.SUSPENDING)
    await scene.move(grant, Phase.SUSPENDED, snapshot=snapshot())
    await scene.plugin.desire(workload.id, Desired.RUNNING, actor="a", reason="click")
    grant = await scene.plugin.take(workload.id)
    report = Report(2, Phase.RESUMING, handle={"name": workload.id})
    await scene.plugin.heartbeat(grant.lease.id, grant.credential, report)
    await scene.move(grant, Phase.RUNNING)
    gone = await scene.dies(workload)
    assert (gone.phase, gone.snapshot) == (Phase.SUSPENDED, snapshot())
    assert gone.desired is Desired.SUSPENDED
    assert gone.remedy
    assert await scene.gpus_taken() == 0


async def test_a_session_that_is_gone_without_a_snapshot_has_ended() -> None:
    scene = Scene()
    workload, _ = await scene.session()
    assert (await scene.dies(workload)).phase is Phase.STOPPED
    assert await scene.plugin.find("s") is None


async def test_what_the_supervisor_wrote_down_counts_more_than_its_death() -> None:
    scene = Scene()
    workload, _ = await scene.session()
    scene.cluster.words[workload.id] = LastWords(Phase.SUSPENDED, "written", snapshot())
    gone = await scene.dies(workload)
    assert (gone.phase, gone.snapshot) == (Phase.SUSPENDED, snapshot())
    assert gone.desired is Desired.SUSPENDED


async def test_a_job_that_had_succeeded_before_it_was_gone_has_succeeded() -> None:
    scene = Scene()
    workload, _ = await scene.job()
    scene.cluster.words[workload.id] = LastWords(Phase.SUCCEEDED, "written", exit_code=0)
    gone = await scene.dies(workload)
    assert (gone.phase, gone.exit_code) == (Phase.SUCCEEDED, 0)
    assert scene.cluster.forgotten == [workload.id]


async def test_a_session_that_dies_while_it_is_stored_waits_for_its_spawner_first() -> None:
    scene = Scene()
    workload, grant = await scene.session()
    await scene.move(grant, Phase.SUSPENDING)
    assert (await scene.dies(workload)).phase is Phase.SUSPENDING
    scene.plugin.advance(20)
    await scene.steward.step()
    assert (await scene.plugin.get(workload.id)).phase is Phase.STOPPED


@pytest.mark.parametrize("life", [Life.UNKNOWN, Life.ALIVE])
async def test_nothing_is_concluded_from_what_is_not_known(life: Life) -> None:
    scene = Scene()
    workload, _ = await scene.session()
    scene.cluster.lives[workload.id] = life
    await scene.steward.step()
    assert (await scene.plugin.get(workload.id)).phase is Phase.RUNNING
    assert await scene.gpus_taken() == 1


async def test_a_holder_that_died_before_it_could_tell_frees_its_place_in_the_end() -> None:
    scene = Scene()
    workload = await scene.plugin.submit(job(), key="j")
    grant = await scene.plugin.take(workload.id)
    handle = {"name": workload.id, "supervisor": {"pid": 1, "started": 1}}
    report = Report(1, Phase.STARTING, handle=handle)
    await scene.plugin.heartbeat(grant.lease.id, grant.credential, report)
    scene.cluster.lives[workload.id] = Life.UNKNOWN
    scene.plugin.advance(600)
    await scene.steward.step()
    assert (await scene.plugin.get(workload.id)).phase is Phase.QUEUED
    assert await scene.gpus_taken() == 1
    scene.plugin.advance(60)
    await scene.steward.step()
    assert (await scene.plugin.get(workload.id)).epoch == 2


async def test_a_cancelled_job_that_does_not_end_is_ended_by_force() -> None:
    scene = Scene()
    workload, _ = await scene.job()
    await scene.plugin.desire(workload.id, Desired.STOPPED, actor="bob", reason="cancel")
    scene.plugin.advance(329)
    assert (await scene.plugin.get(workload.id)).phase is Phase.CANCELLING
    scene.plugin.advance(1)
    assert (await scene.plugin.get(workload.id)).phase is Phase.CANCELLED
    await scene.steward.step()
    assert scene.cluster.terminated == []
    scene.plugin.advance(30)
    await scene.steward.step()
    assert scene.cluster.terminated == [{"name": workload.id}]
    assert await scene.gpus_taken() == 1
    await scene.dies(workload)
    assert await scene.gpus_taken() == 0


async def test_a_supervisor_that_died_before_it_had_a_sandbox_gives_its_gpu_back_at_once() -> None:
    scene = Scene()
    workload, grant = await scene.job(phase=Phase.STARTING)
    report = Report(1, Phase.STARTING, handle={"name": workload.id, "supervisor": {"pid": 1}})
    await scene.plugin.heartbeat(grant.lease.id, grant.credential, report)
    scene.cluster.lives[workload.id] = Life.UNKNOWN
    await scene.steward.step()
    assert await scene.gpus_taken() == 1, "not proven"
    scene.cluster.empty.add(workload.id)
    await scene.steward.step()
    again = await scene.plugin.get(workload.id)
    assert (again.phase, again.attempt) == (Phase.QUEUED, 1)
    assert await scene.gpus_taken() == 0


async def test_a_former_holders_end_says_nothing_about_one_that_is_being_started() -> None:
    scene = Scene()
    workload = await scene.plugin.submit(session(), key="s")
    first = await scene.plugin.take(workload.id)
    told = {"name": workload.id, "supervisor": {"pid": 1}}
    report = Report(1, Phase.STARTING, handle=told)
    await scene.plugin.heartbeat(first.lease.id, first.credential, report)
    scene.cluster.lives[workload.id] = Life.UNKNOWN
    scene.cluster.empty.add(workload.id)
    scene.plugin.advance(1)
    second = await scene.plugin.take(workload.id)
    await scene.steward.step()
    assert await scene.gpus_taken() == 1, "its second supervisor has not told of itself yet"
    await scene.plugin.heartbeat(second.lease.id, second.credential, report)
    await scene.steward.step()
    assert await scene.gpus_taken() == 0
