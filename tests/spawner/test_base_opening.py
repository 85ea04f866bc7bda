"""Opening and closing sessions against the real engine and real processes, without a Hub."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from scheduler_bridge.errors import Unavailable
from scheduler_bridge.inprocess import InProcessScheduler
from scheduler_bridge.model.phases import Desired, Kind, Phase
from scheduler_bridge.model.workload import Grant, Workload, WorkloadSpec
from scheduler_bridge.plugin import SchedulerPlugin
from spawner.closing import Close, Closing
from spawner.hosting import Launch, LaunchFailed, NotReachable, Seen
from spawner.opening import Ended, Opened, Opening, OtherSize, StillQueued, Wish
from spawner.progress import ProgressLog
from spawner.steps import Step, next_step
from tests.builders.hub import until
from tests.fakes.process_host import ProcessHost


class World:
    """One machine with GPUs, its scheduler, and sessions that are small processes."""

    def __init__(self, folder: Path, gpus: int = 2) -> None:
        self.plugin = InProcessScheduler(gpus=gpus)
        self.host = ProcessHost(folder, self.plugin)
        self.log = ProgressLog()

    def opening(self, plugin: SchedulerPlugin | None = None) -> Opening:
        async def make(mode: str, workload: Workload, grant: Grant) -> Launch:
            return Launch(mode, workload, grant, ("x",), {}, "/")

        return Opening(
            plugin or self.plugin, self.host, self.log, make_launch=make, clock=time.monotonic
        )

    async def open(self, wish: Wish, *, queue_wait: float = 0.3, ready_wait: float = 15) -> Opened:
        opening = self.opening()
        try:
            return await opening.run(wish, queue_wait=queue_wait, ready_wait=ready_wait)
        except BaseException:
            await opening.give_back(actor="test", reason="test")
            raise

    def closing(self, workload_id: str) -> Closing:
        return Closing(self.plugin, self.host, workload_id, actor="ada", clock=time.monotonic)

    async def phase(self, wish: Wish) -> Phase | None:
        workload = await self.plugin.find(wish.key)
        return workload.phase if workload else None

    async def until_phase(self, wish: Wish, phase: Phase | None) -> None:
        async def there() -> bool:
            return await self.phase(wish) is phase

        await until(there, what=f"{wish.key} in {phase}")

    async def free_gpus(self) -> int:
        fleet = await self.plugin.fleet()
        return sum(len(node.gpus) for node in fleet.nodes) - len(fleet.holders)


def wish(user: str = "ada", *, gpus: int = 2, profile: str = "p") -> Wish:
    spec = WorkloadSpec(Kind.SESSION, user, user, hub="local", profile=profile, gpus=gpus)
    return Wish(f"session:local/{user}/", spec, actor=user)


async def answer(opened: Opened) -> str:
    async with httpx.AsyncClient() as client:
        return (await client.get(f"http://127.0.0.1:{opened.status.host_port}/api")).text


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    made = World(tmp_path)
    yield made
    for task in made.host.tasks:
        task.cancel()
    made.host.end_all()
    await made.plugin.aclose()


async def test_a_new_session_is_started_on_its_own_lease(world: World) -> None:
    opened = await world.open(wish())
    assert await answer(opened)
    assert not opened.is_continued
    assert [launch.mode for launch in world.host.launches] == ["start"]
    assert await world.free_gpus() == 0
    await world.until_phase(wish(), Phase.RUNNING)


async def test_the_scheduler_knows_who_was_started_before_its_first_word(world: World) -> None:
    opened = await world.open(wish())
    (lease,) = world.plugin.engine.books.leases.values()
    assert lease.handle["supervisor"]["pid"] == int(await answer(opened))


async def test_suspend_frees_the_lease_and_resume_takes_a_new_one(world: World) -> None:
    opened = await world.open(wish())
    closed = await world.closing(opened.workload_id).suspend(reason="test", limit=10)
    assert closed.result is Close.SUSPENDED
    await world.until_phase(wish(), Phase.SUSPENDED)
    assert await world.free_gpus() == 2
    again = await world.open(wish())
    assert again.workload_id == opened.workload_id and again.is_continued
    assert world.host.launches[-1].mode == "resume"
    assert world.host.launches[-1].grant.lease.epoch > world.host.launches[0].grant.lease.epoch


async def test_who_comes_back_during_a_suspend_is_resumed_right_after(
    world: World, tmp_path: Path
) -> None:
    opened = await world.open(wish())
    slow = tmp_path / opened.workload_id / "slow"
    slow.touch()
    ending = asyncio.create_task(world.closing(opened.workload_id).suspend(reason="t", limit=10))

    def is_suspending() -> bool:
        status = world.host.observe(opened.workload_id).status
        return status is not None and status.phase == Phase.SUSPENDING

    await until(is_suspending)
    opening = asyncio.create_task(world.open(wish(), queue_wait=10))
    slow.unlink()
    assert (await ending).result is Close.SUSPENDED
    again = await opening
    assert await answer(again)
    assert again.workload_id == opened.workload_id
    assert [launch.mode for launch in world.host.launches] == ["start", "resume"]


async def test_no_second_supervisor_for_a_live_session(world: World) -> None:
    first = await world.open(wish())
    second = await world.open(wish())
    assert await answer(first) == await answer(second)
    assert second.is_continued and len(world.host.launches) == 1


async def test_the_wait_in_the_queue_is_bounded_and_the_place_is_kept(world: World) -> None:
    await world.open(wish("holder"))
    with pytest.raises(StillQueued) as told:
        await world.open(wish())
    assert told.value.workload.position == 1
    assert await world.phase(wish()) is Phase.QUEUED
    assert any("next" in event.message for event in world.log.history)


async def test_opening_again_keeps_the_place(world: World) -> None:
    await world.open(wish("holder"))
    for user in ("ada", "bob", "ada"):
        with pytest.raises(StillQueued):
            await world.open(wish(user))
    queued = [w for w in await world.plugin.list() if w.phase is Phase.QUEUED]
    assert [(w.spec.user, w.position) for w in queued] == [("ada", 1), ("bob", 2)]


async def test_another_size_in_the_queue_replaces_the_entry(world: World) -> None:
    await world.open(wish("holder"))
    for gpus in (2, 1):
        with pytest.raises(StillQueued):
            await world.open(wish(gpus=gpus))
    queued = [w for w in await world.plugin.list() if w.phase is Phase.QUEUED]
    assert [w.spec.gpus for w in queued] == [1]


async def test_another_size_never_costs_memory(world: World) -> None:
    opened = await world.open(wish())
    await world.closing(opened.workload_id).suspend(reason="test", limit=10)
    await world.until_phase(wish(), Phase.SUSPENDED)
    with pytest.raises(OtherSize):
        await world.open(wish(gpus=1))
    assert await world.phase(wish()) is Phase.SUSPENDED


async def cancel(world: World, wished: Wish) -> None:
    """Open, and be cancelled in the queue."""
    opening = world.opening()
    task = asyncio.create_task(opening.run(wished, queue_wait=20, ready_wait=5))

    async def waits() -> bool:
        return await world.phase(wished) is Phase.QUEUED

    await until(waits)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await opening.give_back(actor="ada", reason="cancelled")


async def test_a_cancelled_new_session_leaves_the_queue(world: World) -> None:
    await world.open(wish("holder"))
    await cancel(world, wish())
    assert await world.phase(wish()) is None


async def test_a_cancelled_resume_is_suspended_as_before(world: World) -> None:
    opened = await world.open(wish())
    await world.closing(opened.workload_id).suspend(reason="test", limit=10)
    await world.until_phase(wish(), Phase.SUSPENDED)
    await world.open(wish("holder"))
    await cancel(world, wish())
    assert await world.phase(wish()) is Phase.SUSPENDED


async def test_ended_by_somebody_else_it_is_not_submitted_again(world: World) -> None:
    await world.open(wish("holder"))
    task = asyncio.create_task(world.open(wish(), queue_wait=20))
    await world.until_phase(wish(), Phase.QUEUED)
    workload = await world.plugin.find(wish().key)
    assert workload is not None
    await world.plugin.desire(workload.id, Desired.STOPPED, actor="admin", reason="x")
    with pytest.raises(Ended, match="ended before it could be opened"):
        await task
    assert await world.phase(wish()) is None


async def test_put_back_by_somebody_else_it_is_not_asked_for_again(world: World) -> None:
    opened = await world.open(wish())
    await world.closing(opened.workload_id).suspend(reason="test", limit=10)
    await world.until_phase(wish(), Phase.SUSPENDED)
    await world.open(wish("holder"))
    task = asyncio.create_task(world.open(wish(), queue_wait=20))
    await world.until_phase(wish(), Phase.QUEUED)
    await world.plugin.desire(
        opened.workload_id, Desired.SUSPENDED, actor="admin", reason="maintenance"
    )
    with pytest.raises(Ended, match="admin: maintenance"):
        await task


async def test_nothing_started_on_a_lease_gives_it_back_at_once(world: World) -> None:
    world.host.launch_error = "no room"
    with pytest.raises(LaunchFailed):
        await world.open(wish())
    assert await world.free_gpus() == 2
    assert await world.phase(wish()) is None
    world.host.launch_error = ""
    assert await answer(await world.open(wish()))


async def test_a_failed_adoption_leaves_the_gpus_to_the_tree_that_still_runs(world: World) -> None:
    opened = await world.open(wish())
    await world.until_phase(wish(), Phase.RUNNING)
    (world.host.folder / opened.workload_id / "orphan").touch()
    world.host.launch_error = "no room for another process"
    with pytest.raises(LaunchFailed):
        await world.open(wish())
    assert await world.phase(wish()) is Phase.RUNNING
    assert await world.free_gpus() == 0
    assert world.host.observe(opened.workload_id).is_live


async def test_a_failed_launch_of_a_resume_keeps_the_snapshot(world: World) -> None:
    opened = await world.open(wish())
    await world.closing(opened.workload_id).suspend(reason="test", limit=10)
    await world.until_phase(wish(), Phase.SUSPENDED)
    world.host.launch_error = "no room"
    with pytest.raises(LaunchFailed):
        await world.open(wish())
    assert await world.phase(wish()) is Phase.SUSPENDED
    assert await world.free_gpus() == 2


async def test_a_session_that_never_answers_is_ended_and_its_gpus_are_free(world: World) -> None:
    with pytest.raises(Ended, match="did not answer"):
        await world.open(wish(), ready_wait=0.0)
    await world.until_phase(wish(), None)
    assert await world.free_gpus() == 2


async def test_after_a_crash_between_place_and_start_the_place_is_used(world: World) -> None:
    """The Hub died after the scheduler had placed the session: found again by its key."""
    await world.plugin.submit(wish().spec, key=wish().key)
    assert await world.phase(wish()) is Phase.STARTING
    assert await answer(await world.open(wish()))
    assert len(await world.plugin.list()) == 1


async def test_a_live_session_is_found_without_the_scheduler(world: World) -> None:
    opened = await world.open(wish())
    found = await world.opening().attach(opened.workload_id, world.host.observe(opened.workload_id))
    assert found is not None and found.is_continued
    assert await world.opening().attach("nobody", Seen()) is None


async def test_a_suspend_that_fails_leaves_the_session_running(
    world: World, tmp_path: Path
) -> None:
    opened = await world.open(wish())
    before = await answer(opened)
    (tmp_path / opened.workload_id / "refuse").write_text("A connection is open.")
    closed = await world.closing(opened.workload_id).suspend(reason="test", limit=10)
    assert (closed.result, closed.why) == (Close.STILL_RUNNING, "A connection is open.")
    assert closed.remedy == "Close it."
    (tmp_path / opened.workload_id / "refuse").unlink()
    again = await world.open(wish(), queue_wait=10)
    assert again.workload_id == opened.workload_id
    assert before  # the tree that answered before is the one that was asked


class DeafHost(ProcessHost):
    """The control socket of every supervisor is gone."""

    async def ask(self, workload_id: str, command: str, *, actor: str, reason: str) -> None:
        raise NotReachable("gone")


async def test_without_its_socket_a_supervisor_hears_it_from_the_scheduler(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.host = DeafHost(tmp_path, world.plugin)
    opened = await world.open(wish())
    closed = await world.closing(opened.workload_id).suspend(reason="test", limit=10)
    assert closed.result is Close.SUSPENDED
    world.host.end_all()


class DeadScheduler(InProcessScheduler):
    """Answers nothing."""

    async def desire(
        self, workload_id: str, desired: Desired, *, actor: str, reason: str
    ) -> Workload:
        raise Unavailable("down")


async def test_with_nobody_to_ask_the_session_goes_on(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.host = DeafHost(tmp_path, world.plugin)
    opened = await world.open(wish())
    closing = Closing(
        DeadScheduler(), world.host, opened.workload_id, actor="a", clock=time.monotonic
    )
    closed = await closing.suspend(reason="test", limit=10)
    assert closed.result is Close.STILL_RUNNING
    assert await answer(opened)
    world.host.end_all()


SPEC = wish().spec
ALIVE = Seen(None, supervisor_alive=True, sandbox_alive=True)
ORPHAN = Seen(None, supervisor_alive=False, sandbox_alive=True)


@pytest.mark.parametrize(
    ("phase", "desired", "seen", "step"),
    [
        (Phase.QUEUED, Desired.RUNNING, Seen(), Step.WAIT),
        (Phase.QUEUED, Desired.SUSPENDED, Seen(), Step.ASK_TO_RUN),
        (Phase.SUSPENDED, Desired.RUNNING, Seen(), Step.ASK_TO_RUN),
        (Phase.SUSPENDED, Desired.SUSPENDED, Seen(), Step.ASK_TO_RUN),
        (Phase.STARTING, Desired.RUNNING, Seen(), Step.START),
        (Phase.STARTING, Desired.RUNNING, ALIVE, Step.ATTACH),
        (Phase.STARTING, Desired.RUNNING, ORPHAN, Step.ADOPT),
        (Phase.RESUMING, Desired.RUNNING, Seen(), Step.RESUME),
        (Phase.RESUMING, Desired.RUNNING, ALIVE, Step.ATTACH),
        (Phase.FILLING, Desired.RUNNING, Seen(), Step.WAIT),
        (Phase.RUNNING, Desired.RUNNING, ALIVE, Step.ATTACH),
        (Phase.RUNNING, Desired.RUNNING, ORPHAN, Step.ADOPT),
        (Phase.RUNNING, Desired.RUNNING, Seen(), Step.WAIT),
        (Phase.RUNNING, Desired.SUSPENDED, ALIVE, Step.ASK_TO_RUN),
        (Phase.RUNNING, Desired.STOPPED, ALIVE, Step.WAIT),
        (Phase.SUSPENDING, Desired.SUSPENDED, ALIVE, Step.ASK_TO_RUN),
        (Phase.SUSPENDING, Desired.RUNNING, ALIVE, Step.WAIT),
        (Phase.SUSPENDING, Desired.RUNNING, ORPHAN, Step.ADOPT),
        (Phase.LOST, Desired.RUNNING, ORPHAN, Step.ADOPT),
        (Phase.LOST, Desired.RUNNING, Seen(), Step.WAIT),
    ],
)
def test_what_comes_next(phase: Phase, desired: Desired, seen: Seen, step: Step) -> None:
    workload = Workload("w", "k", SPEC, phase, 0, 0, 1, desired)  # type: ignore[arg-type]
    assert next_step(workload, seen) is step


def test_without_a_workload_one_is_submitted() -> None:
    assert next_step(None, Seen()) is Step.SUBMIT
