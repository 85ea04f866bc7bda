"""Giving up machines and sessions, on every implementation of `SchedulerPlugin`."""

from __future__ import annotations

import pytest

from scheduler_bridge.errors import Conflict, NotFound, Refused
from scheduler_bridge.model.nodes import NodeStanding
from scheduler_bridge.model.phases import Desired, Phase
from scheduler_bridge.plugin import SchedulerPlugin
from tests.builders.scheduler import job, session
from tests.contracts.test_scheduler_plugin import beat, plugin, running, until

__all__ = ["plugin"]


async def node(plugin: SchedulerPlugin) -> str:
    (only,) = await plugin.nodes()
    return only.name


async def test_a_machine_shows_what_it_holds(plugin: SchedulerPlugin) -> None:
    workload, _ = await running(plugin, session(), "k")
    (only,) = await plugin.nodes()
    assert (only.state, only.gpus, only.free) == (NodeStanding.READY, 2, 1)
    assert [(h.workload_id, h.user, h.gpus) for h in only.holders] == [(workload.id, "alice", 1)]
    assert only.fenced_at is not None and only.death is None


async def test_a_machine_that_lives_is_given_up_only_by_name(plugin: SchedulerPlugin) -> None:
    workload, grant = await running(plugin, job(gpus=2), "k")
    name = await node(plugin)
    losses = await plugin.losses_of_node(name)
    assert losses.ids == (workload.id,)
    assert "may still run 1 of its workloads" in losses.obstacle
    with pytest.raises(Conflict, match="may still run 1"):
        await plugin.declare_dead(name, reason="fire", actor="root")
    with pytest.raises(Conflict, match=f"{workload.id} is missing"):
        await plugin.declare_dead(name, reason="fire", actor="root", at_once=True, given_up=())
    record = await plugin.declare_dead(
        name, reason="fire", actor="root", at_once=True, given_up=losses.ids
    )
    assert record.death is not None
    assert (record.death.reason, record.death.actor) == ("fire", "root")
    queued = await until(plugin, workload.id, Phase.QUEUED)
    assert (queued.lease, (await plugin.fleet()).holders) == (None, {})

    answer = await beat(plugin, grant)
    assert answer.revoked and answer.desired is Desired.STOPPED  # type: ignore[attr-defined]
    assert "fire" in answer.reason  # type: ignore[attr-defined]
    with pytest.raises(Conflict, match=f"still runs {workload.id}"):
        await plugin.revive(name, reason="", actor="root")
    (only,) = await plugin.nodes()
    assert (only.state, only.still_heard) == (NodeStanding.DEAD, (workload.id,))


async def test_a_revived_machine_takes_work_again(plugin: SchedulerPlugin) -> None:
    name = await node(plugin)
    await plugin.declare_dead(name, reason="fan", actor="root", at_once=True, given_up=())
    waiting = await plugin.submit(job(), key="k")
    revived = await plugin.revive(name, reason="new fan", actor="root")
    assert revived.death is None
    await until(plugin, waiting.id, Phase.STARTING)


async def test_what_does_not_exist_cannot_die(plugin: SchedulerPlugin) -> None:
    for asked in (
        plugin.losses_of_node("nowhere"),
        plugin.revive("nowhere", reason="", actor="root"),
        plugin.declare_dead("nowhere", reason="fire", actor="root"),
        plugin.losses_of_session("s-000000000000"),
    ):
        with pytest.raises(NotFound):
            await asked


async def test_a_reason_is_needed(plugin: SchedulerPlugin) -> None:
    with pytest.raises(Refused, match="reason"):
        await plugin.declare_dead(await node(plugin), reason="", actor="root")


async def test_a_session_that_answers_is_not_stopped_by_force(plugin: SchedulerPlugin) -> None:
    workload, grant = await running(plugin, session(), "k")
    await beat(plugin, grant)
    assert "answered" in (await plugin.losses_of_session(workload.id)).obstacle
    with pytest.raises(Conflict, match=f"The supervisor of {workload.id} answered"):
        await plugin.force_stop(workload.id, reason="hangs", actor="root")
    assert (await plugin.get(workload.id)).phase is Phase.RUNNING


async def test_the_queue_is_in_order_with_sizes(plugin: SchedulerPlugin) -> None:
    await running(plugin, job(gpus=2), "k")
    first = await plugin.submit(session(), key="1")
    second = await plugin.submit(job("carol", gpus=2, name="late"), key="2")
    await until(plugin, first.id, Phase.QUEUED)
    seen = await plugin.wait(second.id, version=second.version, timeout=2.0)
    view = await plugin.queue()
    assert (view.waiting, view.gpus) == (2, 3)
    works = [row.work for row in view.rows if row.work is not None]
    assert [(w.name, w.user, w.gpus) for w in works] == [
        ("alice", "alice", 1),
        ("late", "carol", 2),
    ]
    assert works[1].reason == seen.wait_reason != ""
