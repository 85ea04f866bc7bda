"""One suite for every implementation of `SchedulerPlugin`: in-process, and over real HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from importlib.metadata import entry_points

import pytest

from scheduler_bridge.client import SchedulerClient
from scheduler_bridge.errors import Conflict, NotAllowed, NotFound, Refused
from scheduler_bridge.inprocess import InProcessScheduler
from scheduler_bridge.model.phases import Desired, Kind, Phase
from scheduler_bridge.model.workload import (
    Grant,
    Idleness,
    Priority,
    Report,
    Workload,
)
from scheduler_bridge.plugin import SchedulerPlugin
from tests.builders.scheduler import job, scheduler_plugin, session, snapshot


@pytest.fixture(params=["in-process", "http"])
async def plugin(request: pytest.FixtureRequest) -> AsyncIterator[SchedulerPlugin]:
    async with scheduler_plugin(request.param, gpus=2) as made:
        yield made


async def until(plugin: SchedulerPlugin, workload_id: str, *phases: Phase) -> Workload:
    """The workload once it is in one of the phases."""
    async with asyncio.timeout(10):
        workload = await plugin.get(workload_id)
        while workload.phase not in phases:
            workload = await plugin.wait(workload_id, version=workload.version, timeout=5)
        return workload


async def placed(plugin: SchedulerPlugin, spec: object, key: str) -> tuple[Workload, Grant]:
    workload = await plugin.submit(spec, key=key)  # type: ignore[arg-type]
    await until(plugin, workload.id, Phase.STARTING, Phase.RESUMING)
    return workload, await plugin.take(workload.id)


async def running(plugin: SchedulerPlugin, spec: object, key: str) -> tuple[Workload, Grant]:
    workload, grant = await placed(plugin, spec, key)
    await move(plugin, grant, Phase.RUNNING)
    return await plugin.get(workload.id), grant


async def move(plugin: SchedulerPlugin, grant: Grant, target: Phase, **more: object) -> Workload:
    return await plugin.move(
        grant.lease.id,
        grant.credential,
        target,
        cause="told by the test",
        **more,  # type: ignore[arg-type]
    )


async def beat(
    plugin: SchedulerPlugin, grant: Grant, phase: Phase = Phase.RUNNING, wait: float = 0.0
) -> object:
    report = Report(grant.lease.epoch, phase, {"cpu": 1}, {"supervisor": {"pid": 1}})
    return await plugin.heartbeat(grant.lease.id, grant.credential, report, wait=wait)


# -- submitting ------------------------------------------------------------------------------


async def test_a_session_is_placed_with_a_lease_and_the_device_it_may_open(
    plugin: SchedulerPlugin,
) -> None:
    workload = await plugin.submit(session(), key="session:h/alice/")
    workload = await until(plugin, workload.id, Phase.STARTING)
    assert workload.lease is not None
    assert workload.lease.epoch == workload.epoch == 1
    assert [gpu.virtual for gpu in workload.lease.gpus] == [True]
    assert workload.lease.gpus[0].device.endswith("vgpu0")


async def test_submitting_a_live_key_again_gives_the_same_workload(
    plugin: SchedulerPlugin,
) -> None:
    first = await plugin.submit(session(), key="k")
    second = await plugin.submit(session(gpus=2), key="k")
    assert (second.id, second.spec.gpus) == (first.id, 1)
    found = await plugin.find("k")
    assert found is not None and found.id == first.id
    assert await plugin.find("another") is None


async def test_the_key_is_free_once_the_workload_has_ended(plugin: SchedulerPlugin) -> None:
    first = await plugin.submit(session(), key="k")
    await plugin.desire(first.id, Desired.STOPPED, actor="alice", reason="done")
    assert await plugin.find("k") is None
    assert (await plugin.get(first.id)).phase is Phase.STOPPED
    second = await plugin.submit(session(), key="k")
    assert second.id != first.id


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        (session(gpus=3), "at most 2 GPUs"),
        (session(gpus=-1), "gpus: must be 0 or more"),
        (job(nodes=2), "the fleet has 1"),
        (job(command=()), "command"),
        (job(name=""), "name"),
        (job(user="a\nb"), "user"),
        (job(environment={"A B": "1"}), "environment"),
        (job(grace_seconds=1e9), "grace_seconds"),
        (job(min_runtime_seconds=-1.0), "min_runtime_seconds"),
        (job(min_runtime_seconds=float("nan")), "min_runtime_seconds"),
        (job(max_runtime_seconds=0.0), "max_runtime_seconds"),
        (job(min_runtime_seconds=61.0, max_runtime_seconds=60.0), "more than the 60"),
        (session(max_runtime_seconds=60.0), "max_runtime_seconds: a session has none"),
        (job(gpu_models=("H9000",)), "'H9000' is not known; there is: Virtual GPU"),
        (job(clusters=("west",)), "'west' is not known; there is: local"),
    ],
)
async def test_what_can_never_run_is_refused_at_once_with_the_limit(
    plugin: SchedulerPlugin, spec: object, named: str
) -> None:
    with pytest.raises(Refused, match=named):
        await plugin.submit(spec, key="k")  # type: ignore[arg-type]
    assert await plugin.list() == ()


async def test_a_workload_without_gpus_always_has_a_place(plugin: SchedulerPlugin) -> None:
    await placed(plugin, session("a", gpus=2), "a")
    free, grant = await placed(plugin, session("b", gpus=0), "b")
    assert grant.lease.gpus == ()
    assert free.id != ""


async def test_the_queue_tells_place_and_reason(plugin: SchedulerPlugin) -> None:
    await placed(plugin, session("a", gpus=2), "a")
    second = await plugin.submit(job(), key="b")
    third = await plugin.submit(job(priority=Priority.HIGH), key="c")
    async with asyncio.timeout(10):
        seen = await plugin.get(second.id)
        while seen.position != 2:
            seen = await plugin.wait(second.id, version=seen.version, timeout=5)
    assert "none" in seen.wait_reason
    assert (await plugin.get(third.id)).position == 1
    why = await plugin.why(second.id)
    assert (why.reason, why.evidence["needed"]) == ("no_free_gpus", 1)
    assert why.remedy
    assert (await plugin.fleet()).queued == 2


async def test_lists_are_in_order_and_can_be_narrowed(plugin: SchedulerPlugin) -> None:
    first = await plugin.submit(session("a"), key="1")
    second = await plugin.submit(job("b"), key="2")
    third = await plugin.submit(job("a", gpus=0), key="3")
    ids = [first.id, second.id, third.id]
    assert [w.id for w in await plugin.list()] == ids
    assert [w.id for w in await plugin.list(kind=Kind.JOB)] == ids[1:]
    assert [w.id for w in await plugin.list(user="a")] == [first.id, third.id]
    await plugin.desire(first.id, Desired.STOPPED, actor="a", reason="")
    assert [w.id for w in await plugin.list()] == ids[1:]
    assert [w.id for w in await plugin.list(live=False)] == ids


async def test_what_does_not_exist_is_not_found(plugin: SchedulerPlugin) -> None:
    for call in (
        plugin.get("s-none"),
        plugin.wait("s-none", version=0, timeout=0),
        plugin.desire("s-none", Desired.STOPPED, actor="", reason=""),
        plugin.take("s-none"),
        plugin.history("s-none"),
        plugin.output("s-none"),
        plugin.why("s-none"),
        plugin.set_idleness("s-none", Idleness()),
        plugin.heartbeat("l-none", "secret-secret", Report(1, Phase.RUNNING)),
    ):
        with pytest.raises(NotFound):
            await call


# -- waiting ---------------------------------------------------------------------------------


async def test_wait_ends_with_the_change(plugin: SchedulerPlugin) -> None:
    workload, grant = await running(plugin, session(), "k")
    waiting = asyncio.ensure_future(plugin.wait(workload.id, version=workload.version, timeout=30))
    await asyncio.sleep(0)
    await move(plugin, grant, Phase.STOPPED)
    async with asyncio.timeout(5):
        assert (await waiting).phase is Phase.STOPPED


async def test_wait_without_a_change_gives_the_workload_as_it_is(
    plugin: SchedulerPlugin,
) -> None:
    workload, _ = await running(plugin, session(), "k")
    same = await plugin.wait(workload.id, version=workload.version, timeout=0.05)
    assert same.version == workload.version


# -- leases ----------------------------------------------------------------------------------


async def test_only_the_latest_holder_of_a_lease_counts(plugin: SchedulerPlugin) -> None:
    workload, old = await running(plugin, session(), "k")
    new = await plugin.take(workload.id)
    assert new.lease.id == old.lease.id
    assert (await beat(plugin, old)).revoked is True  # type: ignore[attr-defined]
    with pytest.raises(Conflict):
        await move(plugin, old, Phase.STOPPED)
    assert (await beat(plugin, new)).revoked is False  # type: ignore[attr-defined]


async def test_a_wrong_credential_is_not_allowed(plugin: SchedulerPlugin) -> None:
    _, grant = await running(plugin, session(), "k")
    wrong = Grant(grant.lease, "not-the-credential")
    with pytest.raises(NotAllowed):
        await beat(plugin, wrong)
    with pytest.raises(NotAllowed):
        await move(plugin, wrong, Phase.STOPPED)


async def test_a_stale_epoch_is_told_that_it_is_revoked(plugin: SchedulerPlugin) -> None:
    _, grant = await running(plugin, session(), "k")
    report = Report(grant.lease.epoch + 1, Phase.RUNNING)
    answer = await plugin.heartbeat(grant.lease.id, grant.credential, report)
    assert answer.revoked


async def test_nothing_can_be_taken_from_the_queue(plugin: SchedulerPlugin) -> None:
    await placed(plugin, session("a", gpus=2), "a")
    waiting = await plugin.submit(session("b"), key="b")
    with pytest.raises(Conflict, match="holds no lease"):
        await plugin.take(waiting.id)


async def test_a_heartbeat_renews_and_brings_signals(plugin: SchedulerPlugin) -> None:
    workload, grant = await running(plugin, session(), "k")
    answer = await beat(plugin, grant)
    assert answer.expires_at >= grant.lease.expires_at  # type: ignore[attr-defined]
    seen = await plugin.get(workload.id)
    assert seen.signals == {"cpu": 1}
    assert seen.signals_at is not None
    assert seen.version == workload.version


async def test_a_heartbeat_that_waits_is_answered_when_something_is_desired(
    plugin: SchedulerPlugin,
) -> None:
    workload, grant = await running(plugin, session(), "k")
    waiting = asyncio.ensure_future(beat(plugin, grant, wait=30))
    await asyncio.sleep(0)
    await plugin.desire(workload.id, Desired.SUSPENDED, actor="reclaimer", reason="idle")
    async with asyncio.timeout(5):
        answer = await waiting
    assert (answer.desired, answer.actor, answer.reason) == (  # type: ignore[attr-defined]
        Desired.SUSPENDED,
        "reclaimer",
        "idle",
    )


async def test_an_ended_lease_frees_its_gpus(plugin: SchedulerPlugin) -> None:
    _, grant = await running(plugin, session("a", gpus=2), "a")
    waiting = await plugin.submit(session("b", gpus=2), key="b")
    assert len((await plugin.fleet()).holders) == 2
    await move(plugin, grant, Phase.STOPPED)
    moved = await until(plugin, waiting.id, Phase.STARTING)
    assert moved.lease is not None and len(moved.lease.gpus) == 2
    assert set((await plugin.fleet()).holders.values()) == {waiting.id}


# -- moving ----------------------------------------------------------------------------------


async def test_an_illegal_move_is_a_conflict_and_changes_nothing(
    plugin: SchedulerPlugin,
) -> None:
    workload, grant = await placed(plugin, session(), "k")
    with pytest.raises(Conflict, match="cannot become"):
        await move(plugin, grant, Phase.SUSPENDED, snapshot=snapshot())
    assert (await plugin.get(workload.id)).phase is Phase.STARTING


async def test_a_repeated_report_is_harmless(plugin: SchedulerPlugin) -> None:
    workload, grant = await running(plugin, session(), "k")
    again = await move(plugin, grant, Phase.RUNNING)
    assert again.version == workload.version
    await move(plugin, grant, Phase.STOPPED, exit_code=3)
    last = await move(plugin, grant, Phase.STOPPED)
    assert (last.phase, last.exit_code) == (Phase.STOPPED, 3)


async def test_a_suspended_session_needs_its_snapshot(plugin: SchedulerPlugin) -> None:
    _, grant = await running(plugin, session(), "k")
    await move(plugin, grant, Phase.SUSPENDING)
    with pytest.raises(Refused, match="snapshot"):
        await move(plugin, grant, Phase.SUSPENDED)
    done = await move(plugin, grant, Phase.SUSPENDED, snapshot=snapshot())
    assert (done.phase, done.lease, done.snapshot) == (Phase.SUSPENDED, None, snapshot())


async def suspended(plugin: SchedulerPlugin) -> Workload:
    workload, grant = await running(plugin, session(), "k")
    await plugin.desire(workload.id, Desired.SUSPENDED, actor="reclaimer", reason="idle")
    await move(plugin, grant, Phase.SUSPENDING)
    return await move(plugin, grant, Phase.SUSPENDED, snapshot=snapshot())


async def test_a_suspended_session_comes_back_as_itself(plugin: SchedulerPlugin) -> None:
    workload = await suspended(plugin)
    assert workload.phase is Phase.SUSPENDED
    await plugin.desire(workload.id, Desired.RUNNING, actor="alice", reason="clicked")
    back = await until(plugin, workload.id, Phase.RESUMING)
    assert back.lease is not None and back.lease.epoch == 2
    assert back.idleness == Idleness()
    grant = await plugin.take(workload.id)
    await move(plugin, grant, Phase.FILLING)
    done = await move(plugin, grant, Phase.RUNNING)
    assert (done.id, done.key) == (workload.id, workload.key)


async def test_a_failed_resume_keeps_the_snapshot_and_is_not_tried_again_by_itself(
    plugin: SchedulerPlugin,
) -> None:
    workload = await suspended(plugin)
    await plugin.desire(workload.id, Desired.RUNNING, actor="alice", reason="clicked")
    await until(plugin, workload.id, Phase.RESUMING)
    grant = await plugin.take(workload.id)
    undone = await move(
        plugin, grant, Phase.SUSPENDED, evidence={"error": "It broke.", "remedy": "Ask."}
    )
    assert (undone.phase, undone.snapshot) == (Phase.SUSPENDED, snapshot())
    assert (undone.last_error, undone.remedy) == ("It broke.", "Ask.")
    assert undone.desired is Desired.SUSPENDED


async def test_a_suspended_session_can_come_back_with_another_teams_share(
    plugin: SchedulerPlugin,
) -> None:
    before = await suspended(plugin)
    moved = await plugin.submit(replace(before.spec, team="audio"), key=before.key)
    assert (moved.id, moved.phase, moved.spec.team) == (before.id, Phase.SUSPENDED, "audio")
    assert moved.snapshot == before.snapshot
    told = (await plugin.history(before.id))[-1]
    assert (told.kind, told.source, told.target) == ("team", "default", "audio")
    await plugin.desire(before.id, Desired.RUNNING, actor="alice", reason="back")
    await until(plugin, before.id, Phase.RESUMING)
    same = await plugin.submit(before.spec, key=before.key)
    assert same.spec.team == "audio", "its share is in use"


async def test_a_failed_suspend_leaves_it_running_and_wanted(plugin: SchedulerPlugin) -> None:
    workload, grant = await running(plugin, session(), "k")
    await plugin.desire(workload.id, Desired.SUSPENDED, actor="reclaimer", reason="idle")
    await move(plugin, grant, Phase.SUSPENDING)
    back = await move(plugin, grant, Phase.RUNNING, evidence={"error": "The store is down."})
    assert (back.phase, back.desired) == (Phase.RUNNING, Desired.RUNNING)
    assert back.last_error == "The store is down."
    assert back.lease is not None


# -- wishing ---------------------------------------------------------------------------------


async def test_a_wish_to_suspend_can_be_withdrawn_before_it_begins(
    plugin: SchedulerPlugin,
) -> None:
    workload, grant = await running(plugin, session(), "k")
    await plugin.desire(workload.id, Desired.SUSPENDED, actor="reclaimer", reason="idle")
    await plugin.desire(workload.id, Desired.RUNNING, actor="alice", reason="is back")
    assert (await beat(plugin, grant)).desired is Desired.RUNNING  # type: ignore[attr-defined]


async def test_a_user_who_returns_during_the_suspend_is_resumed_after_it(
    plugin: SchedulerPlugin,
) -> None:
    workload, grant = await running(plugin, session(), "k")
    await plugin.desire(workload.id, Desired.SUSPENDED, actor="reclaimer", reason="idle")
    await move(plugin, grant, Phase.SUSPENDING)
    await plugin.desire(workload.id, Desired.RUNNING, actor="alice", reason="is back")
    await move(plugin, grant, Phase.SUSPENDED, snapshot=snapshot())
    await until(plugin, workload.id, Phase.RESUMING)


async def test_a_suspend_of_the_supervisors_own_is_not_resumed_at_once(
    plugin: SchedulerPlugin,
) -> None:
    workload, grant = await running(plugin, session(), "k")
    await move(plugin, grant, Phase.SUSPENDING)
    done = await move(plugin, grant, Phase.SUSPENDED, snapshot=snapshot())
    assert (done.phase, done.desired) == (Phase.SUSPENDED, Desired.SUSPENDED)
    assert (await plugin.get(workload.id)).phase is Phase.SUSPENDED


async def test_a_queued_resume_can_be_put_back(plugin: SchedulerPlugin) -> None:
    workload = await suspended(plugin)
    await running(plugin, session("b", gpus=2), "b")
    await plugin.desire(workload.id, Desired.RUNNING, actor="alice", reason="clicked")
    back = await plugin.desire(workload.id, Desired.SUSPENDED, actor="alice", reason="no")
    assert back.phase is Phase.SUSPENDED


async def test_a_suspended_session_can_be_discarded(plugin: SchedulerPlugin) -> None:
    workload = await suspended(plugin)
    gone = await plugin.desire(workload.id, Desired.STOPPED, actor="alice", reason="discard")
    assert gone.phase is Phase.STOPPED
    with pytest.raises(Conflict, match="has ended"):
        await plugin.desire(workload.id, Desired.RUNNING, actor="alice", reason="oh no")


async def test_stopping_what_nobody_took_up_frees_it_at_once(plugin: SchedulerPlugin) -> None:
    workload = await plugin.submit(session(gpus=2), key="k")
    await until(plugin, workload.id, Phase.STARTING)
    gone = await plugin.desire(workload.id, Desired.STOPPED, actor="alice", reason="cancel")
    assert (gone.phase, gone.lease) == (Phase.STOPPED, None)
    assert (await plugin.fleet()).holders == {}


async def test_stopping_what_runs_is_the_supervisors_work(plugin: SchedulerPlugin) -> None:
    workload, grant = await running(plugin, session(), "k")
    wanted = await plugin.desire(workload.id, Desired.STOPPED, actor="alice", reason="done")
    assert wanted.phase is Phase.RUNNING
    assert (await beat(plugin, grant)).desired is Desired.STOPPED  # type: ignore[attr-defined]
    assert len((await plugin.fleet()).holders) == 1


# -- jobs ------------------------------------------------------------------------------------


async def test_a_job_that_waits_is_cancelled_at_once(plugin: SchedulerPlugin) -> None:
    await placed(plugin, session("a", gpus=2), "a")
    waiting = await plugin.submit(job(), key="j")
    gone = await plugin.desire(waiting.id, Desired.STOPPED, actor="bob", reason="cancel")
    assert gone.phase is Phase.CANCELLED


async def test_a_job_that_runs_is_cancelled_by_its_supervisor(plugin: SchedulerPlugin) -> None:
    workload, grant = await running(plugin, job(), "j")
    asked = await plugin.desire(workload.id, Desired.STOPPED, actor="bob", reason="cancel")
    assert asked.phase is Phase.CANCELLING
    answer = await beat(plugin, grant)
    assert answer.desired is Desired.STOPPED  # type: ignore[attr-defined]
    done = await move(plugin, grant, Phase.CANCELLED, exit_code=143)
    assert (done.phase, done.exit_code) == (Phase.CANCELLED, 143)


async def test_a_job_that_ends_while_it_is_cancelled_is_cancelled(
    plugin: SchedulerPlugin,
) -> None:
    workload, grant = await running(plugin, job(), "j")
    await plugin.desire(workload.id, Desired.STOPPED, actor="bob", reason="cancel")
    done = await move(plugin, grant, Phase.SUCCEEDED, exit_code=0)
    assert (done.phase, done.exit_code) == (Phase.CANCELLED, 0)


async def test_jobs_are_not_suspended_by_hand(plugin: SchedulerPlugin) -> None:
    workload, _ = await running(plugin, job(), "j")
    with pytest.raises(Refused, match="Cancel it"):
        await plugin.desire(workload.id, Desired.SUSPENDED, actor="bob", reason="")
    assert (await plugin.get(workload.id)).desired is Desired.RUNNING


async def test_an_idle_session_makes_room_for_a_job(plugin: SchedulerPlugin) -> None:
    workload, grant = await running(plugin, session("a", gpus=2), "a")
    waiting = await plugin.submit(job(gpus=2), key="j")
    await plugin.set_idleness(workload.id, Idleness(since=1.0, reason="nobody there"))
    async with asyncio.timeout(5):
        answer = await beat(plugin, grant, wait=5)
    assert answer.desired is Desired.SUSPENDED  # type: ignore[attr-defined]
    assert answer.actor == "scheduler"  # type: ignore[attr-defined]
    await move(plugin, grant, Phase.SUSPENDING)
    await move(plugin, grant, Phase.SUSPENDED, snapshot=snapshot())
    await until(plugin, waiting.id, Phase.STARTING)


async def test_a_preempted_job_is_queued_again(plugin: SchedulerPlugin) -> None:
    low, grant = await running(plugin, job(gpus=2, priority=Priority.LOW), "low")
    high = await plugin.submit(job(gpus=2, priority=Priority.HIGH), key="high")
    async with asyncio.timeout(5):
        answer = await beat(plugin, grant, wait=5)
    assert answer.desired is Desired.SUSPENDED  # type: ignore[attr-defined]
    await move(plugin, grant, Phase.PREEMPTING)
    again = await move(plugin, grant, Phase.QUEUED)
    assert (again.attempt, again.desired) == (1, Desired.RUNNING)
    await until(plugin, high.id, Phase.STARTING)
    assert (await plugin.get(low.id)).phase is Phase.QUEUED


# -- pauses, events --------------------------------------------------------------------------


async def test_the_red_button_stops_preemption_until_it_is_released(
    plugin: SchedulerPlugin,
) -> None:
    workload, grant = await running(plugin, session("a", gpus=2), "a")
    await plugin.pause("preempt", seconds=3600, reason="demo day", actor="root")
    waiting = await plugin.submit(job(gpus=2), key="j")
    await plugin.set_idleness(workload.id, Idleness(since=1.0))
    async with asyncio.timeout(5):
        while (await plugin.why(waiting.id)).reason != "preemption_paused":
            seen = await plugin.get(waiting.id)
            await plugin.wait(waiting.id, version=seen.version, timeout=1)
    assert (await plugin.get(workload.id)).desired is Desired.RUNNING
    view = await plugin.fleet()
    assert [(p.scope, p.reason, p.actor) for p in view.pauses] == [("preempt", "demo day", "root")]
    await plugin.pause("preempt", seconds=0, reason="", actor="root")
    assert (await plugin.fleet()).pauses == ()
    async with asyncio.timeout(5):
        answer = await beat(plugin, grant, wait=5)
    assert answer.desired is Desired.SUSPENDED  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("scope", "seconds", "reason", "named"),
    [
        ("everything", 1, "x", "reclaim, preempt, all"),
        ("all", -1, "x", "seconds"),
        ("all", 1e12, "x", "seconds"),
        ("all", 1, " ", "reason"),
    ],
)
async def test_a_pause_that_makes_no_sense_is_refused(
    plugin: SchedulerPlugin, scope: str, seconds: float, reason: str, named: str
) -> None:
    with pytest.raises(Refused, match=named):
        await plugin.pause(scope, seconds=seconds, reason=reason, actor="root")


async def test_every_move_is_one_event_with_cause_and_actor(plugin: SchedulerPlugin) -> None:
    workload, grant = await running(plugin, session(), "k")
    await plugin.desire(workload.id, Desired.STOPPED, actor="alice", reason="done")
    await move(plugin, grant, Phase.STOPPED)
    history = await plugin.history(workload.id)
    moves = [(e.source, e.target, e.actor) for e in history if e.kind == "phase"]
    assert moves == [
        ("queued", "starting", "scheduler"),
        ("starting", "running", "supervisor"),
        ("running", "stopped", "supervisor"),
    ]
    assert [e.id for e in history] == sorted(e.id for e in history)
    wish = next(e for e in history if e.kind == "desired")
    assert (wish.actor, wish.cause, wish.target) == ("alice", "done", "stopped")
    assert all(e.user == "alice" for e in history)


async def test_events_come_from_the_past_and_then_as_they_happen(
    plugin: SchedulerPlugin,
) -> None:
    workload = await plugin.submit(session(), key="k")
    await until(plugin, workload.id, Phase.STARTING)
    past = await plugin.history(workload.id)
    async with asyncio.timeout(10):
        stream = plugin.events(after=0)
        seen = [await anext(stream) for _ in past]
        assert seen == list(past)
        coming = asyncio.ensure_future(anext(stream))
        await plugin.take(workload.id)
        assert (await coming).kind == "lease_taken"
        rest = plugin.events(after=seen[-1].id)
        assert (await anext(rest)).kind == "lease_taken"
    await stream.aclose()  # type: ignore[attr-defined]
    await rest.aclose()  # type: ignore[attr-defined]


async def test_idleness_is_recorded_and_told_once(plugin: SchedulerPlugin) -> None:
    workload, _ = await running(plugin, session(), "k")
    view = Idleness(since=5.0, suspend_at=9.0, reason="no input")
    await plugin.set_idleness(workload.id, view)
    once = await plugin.get(workload.id)
    assert once.idleness == view
    await plugin.set_idleness(workload.id, view)
    assert (await plugin.get(workload.id)).version == once.version
    kinds = [e.kind for e in await plugin.history(workload.id)]
    assert kinds.count("idle") == 1


@pytest.mark.parametrize(
    ("name", "made"), [("http", SchedulerClient), ("in-process", InProcessScheduler)]
)
async def test_both_are_found_by_name_and_made_alike(name: str, made: type) -> None:
    (found,) = entry_points(group="hubernate.schedulers", name=name)
    plugin = found.load()("http://127.0.0.1:1", token="a-token")
    assert isinstance(plugin, made)
    await plugin.aclose()
    await plugin.aclose()
