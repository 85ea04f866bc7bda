"""What holds for every plan, whatever the inputs."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_bridge.model.phases import Kind
from scheduler_bridge.policy.planner import plan
from scheduler_bridge.policy.values import (
    FleetState,
    NodeState,
    Pending,
    Plan,
    Rules,
    Running,
)

NOW = 1000.0
TEAMS = st.sampled_from(["red", "blue", "green"])


@st.composite
def situations(draw: st.DrawFn) -> tuple[FleetState, list[Pending], list[Running], Rules]:
    sizes = draw(st.lists(st.integers(0, 4), min_size=1, max_size=3))
    nodes = tuple(
        NodeState(f"n{n}", tuple(f"n{n}g{g}" for g in range(size)), draw(st.booleans()) or n == 0)
        for n, size in enumerate(sizes)
    )
    running, holders = draw(_running(nodes))
    pending = [
        Pending(
            f"p{index}",
            team=draw(TEAMS),
            gpus=draw(st.integers(0, 4)),
            nodes=draw(st.integers(1, 2)),
            priority=draw(st.integers(0, 3)),
            since=float(draw(st.integers(0, 5))),
            returning=draw(st.booleans()),
        )
        for index in range(draw(st.integers(0, 6)))
    ]
    gpus = [gpu for node in nodes for gpu in node.gpus]
    owners = st.sampled_from([*(p.id for p in pending), "gone"])
    marks = draw(st.dictionaries(st.sampled_from(gpus), owners)) if gpus else {}
    limits = draw(st.dictionaries(TEAMS, st.integers(0, 4)))
    rules = Rules(limits, draw(st.none() | st.integers(0, 6)), draw(st.booleans()))
    return FleetState(nodes, holders, marks), pending, running, rules


@st.composite
def _running(draw: st.DrawFn, nodes: tuple[NodeState, ...]) -> tuple[list[Running], dict[str, str]]:
    running: list[Running] = []
    holders: dict[str, str] = {}
    for node in nodes:
        free = list(node.gpus)
        while free and draw(st.booleans()):
            taken = tuple(free.pop() for _ in range(draw(st.integers(1, len(free)))))
            name = f"r{len(running)}"
            if draw(st.integers(0, 9)) == 0:
                name = f"lingering{len(holders)}"  # a lease that no running workload stands for
            else:
                running.append(
                    Running(
                        name,
                        kind=draw(st.sampled_from(list(Kind))),
                        team=draw(TEAMS),
                        gpus=taken,
                        priority=draw(st.integers(0, 3)),
                        since=float(draw(st.integers(0, 5))),
                        preemptible=draw(st.booleans()),
                        idle_since=draw(st.none() | st.just(5.0)),
                        yields_from=draw(st.sampled_from([0.0, NOW + 1])),
                        leaving=draw(st.booleans()),
                    )
                )
            holders.update(dict.fromkeys(taken, name))
    return running, holders


Situation = tuple[FleetState, list[Pending], list[Running], Rules]


def decide(situation: Situation) -> Plan:
    fleet, pending, running, rules = situation
    return plan(fleet, pending, running, rules, NOW)


@given(situations())
@settings(max_examples=300, deadline=None)
def test_no_gpu_is_given_twice(situation: Situation) -> None:
    fleet = situation[0]
    decided = decide(situation)
    given_away = [gpu for p in decided.placements for gpu in p.gpus]
    assert len(given_away) == len(set(given_away))
    assert not set(given_away) & set(fleet.holders)
    ready = {gpu for node in fleet.nodes if node.ready for gpu in node.gpus}
    assert set(given_away) <= ready
    assert not set(given_away) & set(decided.earmarks)


@given(situations())
@settings(max_examples=300, deadline=None)
def test_gangs_are_whole(situation: Situation) -> None:
    wanted = {p.id: p for p in situation[1]}
    for placement in decide(situation).placements:
        item = wanted[placement.id]
        assert len(placement.assignments) == item.nodes
        assert len({a.node for a in placement.assignments}) == item.nodes
        assert all(len(a.gpus) == item.gpus for a in placement.assignments)


@given(situations())
@settings(max_examples=300, deadline=None)
def test_everybody_is_placed_or_told_why(situation: Situation) -> None:
    decided = decide(situation)
    answered = [p.id for p in decided.placements] + [w.id for w in decided.waits]
    assert Counter(answered) == Counter(p.id for p in situation[1])
    assert [w.position for w in decided.waits] == list(range(1, len(decided.waits) + 1))


@given(situations(), st.randoms(use_true_random=False))
@settings(max_examples=200, deadline=None)
def test_the_order_of_the_inputs_does_not_matter(situation: Situation, random: object) -> None:
    fleet, pending, running, rules = situation
    shuffled = [list(pending), list(running)]
    for items in shuffled:
        random.shuffle(items)  # type: ignore[attr-defined]
    assert decide(situation) == plan(fleet, shuffled[0], shuffled[1], rules, NOW)


@given(situations())
@settings(max_examples=300, deadline=None)
def test_team_limits_hold(situation: Situation) -> None:
    _, pending, running, rules = situation
    team = {p.id: p.team for p in pending}
    used: Counter[str] = Counter()
    for item in running:
        used[item.team] += len(item.gpus)
    before = dict(used)
    for placement in decide(situation).placements:
        used[team[placement.id]] += len(placement.gpus)
    for name, count in used.items():
        limit = rules.limit_of(name)
        assert limit is None or count <= max(limit, before.get(name, 0))


@given(situations())
@settings(max_examples=300, deadline=None)
def test_victims_are_allowed_and_enough(situation: Situation) -> None:
    _, pending, running, rules = situation
    decided = decide(situation)
    by_id = {item.id: item for item in running}
    assert rules.preemption or not decided.preemptions
    assert len({p.victim for p in decided.preemptions}) == len(decided.preemptions)
    for preemption in decided.preemptions:
        victim = by_id[preemption.victim]
        assert victim.preemptible and not victim.leaving and victim.yields_from <= NOW
        assert victim.kind is Kind.JOB or victim.idle_since is not None
    wanted = {item.id: item for item in pending}
    for preemptor in {p.preemptor for p in decided.preemptions}:
        item = wanted[preemptor]
        marked = [gpu for gpu, owner in decided.earmarks.items() if owner == preemptor]
        assert len(marked) == item.gpus * item.nodes


@given(situations())
@settings(max_examples=300, deadline=None)
def test_once_victims_are_gone_their_preemptors_are_placed(situation: Situation) -> None:
    fleet, pending, running, rules = situation
    decided = decide(situation)
    preemptors = {p.preemptor for p in decided.preemptions}
    gone = {p.victim for p in decided.preemptions} | {r.id for r in running if r.leaving}
    placed = {p.id: p for p in decided.placements}
    team = {p.id: p for p in pending}
    left = [item for item in running if item.id not in gone]
    left += [
        Running(p.id, Kind.SESSION, team[p.id].team, p.gpus, team[p.id].priority, NOW)
        for p in placed.values()
        if p.gpus
    ]
    holders = {gpu: who for gpu, who in fleet.holders.items() if who not in gone}
    holders |= {gpu: p.id for p in placed.values() for gpu in p.gpus}
    later = plan(
        replace(fleet, holders=holders, earmarks=decided.earmarks),
        [p for p in pending if p.id not in placed],
        left,
        rules,
        NOW,
    )
    assert preemptors <= {p.id for p in later.placements}


@given(situations())
@settings(max_examples=300, deadline=None)
def test_what_does_not_fit_blocks_nobody(situation: Situation) -> None:
    """Without those that wait and hold no promise, the same ones are placed."""
    fleet, pending, running, rules = situation
    fleet = replace(fleet, earmarks={})
    rules = replace(rules, preemption=False)
    running = [replace(item, leaving=False) for item in running]
    first = plan(fleet, pending, running, rules, NOW)
    placed = {p.id for p in first.placements}
    again = plan(fleet, [p for p in pending if p.id in placed], running, rules, NOW)
    assert {p.id for p in again.placements} == placed
