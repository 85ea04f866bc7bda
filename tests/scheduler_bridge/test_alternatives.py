"""The smallest changes that would start a waiting workload: what is offered helps, and nothing smaller."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from math import inf

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_bridge.policy.alternatives import Alternative, ChangeKind, alternatives
from scheduler_bridge.policy.columns import Columns
from scheduler_bridge.policy.passing import Decided, Desk
from scheduler_bridge.policy.trials import Bench, Moment, Outcome, State
from scheduler_bridge.policy.values import (
    GpuKind,
    NodeState,
    Pending,
    Rules,
    Running,
    TeamRules,
    WaitReason,
)
from tests.scheduler_bridge.fleets import idle, job, pending
from tests.scheduler_bridge.test_planner_invariants import TEAMS, World, worlds

NOW = 10_000.0
HOUR = 3600.0
KINDS = ChangeKind


def machines(*sizes: int, **more: str) -> list[NodeState]:
    return [
        NodeState(f"n{n}", tuple(f"n{n}g{g}" for g in range(size)), **more)  # type: ignore[arg-type]
        for n, size in enumerate(sizes)
    ]


def state(columns: Columns, rules: Rules | None = None) -> State:
    """As it is after a pass of which nothing came but reservations."""
    desk = Desk(columns, rules or Rules(), NOW)
    decided = desk.run()
    return State(columns, rules or Rules(), NOW, decided.reservations, dict(desk.owed))


def offered(
    columns: Columns, item: Pending, rules: Rules | None = None, teams: tuple[str, ...] = ()
) -> dict[ChangeKind, Alternative]:
    columns.submit(item)
    return {a.kind: a for a in alternatives(state(columns, rules), item, teams)}


def busy(name: str, **more: object) -> Running:
    """A job that is protected for another hour."""
    return job(name, **{"since": NOW, "yields_from": NOW + HOUR, **more})  # type: ignore[arg-type]


# -- tables ----------------------------------------------------------------------------------


def test_two_gpus_fewer_on_the_machine() -> None:
    columns = Columns(machines(8))
    columns.start(busy("x"), ((0, 2),))
    found = offered(columns, pending("p", 8))
    assert (found[KINDS.GPUS].item.gpus, found[KINDS.GPUS].outcome) == (6, Outcome.NOW)
    assert found[KINDS.GPUS].share == 0.25
    assert KINDS.NODES not in found


def test_as_many_machines_as_there_are_free_ones() -> None:
    columns = Columns(machines(8, 8, 8, 8))
    columns.start(busy("x"), ((3, 1),))
    found = offered(columns, pending("p", 8, nodes=4))
    assert found[KINDS.NODES].item.nodes == 3
    assert found[KINDS.GPUS].item.gpus == 7
    assert next(iter(found)) is KINDS.GPUS, "4 GPUs fewer in all are a smaller change than 8"


def test_a_protection_that_ends_before_others_need_the_gpus() -> None:
    columns = Columns(machines(8))
    columns.start(busy("x", ends_by=NOW + HOUR, preemptible=False), ((0, 4),))
    columns.submit(pending("big", 8, min_runtime=HOUR, since=0))
    found = offered(columns, pending("p", 4, min_runtime=8 * HOUR, since=5))
    assert found[KINDS.PROTECTION].item.min_runtime == HOUR
    assert found[KINDS.PROTECTION].outcome is Outcome.NOW


def test_no_protection_where_the_rest_is_guaranteed_to_others() -> None:
    columns = Columns(machines(8))
    rules = Rules(teams={"red": TeamRules(), "blue": TeamRules(guaranteed=8)})
    found = offered(columns, pending("p", 4, min_runtime=HOUR), rules)
    assert found[KINDS.PROTECTION].item.min_runtime == 0


def test_work_without_protection_is_told_that_a_short_one_would_make_room() -> None:
    columns = Columns(machines(4))
    columns.start(job("x", since=0, is_allocated=False, team="blue"), ((0, 4),))
    found = offered(columns, pending("p", 4, since=50))
    assert found[KINDS.PROTECTION].item.min_runtime == 900
    assert found[KINDS.PROTECTION].outcome is Outcome.MAKES_ROOM


def test_another_cluster_or_model() -> None:
    kinds = {"n0g0": GpuKind("A"), "n1g0": GpuKind("B")}
    nodes = [
        NodeState("n0", ("n0g0",), kinds=kinds, cluster="east"),
        NodeState("n1", ("n1g0",), kinds=kinds, cluster="west"),
    ]
    columns = Columns(nodes)
    columns.start(busy("x"), ((0, 1),))
    by_cluster = offered(columns, pending("p", 1, clusters=("east",)))
    assert by_cluster[KINDS.CLUSTER].item.clusters == ("east", "west")
    by_model = offered(columns, pending("p", 1, models=("A",)))
    assert by_model[KINDS.MODEL].item.models == ("A", "B")


def test_another_team_of_the_user() -> None:
    columns = Columns(machines(4))
    rules = Rules(teams={"red": TeamRules(limit=0)})
    found = offered(columns, pending("p", 1), rules, teams=("red", "blue"))
    assert found[KINDS.TEAM].item.team == "blue"
    assert KINDS.TEAM not in offered(Columns(machines(4)), pending("p", 1), rules, ("red",))


def test_the_moment_names_whose_protection_is_the_last_in_the_way() -> None:
    columns = Columns(machines(4, 4))
    columns.start(
        busy("soon", since=0, yields_from=NOW + 60, team="blue", is_allocated=False), ((0, 4),)
    )
    columns.start(
        busy("later", since=0, yields_from=NOW + 90, team="blue", is_allocated=False), ((1, 4),)
    )
    found = offered(columns, pending("p", 4, nodes=2, min_runtime=HOUR))
    assert found[KINDS.MOMENT].moment == Moment(NOW + 90, ("later",), ends=False)


def test_the_moment_may_be_the_end_of_work_that_may_run_no_longer() -> None:
    columns = Columns(machines(4))
    columns.start(busy("x", ends_by=NOW + 30, preemptible=False), ((0, 4),))
    found = offered(columns, pending("p", 4))
    assert found[KINDS.MOMENT].moment == Moment(NOW + 30, ("x",), ends=True)


def test_nothing_is_offered_that_would_not_help() -> None:
    columns = Columns(machines(4))
    columns.start(busy("x", preemptible=False), ((0, 4),))
    assert offered(columns, pending("p", 4, min_runtime=HOUR), teams=("blue",)) == {}


def test_nothing_is_offered_to_who_starts_anyway_or_is_held_back_by_something_else() -> None:
    columns = Columns(machines(4))
    assert offered(columns, pending("p", 4)) == {}
    blocked = pending("q", 8, blocked=WaitReason.RETRY_LATER)
    assert offered(columns, blocked) == {}
    columns.start(idle("x", since=NOW - HOUR), ((0, 4),))
    assert offered(columns, pending("r", 4)) == {}, "others make room for it"


def test_a_pause_of_preemption_makes_no_room() -> None:
    columns = Columns(machines(4))
    columns.start(idle("x", since=NOW - HOUR), ((0, 2),))
    found = offered(columns, pending("p", 4), Rules(preemption=False))
    assert (found[KINDS.GPUS].item.gpus, found[KINDS.GPUS].outcome) == (2, Outcome.NOW)


def test_a_snapshots_size_cannot_be_changed() -> None:
    columns = Columns(machines(4))
    columns.start(busy("x"), ((0, 2),))
    item = pending("p", 4, returning=True, demands={"kernel": "6"})
    assert set(offered(columns, item)) <= {KINDS.TEAM, KINDS.MOMENT}


def test_looking_changes_nothing() -> None:
    columns = Columns(machines(8))
    columns.start(busy("x"), ((0, 4),))
    columns.start(job("y", since=0, is_allocated=False), ((0, 2),))
    item = pending("p", 8, min_runtime=HOUR)
    columns.submit(item)
    now = state(columns)
    before = deepcopy((columns.free.tolist(), columns.promised, columns.queue.items, now.owed))
    first = alternatives(now, item)
    assert alternatives(now, item) == first
    assert (columns.free.tolist(), columns.promised, columns.queue.items, now.owed) == before


# -- properties ------------------------------------------------------------------------------


def settled(world: World) -> tuple[World, Desk, Decided] | None:
    """The world when a pass brings nothing new any more."""
    for _ in range(6):
        desk = Desk(world.columns, world.rules, world.now)
        decided = desk.run()
        if not decided.placements and not decided.preemptions:
            return world, desk, decided
        world.step()
    return None


def helps(world: World, changed: Pending) -> bool:
    """Whether a whole pass places it or makes room for it, in place of the original."""
    columns = deepcopy(world.columns)
    columns.submit(changed)
    decided = Desk(columns, world.rules, world.now).run()
    reasons = {wait.id: wait.reason for wait in decided.waits}
    starts = changed.id in dict(decided.placements)
    return starts or reasons.get(changed.id) is WaitReason.BEING_FREED


def smaller(item: Pending, change: Alternative) -> Iterator[Pending]:
    """All changes of the kind that are smaller than the one offered."""
    if change.kind is KINDS.GPUS:
        yield from (replace(item, gpus=g) for g in range(change.item.gpus + 1, item.gpus))
    elif change.kind is KINDS.NODES:
        yield from (replace(item, nodes=n) for n in range(change.item.nodes + 1, item.nodes))
    elif change.kind is KINDS.PROTECTION and item.is_allocated:
        least = change.item.min_runtime + 60
        longest = min(item.min_runtime, item.max_runtime, least + 9 * 60)
        yield from (replace(item, min_runtime=s) for s in np.arange(least, longest, 60.0))


@settings(max_examples=100, deadline=None)
@given(worlds(), st.data())
def test_every_alternative_helps_and_none_smaller_of_its_kind(
    world: World, data: st.DataObject
) -> None:
    if (found := settled(world)) is None:
        return
    _, desk, decided = found
    waiting = [item for item in world.columns.queue.items.values() if item.id not in desk.owed]
    if not waiting:
        return
    item = data.draw(st.sampled_from(sorted(waiting, key=lambda it: it.id)))
    now = State(world.columns, world.rules, world.now, decided.reservations, dict(desk.owed))
    for change in alternatives(now, item, TEAMS):
        if change.moment is None:
            assert helps(world, change.item), change
            for less in smaller(item, change):
                assert not helps(world, less), (change, less)


@settings(max_examples=60, deadline=None)
@given(worlds())
def test_at_the_moment_it_starts_and_not_before(world: World) -> None:
    if (found := settled(world)) is None:
        return
    _, desk, decided = found
    for item in list(world.columns.queue.items.values()):
        now = State(world.columns, world.rules, world.now, decided.reservations, dict(desk.owed))
        moment = Bench(now.without(item.id)).moment(item)
        if moment is None or item.id in desk.owed or moment.at <= world.now:
            continue
        assert moment.at < inf
        later = deepcopy(world.columns)
        for name in [r.id for r in later.work.running.values() if r.ends_by <= moment.at]:
            later.end(name)
        there = replace(now.without(item.id), columns=later, now=moment.at)
        assert Bench(there).outcome(item) is not Outcome.WAITS or not world.rules.preemption
