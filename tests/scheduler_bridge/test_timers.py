"""What time does: holds, deadlines, silence. Time is a value here."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from scheduler_bridge.engine.settings import ManualClock, Settings
from scheduler_bridge.inprocess import InProcessScheduler
from scheduler_bridge.model.phases import DEADLINES, Desired, Kind, Phase
from scheduler_bridge.model.workload import Grant, Idleness, Priority, Report, Workload
from scheduler_bridge.policy.values import Rules
from tests.builders.scheduler import job, session, snapshot


@pytest.fixture
async def plugin() -> AsyncIterator[InProcessScheduler]:
    made = InProcessScheduler(gpus=1, clock=ManualClock(), settings=Settings())
    yield made
    await made.aclose()


async def running(
    plugin: InProcessScheduler, spec: object = None, key: str = "k"
) -> tuple[Workload, Grant]:
    workload = await plugin.submit(spec or session(), key=key)  # type: ignore[arg-type]
    grant = await plugin.take(workload.id)
    await move(plugin, grant, Phase.RUNNING)
    return await plugin.get(workload.id), grant


async def move(plugin: InProcessScheduler, grant: Grant, target: Phase, **more: object) -> Workload:
    return await plugin.move(
        grant.lease.id,
        grant.credential,
        target,
        cause="test",
        **more,  # type: ignore[arg-type]
    )


async def beat(plugin: InProcessScheduler, grant: Grant, phase: Phase = Phase.RUNNING) -> bool:
    answer = await plugin.heartbeat(
        grant.lease.id,
        grant.credential,
        Report(grant.lease.epoch, phase, handle={"supervisor": {"pid": 1, "started": 1}}),
    )
    return answer.revoked


async def gpus_taken(plugin: InProcessScheduler) -> int:
    return len((await plugin.fleet()).holders)


async def test_a_place_that_nobody_takes_goes_back_and_is_offered_once_more(
    plugin: InProcessScheduler,
) -> None:
    workload = await plugin.submit(session(), key="k")
    plugin.advance(599)
    assert (await plugin.get(workload.id)).phase is Phase.STARTING
    plugin.advance(1)
    again = await plugin.get(workload.id)
    assert (again.phase, again.attempt, again.epoch) == (Phase.STARTING, 1, 2)
    plugin.advance(600)
    gone = await plugin.get(workload.id)
    assert gone.phase is Phase.STOPPED
    assert "nobody came" in gone.last_error
    assert await gpus_taken(plugin) == 0


async def test_a_lapsed_place_goes_behind_those_who_wait(plugin: InProcessScheduler) -> None:
    await plugin.submit(session("a"), key="a")
    other = await plugin.submit(session("b"), key="b")
    plugin.advance(600)
    assert (await plugin.get(other.id)).phase is Phase.STARTING


async def test_a_resume_that_nobody_takes_is_suspended_again(plugin: InProcessScheduler) -> None:
    workload, grant = await running(plugin)
    await move(plugin, grant, Phase.SUSPENDING)
    await move(plugin, grant, Phase.SUSPENDED, snapshot=snapshot())
    await plugin.desire(workload.id, Desired.RUNNING, actor="a", reason="click")
    assert (await plugin.get(workload.id)).phase is Phase.RESUMING
    plugin.advance(600)
    back = await plugin.get(workload.id)
    assert (back.phase, back.desired) == (Phase.SUSPENDED, Desired.SUSPENDED)
    assert await gpus_taken(plugin) == 0


async def test_a_start_is_timed_from_the_moment_its_place_is_taken_up(
    plugin: InProcessScheduler,
) -> None:
    workload = await plugin.submit(session(), key="k")
    plugin.advance(500)
    await plugin.take(workload.id)
    plugin.advance(299)
    assert (await plugin.get(workload.id)).phase is Phase.STARTING
    plugin.advance(1)
    failed = await plugin.get(workload.id)
    assert failed.phase is Phase.FAILED
    assert "300 s" in failed.last_error


async def test_a_deadline_frees_no_gpu_until_the_holder_says_so(
    plugin: InProcessScheduler,
) -> None:
    workload = await plugin.submit(session(), key="k")
    grant = await plugin.take(workload.id)
    await beat(plugin, grant, Phase.STARTING)
    plugin.advance(300)
    assert (await plugin.get(workload.id)).phase is Phase.FAILED
    assert await gpus_taken(plugin) == 1
    plugin.advance(100_000)
    assert await gpus_taken(plugin) == 1
    assert await beat(plugin, grant, Phase.STARTING) is True
    await move(plugin, grant, Phase.STOPPED)
    assert await gpus_taken(plugin) == 0
    assert (await plugin.get(workload.id)).phase is Phase.FAILED


async def test_a_holder_that_never_reported_has_fenced_itself_after_its_lease(
    plugin: InProcessScheduler,
) -> None:
    workload = await plugin.submit(session(), key="k")
    await plugin.take(workload.id)
    plugin.advance(300)
    assert (await plugin.get(workload.id)).phase is Phase.FAILED
    plugin.advance(300)
    assert await gpus_taken(plugin) == 1
    plugin.advance(60)
    assert await gpus_taken(plugin) == 0


async def test_a_job_is_not_started_twice_while_its_former_processes_may_live(
    plugin: InProcessScheduler,
) -> None:
    workload = await plugin.submit(job(), key="j")
    grant = await plugin.take(workload.id)
    await beat(plugin, grant, Phase.STARTING)
    plugin.advance(300)
    again = await plugin.get(workload.id)
    assert (again.phase, again.attempt) == (Phase.QUEUED, 1)
    assert (await plugin.why(workload.id)).reason == "still_leaving"
    await move(plugin, grant, Phase.QUEUED)
    plugin.advance(10)
    assert (await plugin.get(workload.id)).phase is Phase.STARTING


async def test_a_suspend_that_takes_too_long_is_off_and_may_still_succeed(
    plugin: InProcessScheduler,
) -> None:
    workload, grant = await running(plugin)
    await plugin.desire(workload.id, Desired.SUSPENDED, actor="reclaimer", reason="idle")
    await move(plugin, grant, Phase.SUSPENDING)
    for _ in range(4):
        plugin.advance(450)
        await beat(plugin, grant, Phase.SUSPENDING)
    assert DEADLINES[Kind.SESSION][Phase.SUSPENDING].seconds == 1800
    late = await plugin.get(workload.id)
    assert (late.phase, late.desired) == (Phase.RUNNING, Desired.RUNNING)
    done = await move(plugin, grant, Phase.SUSPENDED, snapshot=snapshot())
    assert done.snapshot == snapshot()
    assert await gpus_taken(plugin) == 0


async def test_a_silent_holder_is_lost_keeps_its_gpus_and_may_come_back(
    plugin: InProcessScheduler,
) -> None:
    workload, grant = await running(plugin)
    await beat(plugin, grant)
    plugin.advance(659)
    assert (await plugin.get(workload.id)).phase is Phase.RUNNING
    plugin.advance(1)
    assert (await plugin.get(workload.id)).phase is Phase.LOST
    assert await gpus_taken(plugin) == 1
    assert await beat(plugin, grant) is False
    assert (await plugin.get(workload.id)).phase is Phase.RUNNING


async def test_heartbeats_keep_a_lease_for_ever(plugin: InProcessScheduler) -> None:
    workload, grant = await running(plugin)
    for _ in range(20):
        plugin.advance(500)
        await beat(plugin, grant)
    assert (await plugin.get(workload.id)).phase is Phase.RUNNING


async def test_protected_time_is_kept_and_then_ends() -> None:
    plugin = InProcessScheduler(gpus=1, clock=ManualClock())
    workload, _ = await running(plugin, session(min_runtime_seconds=100.0))
    await plugin.submit(job(), key="j")
    await plugin.set_idleness(workload.id, Idleness(since=1.0))
    assert (await plugin.get(workload.id)).desired is Desired.RUNNING
    plugin.advance(100)
    assert (await plugin.get(workload.id)).desired is Desired.SUSPENDED
    await plugin.aclose()


async def test_a_job_is_ended_when_it_has_run_for_all_it_may(plugin: InProcessScheduler) -> None:
    workload, grant = await running(plugin, job(max_runtime_seconds=100.0))
    plugin.advance(99)
    assert (await plugin.get(workload.id)).phase is Phase.RUNNING
    plugin.advance(1)
    ending = await plugin.get(workload.id)
    assert (ending.phase, ending.desired) == (Phase.CANCELLING, Desired.STOPPED)
    assert "all it may" in ending.desired_reason
    await move(plugin, grant, Phase.CANCELLED)
    assert (await plugin.get(workload.id)).phase is Phase.CANCELLED


async def test_a_turn_ends_with_its_protection_for_who_waited_for_it(
    plugin: InProcessScheduler,
) -> None:
    first, grant = await running(plugin, job(min_runtime_seconds=1000.0))
    second = await plugin.submit(job(min_runtime_seconds=1000.0), key="second")
    # Whoever waits from the same moment on has waited for all of it. The first never reports what it
    # has saved, so it may go on for one more protection.
    for _ in range(3):
        plugin.advance(500)
        await beat(plugin, grant)
        assert (await plugin.get(first.id)).desired is Desired.RUNNING
    plugin.advance(500)
    yielding = await plugin.get(first.id)
    assert yielding.desired is Desired.SUSPENDED
    assert "turn" in yielding.desired_reason and len(yielding.preempted_at) == 1
    assert yielding.yielded_to == (second.id,)
    await move(plugin, grant, Phase.PREEMPTING)
    await move(plugin, grant, Phase.QUEUED)
    assert (await plugin.get(second.id)).phase is Phase.STARTING
    assert (await plugin.get(first.id)).phase is Phase.QUEUED


async def test_nobody_is_preempted_without_end_on_one_day(plugin: InProcessScheduler) -> None:
    victim, grant = await running(plugin, job(priority=Priority.LOW))
    for number in range(Rules().max_preemptions):
        urgent = await plugin.submit(job(max_runtime_seconds=50.0), key=f"urgent{number}")
        assert (await plugin.get(victim.id)).desired is Desired.SUSPENDED
        await move(plugin, grant, Phase.PREEMPTING)
        await move(plugin, grant, Phase.QUEUED)
        other = await plugin.take(urgent.id)
        await move(plugin, other, Phase.RUNNING)
        await move(plugin, other, Phase.SUCCEEDED)
        grant = await plugin.take(victim.id)
        await move(plugin, grant, Phase.RUNNING)
    await plugin.submit(job(), key="one more")
    assert (await plugin.get(victim.id)).desired is Desired.RUNNING


async def test_who_could_not_be_suspended_is_left_alone_for_a_while(
    plugin: InProcessScheduler,
) -> None:
    workload, grant = await running(plugin)
    await plugin.submit(job(), key="j")
    await plugin.set_idleness(workload.id, Idleness(since=1.0))
    assert (await plugin.get(workload.id)).desired is Desired.SUSPENDED
    await move(plugin, grant, Phase.SUSPENDING)
    await move(plugin, grant, Phase.RUNNING, evidence={"error": "no"})
    plugin.advance(100)
    assert (await plugin.get(workload.id)).desired is Desired.RUNNING
    plugin.advance(500)
    assert (await plugin.get(workload.id)).desired is Desired.SUSPENDED
    await plugin.aclose()


async def test_a_pause_ends_by_itself(plugin: InProcessScheduler) -> None:
    workload, _ = await running(plugin)
    await plugin.pause("all", seconds=50, reason="demo", actor="root")
    await plugin.submit(job(), key="j")
    await plugin.set_idleness(workload.id, Idleness(since=1.0))
    assert (await plugin.get(workload.id)).desired is Desired.RUNNING
    plugin.advance(50)
    assert (await plugin.fleet()).pauses == ()
    assert (await plugin.get(workload.id)).desired is Desired.SUSPENDED


async def test_the_next_moment_of_interest_is_known(plugin: InProcessScheduler) -> None:
    engine = plugin.engine
    assert engine.next_due() is None
    workload = await plugin.submit(session(), key="k")
    now = plugin.clock.now()
    assert engine.next_due() == now + 600
    grant = await plugin.take(workload.id)
    assert engine.next_due() == now + 300
    await move(plugin, grant, Phase.RUNNING)
    assert engine.next_due() == now + 660


async def test_limits_of_teams_come_from_the_settings() -> None:
    settings = Settings(rules=Rules(team_limits={"red": 1}))
    plugin = InProcessScheduler(gpus=4, settings=settings, clock=ManualClock())
    await plugin.submit(session(team="red"), key="a")
    waiting = await plugin.submit(session("b", team="red"), key="b")
    why = await plugin.why(waiting.id)
    assert (why.reason, why.evidence["limit"]) == ("team_limit", 1)
    await plugin.aclose()
