"""An administrator gives up a machine or a session. Time and machines are values here."""

from __future__ import annotations

import pytest

from scheduler_bridge.clusters.base import Life
from scheduler_bridge.engine.books import Books
from scheduler_bridge.engine.fleet_view import node_statuses
from scheduler_bridge.engine.giving_up import (
    declare_dead,
    force_stop,
    losses_of_node,
    losses_of_session,
    revive,
)
from scheduler_bridge.engine.scheduler import Scheduler
from scheduler_bridge.errors import Conflict, NotFound, Refused
from scheduler_bridge.model.phases import Desired, Phase
from scheduler_bridge.model.workload import Workload
from tests.builders.machines import Fleet, machines
from tests.builders.scheduler import job, session, snapshot


async def suspended(fleet: Fleet, workload: Workload) -> Workload:
    await fleet.move(workload, Phase.SUSPENDING)
    return await fleet.move(workload, Phase.SUSPENDED, snapshot())


async def resumed(fleet: Fleet, workload: Workload) -> Workload:
    await fleet.plugin.desire(workload.id, Desired.RUNNING, actor="alice", reason="click")
    fleet.grants[workload.id] = await fleet.plugin.take(workload.id)
    await fleet.beat(workload, Phase.RESUMING, handle={"name": workload.id})
    await fleet.move(workload, Phase.FILLING)
    return await fleet.move(workload, Phase.RUNNING)


def dead(fleet: Fleet, name: str = "a", **more: object) -> None:
    declare_dead(fleet.engine, name, reason="it burns", actor="root", **more)  # type: ignore[arg-type]


async def test_a_job_is_queued_again_and_placed_elsewhere() -> None:
    fleet = Fleet("a", "b")
    work = await fleet.run(job(gpus=2), "1")
    assert work.lease is not None and work.lease.node == "a"
    fleet.pass_time(660, heard=["b"])
    dead(fleet)
    fleet.pass_time(10, heard=["b"])
    again = await fleet.now(work)
    assert (again.phase, again.epoch, again.attempt) == (Phase.STARTING, 2, 1)
    assert again.lease is not None and again.lease.node == "b"
    moves = [(e.target, e.actor) for e in await fleet.plugin.history(work.id) if e.kind == "phase"]
    assert moves[-3:] == [("lost", "scheduler"), ("queued", "root"), ("starting", "scheduler")]


async def test_a_session_is_offered_from_its_last_snapshot() -> None:
    fleet = Fleet("a", "b")
    work = await resumed(fleet, await suspended(fleet, await fleet.run(session(gpus=2), "1")))
    assert work.lease is not None
    fleet.pass_time(660, heard=["a" if work.lease.node == "b" else "b"])
    dead(fleet, work.lease.node)
    offered = await fleet.now(work)
    assert (offered.phase, offered.desired) == (Phase.SUSPENDED, Desired.SUSPENDED)
    assert offered.snapshot == snapshot()
    assert offered.lease is None
    assert offered.last_error == f"Its machine {work.lease.node} was declared dead."
    assert (await fleet.plugin.fleet()).holders == {}


async def test_a_session_without_a_snapshot_has_ended() -> None:
    fleet = Fleet("a", "b")
    work = await fleet.run(session(), "1")
    fleet.pass_time(660, heard=["b"])
    dead(fleet)
    assert (await fleet.now(work)).phase is Phase.STOPPED


async def test_a_place_that_nobody_has_taken_up_is_looked_for_elsewhere() -> None:
    fleet = Fleet("a", "b")
    work = await fleet.plugin.submit(session(gpus=2), key="1")
    assert work.lease is not None
    other = {"a": "b", "b": "a"}[work.lease.node]
    fleet.pass_time(60, heard=[other])
    dead(fleet, work.lease.node)
    again = await fleet.now(work)
    assert (again.phase, again.attempt) == (Phase.STARTING, 0)
    assert again.lease is not None and again.lease.node == other


async def test_it_is_refused_until_every_holder_has_had_to_halt() -> None:
    fleet = Fleet("a", "b")
    work = await fleet.run(job(gpus=2), "1")
    fleet.pass_time(540, heard=["b"])
    with pytest.raises(Conflict, match=r"a may still run 1 of its workloads for 2 min"):
        dead(fleet)
    assert (await fleet.now(work)).lease == work.lease
    fleet.pass_time(120, heard=["b"])
    dead(fleet)


async def test_a_machine_that_answers_is_not_declared_dead_by_accident() -> None:
    fleet = Fleet("a", "b")
    with pytest.raises(Conflict, match="a answers: it was heard 0 s ago"):
        dead(fleet)
    dead(fleet, at_once=True, given_up=())
    assert node_statuses(fleet.engine)[0].state.value == "dead"


@pytest.mark.parametrize("named", [None, (), ("j-000000000000",)])
async def test_at_once_needs_the_name_of_every_workload(named: tuple[str, ...] | None) -> None:
    fleet = Fleet("a")
    work = await fleet.run(job(), "1")
    with pytest.raises(Conflict, match=f"{work.id} is missing"):
        dead(fleet, at_once=True, given_up=named)
    assert (await fleet.now(work)).phase is Phase.RUNNING
    dead(fleet, at_once=True, given_up=(work.id,))
    assert (await fleet.now(work)).phase is Phase.QUEUED


async def test_what_came_after_the_look_is_not_given_up_unseen() -> None:
    fleet = Fleet("a", gpus=2)
    first = await fleet.run(job(), "1")
    seen = losses_of_node(fleet.engine, "a").ids
    second = await fleet.run(job(), "2")
    with pytest.raises(Conflict, match=second.id):
        dead(fleet, at_once=True, given_up=seen)
    assert (await fleet.now(first)).phase is Phase.RUNNING


async def test_what_is_given_up_is_said_beforehand() -> None:
    fleet = Fleet("a", gpus=4)
    back = await resumed(fleet, await suspended(fleet, await fleet.run(session(gpus=2), "1")))
    new = await fleet.run(session("bob"), "2")
    train = await fleet.run(job("carol", name="train"), "3")
    quiet = await fleet.run(session("dave", gpus=0), "4")
    found = {it.workload_id: it for it in losses_of_node(fleet.engine, "a").items}
    assert {it: found[it].becomes for it in found} == {
        back.id: Phase.SUSPENDED,
        new.id: Phase.STOPPED,
        train.id: Phase.QUEUED,
        quiet.id: Phase.STOPPED,
    }
    now = fleet.plugin.clock.now()
    assert (found[back.id].gpus, found[back.id].is_fenced) == (2, False)
    assert found[train.id].fenced_at == now + 660
    assert (found[train.id].name, found[train.id].user) == ("train", "carol")
    assert not found[quiet.id].halts_itself and found[new.id].halts_itself


async def test_a_former_holder_is_told_to_stop_itself_and_why() -> None:
    fleet = Fleet("a", "b")
    work = await fleet.run(job(gpus=2), "1")
    fleet.pass_time(660, heard=["b"])
    dead(fleet)
    answer = await fleet.beat(work)
    assert answer.revoked and answer.desired is Desired.STOPPED
    assert "stop yourself" in answer.reason and "it burns" in answer.reason
    with pytest.raises(Conflict, match="no longer this holder's"):
        await fleet.move(work, Phase.SUCCEEDED)
    assert (await fleet.now(work)).phase is Phase.QUEUED


async def test_a_dead_machine_gets_no_work_although_it_answers_and_after_a_restart() -> None:
    fleet = Fleet("a")
    fleet.pass_time(60)
    dead(fleet)
    fleet.report(["a"])
    waiting = await fleet.plugin.submit(job(), key="1")
    assert waiting.phase is Phase.QUEUED
    books = Books(fleet.engine.books.store, fleet.plugin.clock, machines("a"))
    again = Scheduler(books)
    again.hear(["a"])
    again.tick()
    assert again.get(waiting.id).phase is Phase.QUEUED
    death = books.node_record("a").death
    assert death is not None and (death.actor, death.reason) == ("root", "it burns")


async def test_a_revived_machine_gets_work() -> None:
    fleet = Fleet("a")
    fleet.pass_time(60)
    dead(fleet)
    waiting = await fleet.plugin.submit(job(), key="1")
    fleet.report(["a"])
    revive(fleet.engine, "a", reason="new fan", actor="root")
    assert (await fleet.now(waiting)).phase is Phase.STARTING


async def test_it_is_not_revived_while_what_was_given_up_still_speaks() -> None:
    fleet = Fleet("a")
    work = await fleet.run(job(), "1")
    dead(fleet, at_once=True, given_up=(work.id,))
    await fleet.beat(work)
    assert node_statuses(fleet.engine)[0].still_heard == (work.id,)
    with pytest.raises(Conflict, match=f"a still runs {work.id}"):
        revive(fleet.engine, "a", reason="", actor="root")
    fleet.cluster.lives[work.id] = Life.GONE
    fleet.pass_time(60, heard=["a"])
    revive(fleet.engine, "a", reason="", actor="root")
    assert (await fleet.now(work)).phase is Phase.STARTING


async def test_what_lives_on_a_dead_machine_may_store_its_memory_and_is_then_ended() -> None:
    fleet = Fleet("a")
    work = await fleet.run(session(), "1")
    dead(fleet, at_once=True, given_up=(work.id,))
    await fleet.steward.step()
    with pytest.raises(Conflict, match="still runs"):
        revive(fleet.engine, "a", reason="", actor="root")
    fleet.pass_time(299)
    await fleet.steward.step()
    assert fleet.cluster.terminated == []
    fleet.pass_time(1)
    await fleet.steward.step()
    assert [handle["name"] for handle in fleet.cluster.terminated] == [work.id]


async def test_memory_that_was_stored_after_all_is_what_comes_back() -> None:
    fleet = Fleet("a")
    work = await resumed(fleet, await suspended(fleet, await fleet.run(session(), "1")))
    dead(fleet, at_once=True, given_up=(work.id,))
    late = snapshot(epoch=2, sequence=1)
    with pytest.raises(Conflict):
        await fleet.move(work, Phase.SUSPENDED, late)
    kept = await fleet.now(work)
    assert (kept.phase, kept.snapshot, kept.last_error) == (Phase.SUSPENDED, late, "")
    assert (await fleet.plugin.history(work.id))[-1].kind == "saved_after_all"


async def test_memory_stored_late_is_no_news_once_the_session_was_resumed() -> None:
    fleet = Fleet("a", "b")
    work = await resumed(fleet, await suspended(fleet, await fleet.run(session(), "1")))
    assert work.lease is not None
    dead(fleet, work.lease.node, at_once=True, given_up=(work.id,))
    old = fleet.grants[work.id]
    await resumed(fleet, await fleet.now(work))
    await suspended_again(fleet, work)
    with pytest.raises(Conflict):
        await fleet.plugin.move(
            old.lease.id, old.credential, Phase.SUSPENDED, cause="late", snapshot=snapshot(2, 9)
        )
    assert (await fleet.now(work)).snapshot == snapshot(3, 1)


async def suspended_again(fleet: Fleet, work: Workload) -> None:
    await fleet.move(work, Phase.SUSPENDING)
    await fleet.move(work, Phase.SUSPENDED, snapshot(3, 1))


async def test_a_gang_with_a_part_on_a_dead_machine_leaves_as_a_whole() -> None:
    fleet = Fleet("a", "b", gpus=2)
    work = await fleet.run(job(gpus=2, nodes=2), "1")
    assert work.lease is not None
    other = {"a": "b", "b": "a"}[work.lease.node]
    losses = losses_of_node(fleet.engine, other)
    assert [(it.gpus, it.is_elsewhere) for it in losses.items] == [(2, True)]
    dead(fleet, other, at_once=True, given_up=losses.ids)
    left = await fleet.now(work)
    assert (left.phase, left.lease) == (Phase.QUEUED, None)
    assert len((await fleet.plugin.fleet()).holders) == 4
    assert (await fleet.beat(work)).revoked
    await fleet.move(work, Phase.STOPPED)
    assert (await fleet.plugin.fleet()).holders == {}


def test_declaring_twice_changes_nothing() -> None:
    fleet = Fleet("a")
    fleet.pass_time(60)
    dead(fleet)
    first = fleet.engine.books.node_record("a")
    declare_dead(fleet.engine, "a", reason="again", actor="somebody")
    assert fleet.engine.books.node_record("a") == first
    revive(fleet.engine, "a", reason="", actor="root")
    revive(fleet.engine, "a", reason="", actor="root")
    kinds = [e.kind for e in fleet.engine.books.store.events(after=0, limit=99)]
    assert kinds == ["node_silent", "node_dead", "node_revived"]


@pytest.mark.parametrize(
    ("name", "reason", "error", "said"),
    [
        ("c", "x", NotFound, "There is no machine c. There are: a, b."),
        ("a", " ", Refused, "reason: it needs one"),
        ("a", "x" * 501, Refused, "reason: at most 500 characters; it has 501"),
    ],
)
def test_a_wrong_request_is_named(
    name: str, reason: str, error: type[Exception], said: str
) -> None:
    fleet = Fleet("a", "b")
    with pytest.raises(error, match=said):
        declare_dead(fleet.engine, name, reason=reason, actor="root")


# -- sessions --------------------------------------------------------------------------------


async def test_a_session_whose_supervisor_is_silent_is_offered_and_its_gpus_wait_for_proof() -> (
    None
):
    fleet = Fleet("a")
    work = await resumed(fleet, await suspended(fleet, await fleet.run(session(), "1")))
    fleet.pass_time(60, heard=["a"])
    force_stop(fleet.engine, work.id, reason="hangs", actor="root")
    offered = await fleet.now(work)
    assert (offered.phase, offered.snapshot, offered.lease) == (Phase.SUSPENDED, snapshot(), None)
    assert len((await fleet.plugin.fleet()).holders) == 1
    # it cannot run twice
    await fleet.plugin.desire(work.id, Desired.RUNNING, actor="alice", reason="click")
    assert (await fleet.plugin.why(work.id)).reason == "still_leaving"
    await fleet.steward.step()
    assert [handle["name"] for handle in fleet.cluster.terminated] == [work.id]
    fleet.cluster.lives[work.id] = Life.GONE
    await fleet.steward.step()
    assert (await fleet.now(work)).phase is Phase.RESUMING


async def test_where_nobody_can_look_its_gpus_are_free_once_it_has_had_to_halt() -> None:
    fleet = Fleet("a")
    work = await fleet.run(session(), "1")
    fleet.cluster.lives[work.id] = Life.UNKNOWN
    fleet.pass_time(60, heard=["a"])
    force_stop(fleet.engine, work.id, reason="hangs", actor="root")
    fleet.pass_time(599, heard=["a"])
    await fleet.steward.step()
    assert len((await fleet.plugin.fleet()).holders) == 1
    fleet.pass_time(1, heard=["a"])
    await fleet.steward.step()
    assert (await fleet.plugin.fleet()).holders == {}
    events = [e for e in await fleet.plugin.history(work.id) if e.kind == "force_stopped"]
    assert [(e.actor, e.cause) for e in events] == [("root", "hangs")]


async def test_a_supervisor_that_answers_is_not_stopped_by_force() -> None:
    fleet = Fleet("a")
    work = await fleet.run(session(), "1")
    fleet.pass_time(59)
    with pytest.raises(Conflict, match=f"The supervisor of {work.id} answered 59 s ago"):
        force_stop(fleet.engine, work.id, reason="hangs", actor="root")
    assert losses_of_session(fleet.engine, work.id).obstacle


async def test_after_a_restart_a_supervisor_has_its_time_to_answer() -> None:
    fleet = Fleet("a")
    work = await fleet.run(session(), "1")
    fleet.pass_time(60)
    again = Scheduler(Books(fleet.engine.books.store, fleet.plugin.clock, machines("a")))
    with pytest.raises(Conflict, match="has just started"):
        force_stop(again, work.id, reason="hangs", actor="root")


async def test_only_sessions_with_a_supervisor_are_stopped_by_force() -> None:
    fleet = Fleet("a")
    work = await suspended(fleet, await fleet.run(session(), "1"))
    with pytest.raises(Conflict, match="is suspended: it holds no GPU"):
        force_stop(fleet.engine, work.id, reason="hangs", actor="root")
    train = await fleet.run(job(), "2")
    fleet.pass_time(60)
    with pytest.raises(Refused, match="is a job"):
        force_stop(fleet.engine, train.id, reason="hangs", actor="root")
    waiting = await fleet.plugin.submit(session("bob"), key="3")
    with pytest.raises(Conflict, match="has no supervisor"):
        force_stop(fleet.engine, waiting.id, reason="hangs", actor="root")
