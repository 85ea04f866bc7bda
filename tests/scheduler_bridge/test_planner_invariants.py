"""What may never happen, whatever the fleet, the queue and the budgets: random situations, several
passes long, on the columns that simulator and engine keep."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_bridge.model.phases import Kind
from scheduler_bridge.policy.accounts import Accounts
from scheduler_bridge.policy.columns import Columns, Takes
from scheduler_bridge.policy.passing import Decided, Desk
from scheduler_bridge.policy.rooms import eligible, room
from scheduler_bridge.policy.values import NodeState, Pending, Rules, Running, TeamRules
from scheduler_bridge.policy.victims import Yielders, choose

NOW = 10_000.0
TEAMS = ("red", "blue", "green")


@dataclass
class World:
    """A fleet that does at once what it is told."""

    columns: Columns
    rules: Rules
    now: float = NOW
    victims_for: dict[str, str] | None = None

    def step(self) -> Decided:
        decided = Desk(self.columns, self.rules, self.now).run()
        for name, takes in decided.placements:
            item = self.columns.queue.items[name]
            self.columns.start(started(item, self.now), takes)
        self.columns.promise(decided.promised)
        for preemption in decided.preemptions:
            row = self.columns.work.row_of[preemption.victim]
            self.columns.change(replace(self.columns.work.running[row], leaving=True))
        return decided

    def victims_leave(self) -> None:
        work = self.columns.work
        for name in [work.ids[r] for r in np.flatnonzero(work.leaving[: len(work.ids)])]:
            self.columns.end(name)


def started(item: Pending, now: float) -> Running:
    return Running(
        item.id,
        Kind.JOB,
        item.team,
        (),
        item.priority,
        now,
        yields_from=now + item.min_runtime,
        is_allocated=item.is_allocated,
        ends_by=now + item.max_runtime,
    )


@st.composite
def worlds(draw: st.DrawFn) -> World:
    sizes = draw(st.lists(st.integers(0, 4), min_size=1, max_size=5))
    nodes = [
        NodeState(
            f"n{n}",
            tuple(f"n{n}g{g}" for g in range(size)),
            ready=draw(st.integers(0, 5)) > 0,
            cluster=draw(st.sampled_from(["a", "b"])),
            rack=draw(st.sampled_from(["x", "y"])),
        )
        for n, size in enumerate(sizes)
    ]
    columns = Columns(nodes)
    for pool, size in enumerate(sizes):
        if size and draw(st.booleans()):
            gpus = draw(st.integers(1, size))
            columns.start(draw(running(f"r{pool}", gpus)), ((pool, gpus),))
    for number in range(draw(st.integers(0, 8))):
        columns.submit(draw(waiting(f"p{number}")))
    limits = st.none() | st.integers(0, 6)
    rules = {
        team: TeamRules(
            limit=draw(limits),
            guaranteed=draw(st.integers(0, 3)),
            lending_limit=draw(st.none() | st.integers(0, 3)),
            borrowing_limit=draw(limits),
            balance=float(draw(st.integers(-9, 9)) * 1000),
            share=draw(st.sampled_from([0.0, 0.2, 0.5])),
        )
        for team in TEAMS
        if draw(st.booleans())
    }
    return World(columns, Rules(teams=rules, default_team_limit=draw(limits)))


@st.composite
def running(draw: st.DrawFn, name: str, gpus: int) -> Running:
    return Running(
        name,
        draw(st.sampled_from(list(Kind))),
        draw(st.sampled_from(TEAMS)),
        (),
        draw(st.integers(0, 3)),
        NOW - draw(st.integers(0, 9000)),
        preemptible=draw(st.integers(0, 4)) > 0,
        idle_since=draw(st.none() | st.just(NOW - 100)),
        yields_from=NOW + draw(st.sampled_from([-100, 100, 5000])),
        is_allocated=draw(st.booleans()),
        saved_at=draw(st.none() | st.just(NOW - 50)),
        preemptions=draw(st.sampled_from([0, 6])),
    )


@st.composite
def waiting(draw: st.DrawFn, name: str) -> Pending:
    return Pending(
        name,
        draw(st.sampled_from(TEAMS)),
        draw(st.integers(0, 4)),
        draw(st.integers(1, 3)),
        draw(st.integers(0, 3)),
        NOW - draw(st.integers(0, 9000)),
        returning=draw(st.booleans()),
        min_runtime=draw(st.sampled_from([0.0, 900.0, 28800.0])),
        max_runtime=draw(st.sampled_from([600.0, float("inf")])),
        clusters=draw(st.sampled_from([(), (), ("a",)])),
        attempts=draw(st.integers(0, 1)),
    )


def held(columns: Columns) -> Counter[int]:
    total: Counter[int] = Counter()
    for takes in columns.work.takes.values():
        total.update(dict(takes))
    return total


@given(worlds())
@settings(max_examples=300, deadline=None)
def test_no_gpu_is_given_twice_and_none_is_lost(world: World) -> None:
    columns = world.columns
    for _ in range(3):
        world.step()
        total = held(columns)
        for pool, size in enumerate(columns.pools.size):
            assert columns.free[pool] >= 0
            assert columns.free[pool] + total[pool] == size
        world.victims_leave()


@given(worlds())
@settings(max_examples=300, deadline=None)
def test_gangs_are_whole_on_different_machines_of_one_cluster_that_is_ready(world: World) -> None:
    items = dict(world.columns.queue.items)
    pools = world.columns.pools
    for name, takes in world.step().placements:
        item = items[name]
        assert [gpus for _, gpus in takes] == [item.gpus] * item.nodes
        assert len({pools.node_of[pool] for pool, _ in takes}) == item.nodes
        assert len({int(pools.cluster[pool]) for pool, _ in takes}) == 1
        assert all(pools.ready[pool] for pool, _ in takes)
        assert not item.clusters or pools.cluster_of[takes[0][0]] in item.clusters


@given(worlds())
@settings(max_examples=300, deadline=None)
def test_protection_is_never_violated(world: World) -> None:
    before = {it.id: it for it in world.columns.work.running.values()}
    for preemption in world.step().preemptions:
        victim = before[preemption.victim]
        assert victim.preemptible and victim.yields_from <= NOW and not victim.leaving
        if victim.kind is Kind.SESSION:
            assert victim.idle_since is not None
        else:
            assert victim.preemptions < world.rules.max_preemptions


@given(worlds())
@settings(max_examples=300, deadline=None)
def test_what_is_freed_goes_to_whom_it_was_freed_for(world: World) -> None:
    first = world.step()
    preemptors = {p.preemptor for p in first.preemptions}
    world.victims_leave()
    assert preemptors <= {name for name, _ in world.step().placements}


@given(worlds())
@settings(max_examples=300, deadline=None)
def test_nobody_is_asked_twice_or_after_somebody_was_asked_for_the_same(world: World) -> None:
    first = world.step()
    again = world.step()
    preemptors = {p.preemptor for p in first.preemptions}
    assert not preemptors & {p.preemptor for p in again.preemptions}
    assert not {p.victim for p in first.preemptions} & {p.victim for p in again.preemptions}


@given(worlds())
@settings(max_examples=300, deadline=None)
def test_a_pass_leaves_nothing_for_the_next_one_to_place(world: World) -> None:
    first = world.step()
    # Where GPUs are kept for some (asked for, or reserved), what a pass gives may change whose turn it
    # is, and so for whom the next one keeps them.
    if not (first.preemptions or first.reservations or world.columns.work.leaving.any()):
        assert world.step().placements == ()


@given(worlds())
@settings(max_examples=300, deadline=None)
def test_nobody_preempts_back_and_forth(world: World) -> None:
    """A victim that waits again never makes its preemptor yield, as long as nothing else changes."""
    first = world.step()
    pairs = {(p.victim, p.preemptor) for p in first.preemptions}
    work = world.columns.work
    gone = {p.victim: work.running[work.row_of[p.victim]] for p in first.preemptions}
    gangs = {name: work.takes[work.row_of[name]] for name in gone}
    world.victims_leave()
    world.step()
    for name, old in gone.items():
        to = tuple(preemptor for victim, preemptor in pairs if victim == name)
        world.columns.submit(waiting_again(old, gangs[name], world.now, to))
    world.now += 30_000.0  # every protection is over
    for _ in range(3):
        for preemption in world.step().preemptions:
            assert (preemption.preemptor, preemption.victim) not in pairs
        world.victims_leave()


def waiting_again(old: Running, takes: Takes, now: float, to: tuple[str, ...]) -> Pending:
    gpus = takes[0][1]
    runtime = 900.0 if old.is_allocated else 0.0
    item = Pending(old.id, old.team, gpus, len(takes), old.priority, now, min_runtime=runtime)
    return replace(item, attempts=1, yielded_to=to)


@given(worlds())
@settings(max_examples=300, deadline=None)
def test_victims_cost_least(world: World) -> None:
    """Exhaustive search over all sets of those who may be asked, for work on one machine."""
    columns = world.columns
    pools, work = columns.pools, columns.work
    accounts = Accounts.of(world.rules, int(pools.size.sum()), work)
    free = np.where(pools.ready, columns.free, 0)
    for item in columns.queue.items.values():
        within = eligible(pools, item)
        if item.nodes != 1 or not item.gpus or room(pools, item, free, within):
            continue
        found = Yielders(work, accounts, NOW).candidates(item)
        making = choose(item, pools, work, found, free, within)
        rows = [int(row) for row in np.flatnonzero(np.isfinite(found.cost))]
        best = cheapest(columns, item, free, within, rows, found.cost)
        assert (making is None) == (best is None)
        if making is not None and best is not None:
            cost = sum(float(found.cost[row]) for row in making.rows)
            assert cost <= best * (1 + 1e-12)


def cheapest(
    columns: Columns,
    item: Pending,
    free: np.ndarray[tuple[int], np.dtype[np.int64]],
    within: np.ndarray[tuple[int], np.dtype[np.bool_]],
    rows: list[int],
    costs: np.ndarray[tuple[int], np.dtype[np.float64]],
) -> float | None:
    best: float | None = None
    for many in range(len(rows) + 1):
        for chosen in combinations(rows, many):
            then = free.copy()
            for row in chosen:
                for pool, gpus in columns.work.takes[row]:
                    then[pool] += gpus
            if room(columns.pools, item, then, within) is not None:
                cost = sum(float(costs[row]) for row in chosen)
                best = cost if best is None else min(best, cost)
    return best


@given(worlds())
@settings(max_examples=200, deadline=None)
def test_the_same_input_gives_the_same_plan(world: World) -> None:
    first = Desk(world.columns, world.rules, NOW).run()
    assert Desk(world.columns, world.rules, NOW).run() == first


@given(worlds())
@settings(max_examples=200, deadline=None)
def test_an_unmet_guarantee_is_claimed_in_the_first_pass(world: World) -> None:
    """If all that stands in the way of a claim on one machine may be asked, it is asked now."""
    columns = world.columns
    pools, work = columns.pools, columns.work
    capacity = int(pools.size[pools.ready].sum())
    accounts = Accounts.of(world.rules, capacity, work)
    claims = [
        item
        for item in columns.queue.items.values()
        if item.nodes == 1 and item.gpus and accounts.claims(item) and not accounts.refusal(item)
    ]
    if len(claims) != 1:
        return
    (claim,) = claims
    able = [
        r
        for r, it in work.running.items()
        if it.kind is Kind.JOB
        and not it.is_allocated
        and it.preemptible
        and it.yields_from <= NOW
        and not it.leaving
        and it.preemptions < 6
    ]
    then = np.where(pools.ready, columns.free, 0)
    for row in able:
        for pool, gpus in work.takes[row]:
            then[pool] += gpus
    if room(pools, claim, then, eligible(pools, claim)) is None:
        return
    decided = Desk(columns, world.rules, NOW).run()
    served = {name for name, _ in decided.placements} | {p.preemptor for p in decided.preemptions}
    assert claim.id in served
