"""Machines that stop answering: no new work, leases kept, and back when they are heard again."""

from __future__ import annotations

from scheduler_bridge.engine.books import Books
from scheduler_bridge.engine.fleet_view import node_statuses
from scheduler_bridge.engine.scheduler import Scheduler
from scheduler_bridge.engine.settings import Settings
from scheduler_bridge.engine.steward import Steward
from scheduler_bridge.model.nodes import NodeStanding, NodeStatus
from scheduler_bridge.model.phases import Phase
from tests.builders.machines import Fleet, machines
from tests.builders.scheduler import job, session
from tests.fakes.scheduler_clusters import ClusterWithoutProcesses


def status(fleet: Fleet, name: str) -> NodeStatus:
    return next(it for it in node_statuses(fleet.engine) if it.name == name)


def states(fleet: Fleet) -> dict[str, str]:
    return {it.name: it.state.value for it in node_statuses(fleet.engine)}


def kinds(fleet: Fleet) -> list[str]:
    return [event.kind for event in fleet.engine.books.store.events(after=0, limit=1000)]


def test_a_machine_is_silent_once_its_agent_has_not_reported_in_time() -> None:
    fleet = Fleet("a", "b")
    fleet.pass_time(59, heard=["b"])
    assert states(fleet) == {"a": "ready", "b": "ready"}
    fleet.pass_time(1, heard=["b"])
    assert states(fleet) == {"a": "silent", "b": "ready"}
    assert status(fleet, "a").silent_since == fleet.plugin.clock.now() - 60
    assert kinds(fleet) == ["node_silent"]


async def test_a_silent_machine_gets_no_new_work() -> None:
    fleet = Fleet("a", "b")
    fleet.pass_time(60, heard=["b"])
    first = await fleet.plugin.submit(job(gpus=2), key="1")
    second = await fleet.plugin.submit(job(gpus=2), key="2")
    assert first.lease is not None and first.lease.node == "b"
    assert second.phase is Phase.QUEUED


async def test_work_goes_on_there_as_soon_as_it_is_heard_again() -> None:
    fleet = Fleet("a")
    fleet.pass_time(60)
    waiting = await fleet.plugin.submit(job(), key="1")
    assert waiting.phase is Phase.QUEUED
    fleet.report(["a"])
    assert (await fleet.now(waiting)).phase is Phase.STARTING
    assert kinds(fleet)[:1] == ["node_silent"] and "node_back" in kinds(fleet)


async def test_a_silent_machine_keeps_its_leases() -> None:
    fleet = Fleet("a", "b")
    work = await fleet.run(session(gpus=2), "1")
    assert work.lease is not None and work.lease.node == "a"
    fleet.pass_time(5000, heard=["b"])
    assert (await fleet.now(work)).phase is Phase.LOST
    held = (await fleet.plugin.fleet()).holders
    assert set(held.values()) == {work.id} and len(held) == 2
    shown = status(fleet, "a")
    assert (shown.gpus, shown.free) == (2, 0)
    assert [it.workload_id for it in shown.holders] == [work.id]
    assert shown.fenced_at is not None and shown.fenced_at <= fleet.plugin.clock.now()


async def test_until_when_its_leases_are_kept_is_shown() -> None:
    fleet = Fleet("a")
    await fleet.run(session(), "1")
    now = fleet.plugin.clock.now()
    assert status(fleet, "a").fenced_at == now + 660
    assert status(Fleet("a"), "a").fenced_at is None


async def test_supervisors_that_renew_do_not_make_up_for_an_agent_that_is_gone() -> None:
    fleet = Fleet("a")
    work = await fleet.run(session(), "1")
    for _ in range(7):
        fleet.pass_time(10)
        await fleet.beat(work)
    shown = status(fleet, "a")
    assert shown.state is NodeStanding.SILENT
    assert shown.heard_at == fleet.plugin.clock.now()


async def test_where_nothing_reports_silence_is_that_of_all_its_holders() -> None:
    fleet = Fleet("a", reports=False)
    fleet.pass_time(10_000)
    assert states(fleet) == {"a": "ready"}
    work = await fleet.run(session(), "1")
    fleet.pass_time(659)
    assert states(fleet) == {"a": "ready"}
    fleet.pass_time(1)
    assert states(fleet) == {"a": "silent"}
    await fleet.beat(work)
    assert states(fleet) == {"a": "ready"}


async def test_a_machine_that_is_no_longer_in_the_fleet_is_shown_while_it_holds_something() -> None:
    fleet = Fleet("a")
    work = await fleet.run(session(), "1")
    fleet.engine.books.set_inventory(machines("b"))
    assert states(fleet) == {"b": "ready", "a": "unknown"}
    await fleet.move(work, Phase.STOPPED)
    assert states(fleet) == {"b": "ready"}


def test_a_machine_that_was_silent_is_silent_after_a_restart() -> None:
    fleet = Fleet("a", "b")
    fleet.pass_time(60, heard=["b"])
    books = Books(fleet.engine.books.store, fleet.plugin.clock, machines("a", "b"))
    again = Scheduler(books, Settings())
    assert [it.state.value for it in node_statuses(again)] == ["silent", "ready"]
    assert [node.ready for node in again.fleet().nodes] == [False, True]
    again.hear(["a"])
    assert [it.state.value for it in node_statuses(again)] == ["ready", "ready"]


def test_after_a_restart_each_machine_has_its_time_to_report() -> None:
    fleet = Fleet("a")
    books = Books(fleet.engine.books.store, fleet.plugin.clock, machines("a"))
    again = Scheduler(books, Settings())
    assert [it.state.value for it in node_statuses(again)] == ["ready"]
    fleet.plugin.clock.advance(60)  # type: ignore[attr-defined]
    again.tick()
    assert [it.state.value for it in node_statuses(again)] == ["silent"]


def test_what_a_machine_says_of_itself_outlives_its_silence() -> None:
    fleet = Fleet("a")
    fleet.pass_time(60)
    fleet.engine.learn("a", {"gpu_driver": "590.1"})
    assert [node.ready for node in fleet.engine.books.nodes] == [False]
    fleet.report(["a"])
    assert [(n.ready, n.facts["gpu_driver"]) for n in fleet.engine.books.nodes] == [(True, "590.1")]


async def test_a_cluster_that_stops_answering_gets_no_new_work_and_keeps_its_leases() -> None:
    fleet = Fleet("w1", "w2", "e1", reports=False)
    east = ClusterWithoutProcesses()
    both = Steward(fleet.engine, east)
    fleet.cluster.nodes, east.nodes = ("w1", "w2"), ("e1",)
    await fleet.steward.step()
    await both.step()
    works = [await fleet.run(job(gpus=2), str(n)) for n in range(2)]
    held = {w.lease.node for w in works if w.lease}
    assert len(held) == 2
    for _ in range(80):
        fleet.pass_time(10)
        await both.step()
    assert states(fleet) == {"w1": "silent", "w2": "silent", "e1": "ready"}
    assert set((await fleet.plugin.fleet()).holders.values()) == {w.id for w in works}
    placed = [await fleet.plugin.submit(job(gpus=1), key=f"n{n}") for n in range(4)]
    nodes = [w.lease.node for w in placed if w.lease]
    assert set(nodes) <= {"e1"} and len(nodes) == (0 if "e1" in held else 2)
    await fleet.steward.step()
    assert states(fleet) == {"w1": "ready", "w2": "ready", "e1": "ready"}


async def test_the_steward_reports_for_the_machines_of_its_cluster() -> None:
    fleet = Fleet("a", reports=False)
    fleet.cluster.nodes = ("a",)
    await fleet.steward.step()
    fleet.pass_time(60)
    assert states(fleet) == {"a": "silent"}
    await fleet.steward.step()
    assert states(fleet) == {"a": "ready"}
