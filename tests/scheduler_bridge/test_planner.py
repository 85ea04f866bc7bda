"""Who is placed, who waits and why, who yields: sentences as tests."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest

from scheduler_bridge.policy.planner import plan
from scheduler_bridge.policy.values import (
    Plan,
    PreemptionReason,
    Rules,
    Running,
    WaitReason,
)
from tests.scheduler_bridge.fleets import fleet, idle, job, pending, running

NOW = 1000.0


def decide(
    *sizes: int, queue: Any, runs: Any = (), rules: Rules | None = None, **more: Any
) -> Plan:
    runs = tuple(runs)
    return plan(fleet(*sizes, running=runs, **more), queue, runs, rules or Rules(), NOW)


def placed(decided: Plan) -> dict[str, tuple[str, ...]]:
    return {p.id: p.gpus for p in decided.placements}


def reasons(decided: Plan) -> dict[str, WaitReason]:
    return {w.id: w.reason for w in decided.waits}


# -- order -----------------------------------------------------------------------------------


def test_first_come_first_served_inside_a_priority() -> None:
    decided = decide(1, queue=[pending("late", since=2), pending("early", since=1)])
    assert list(placed(decided)) == ["early"]
    assert [(w.id, w.position) for w in decided.waits] == [("late", 1)]


def test_higher_priority_goes_first_inside_a_team() -> None:
    decided = decide(1, queue=[pending("a", since=1), pending("b", since=2, priority=2)])
    assert list(placed(decided)) == ["b"]


def test_a_returning_session_goes_before_higher_priority_of_its_team() -> None:
    queue = [pending("urgent", since=1, priority=3), pending("back", since=2, returning=True)]
    assert list(placed(decide(1, queue=queue))) == ["back"]


def test_priority_does_not_cross_teams() -> None:
    queue = [pending("red", since=1), pending("blue", since=2, team="blue", priority=3)]
    assert list(placed(decide(1, queue=queue))) == ["red"]


def test_the_team_that_holds_less_goes_first() -> None:
    runs = [running("r", "n0g0")]
    queue = [pending("red", since=1), pending("blue", since=2, team="blue")]
    assert list(placed(decide(2, queue=queue, runs=runs))) == ["blue"]


def test_equal_moments_are_ordered_by_id() -> None:
    assert list(placed(decide(1, queue=[pending("b"), pending("a")]))) == ["a"]


# -- place -----------------------------------------------------------------------------------


def test_the_tightest_node_is_taken() -> None:
    assert placed(decide(4, 1, queue=[pending("a")])) == {"a": ("n1g0",)}


def test_a_gang_takes_one_node_each() -> None:
    decided = decide(2, 2, 2, queue=[pending("gang", gpus=2, nodes=2)])
    assert placed(decided) == {"gang": ("n0g0", "n0g1", "n1g0", "n1g1")}


def test_a_gang_is_placed_whole_or_not_at_all() -> None:
    runs = [running("r", "n1g0")]
    decided = decide(2, 2, queue=[pending("gang", gpus=2, nodes=2)], runs=runs)
    assert placed(decided) == {}
    assert reasons(decided) == {"gang": WaitReason.NO_FREE_GPUS}


def test_what_does_not_fit_never_blocks_those_behind() -> None:
    runs = [running("r", "n0g0")]
    decided = decide(2, queue=[pending("big", gpus=2), pending("small", since=5)], runs=runs)
    assert placed(decided) == {"small": ("n0g1",)}


def test_without_gpus_there_is_always_a_place() -> None:
    runs = [running("r", "n0g0")]
    rules = Rules(team_limits={"red": 1})
    assert placed(decide(1, queue=[pending("cpu", gpus=0)], runs=runs, rules=rules)) == {"cpu": ()}


def test_scattered_gpus_do_not_help() -> None:
    runs = [running("a", "n0g0"), running("b", "n1g0")]
    decided = decide(2, 2, queue=[pending("pair", gpus=2)], runs=runs)
    assert reasons(decided) == {"pair": WaitReason.SCATTERED}


def test_a_node_that_is_not_ready_takes_nothing() -> None:
    state = fleet(2)
    state = replace(state, nodes=(replace(state.nodes[0], ready=False),))
    decided = plan(state, [pending("a"), pending("c", gpus=0)], [], Rules(), NOW)
    assert set(reasons(decided).values()) == {WaitReason.NO_READY_NODE}


def test_what_is_larger_than_the_fleet_says_so() -> None:
    decided = decide(2, queue=[pending("a", gpus=3)])
    assert reasons(decided) == {"a": WaitReason.TOO_LARGE}
    assert decided.waits[0].evidence["largest"] == 2


def test_a_workload_with_a_reason_of_its_own_waits_for_it() -> None:
    decided = decide(2, queue=[pending("a", blocked=WaitReason.STILL_LEAVING)])
    assert reasons(decided) == {"a": WaitReason.STILL_LEAVING}


# -- limits ----------------------------------------------------------------------------------


def test_a_team_does_not_exceed_its_limit() -> None:
    runs = [running("r", "n0g0")]
    decided = decide(
        4, queue=[pending("a", gpus=2)], runs=runs, rules=Rules(team_limits={"red": 2})
    )
    assert reasons(decided) == {"a": WaitReason.TEAM_LIMIT}
    assert decided.waits[0].evidence == {
        "needed": 2,
        "free": 3,
        "team": "red",
        "limit": 2,
        "used": 1,
    }


def test_the_limit_counts_what_the_same_pass_gives() -> None:
    queue = [pending("a"), pending("b", since=1), pending("c", team="blue")]
    decided = decide(4, queue=queue, rules=Rules(team_limits={"red": 1}))
    assert set(placed(decided)) == {"a", "c"}
    assert reasons(decided) == {"b": WaitReason.TEAM_LIMIT}


def test_the_default_limit_holds_for_teams_not_named() -> None:
    rules = Rules(team_limits={"red": 4}, default_team_limit=0)
    queue = [pending("a"), pending("b", team="blue")]
    assert set(placed(decide(4, queue=queue, rules=rules))) == {"a"}


def test_an_idle_session_of_the_team_yields_for_its_limit() -> None:
    runs = [idle("own", "n0g0"), idle("others", "n0g1", team="blue", since=1)]
    rules = Rules(team_limits={"red": 1})
    decided = decide(3, queue=[pending("a")], runs=runs, rules=rules)
    assert [p.victim for p in decided.preemptions] == ["own"]


# -- preemption ------------------------------------------------------------------------------


def victims(decided: Plan) -> list[str]:
    return [p.victim for p in decided.preemptions]


YIELDING = [
    ("an idle session of the team", idle("v", "n0g0"), PreemptionReason.IDLE),
    ("an idle session of another team", idle("v", "n0g0", team="blue"), PreemptionReason.IDLE),
    ("an idle session of higher priority", idle("v", "n0g0", priority=3), PreemptionReason.IDLE),
    ("a job of lower priority", job("v", "n0g0", priority=0), PreemptionReason.OUTRANKED),
]
STAYING = [
    ("a busy session", running("v", "n0g0", priority=0)),
    ("a session that may not be preempted", idle("v", "n0g0", preemptible=False)),
    ("an idle session in its protected time", idle("v", "n0g0", yields_from=NOW + 1)),
    ("a job of the same priority", job("v", "n0g0")),
    ("a job of another team", job("v", "n0g0", priority=0, team="blue")),
    ("a job in its protected time", job("v", "n0g0", priority=0, yields_from=NOW + 1)),
    ("a job that may not be preempted", job("v", "n0g0", priority=0, preemptible=False)),
]


@pytest.mark.parametrize(("who", "victim", "why"), YIELDING, ids=[y[0] for y in YIELDING])
def test_yields(who: str, victim: Running, why: PreemptionReason) -> None:
    decided = decide(1, queue=[pending("a")], runs=[victim])
    assert [(p.victim, p.preemptor, p.reason) for p in decided.preemptions] == [("v", "a", why)]
    assert reasons(decided) == {"a": WaitReason.BEING_FREED}
    assert decided.earmarks == {"n0g0": "a"}


@pytest.mark.parametrize(("who", "victim"), STAYING, ids=[s[0] for s in STAYING])
def test_stays(who: str, victim: Running) -> None:
    decided = decide(1, queue=[pending("a")], runs=[victim])
    assert decided.preemptions == ()
    assert reasons(decided) == {"a": WaitReason.NO_FREE_GPUS}


def test_a_returning_session_outranks_jobs_of_its_own_priority() -> None:
    decided = decide(1, queue=[pending("a", returning=True)], runs=[job("v", "n0g0")])
    assert [(p.victim, p.reason) for p in decided.preemptions] == [
        ("v", PreemptionReason.RETURNING_SESSION)
    ]


def test_the_longest_idle_session_yields_first() -> None:
    runs = [idle("short", "n0g0", since=900), idle("long", "n0g1", since=100)]
    assert victims(decide(2, queue=[pending("a")], runs=runs)) == ["long"]


def test_an_idle_session_yields_before_a_job() -> None:
    runs = [job("j", "n0g0", priority=0), idle("s", "n0g1")]
    assert victims(decide(2, queue=[pending("a")], runs=runs)) == ["s"]


def test_the_youngest_job_yields_first_among_equals() -> None:
    runs = [job("old", "n0g0", priority=0, since=1), job("new", "n0g1", priority=0, since=2)]
    assert victims(decide(2, queue=[pending("a")], runs=runs)) == ["new"]


def test_nobody_yields_in_vain() -> None:
    runs = [idle("v", "n0g0"), running("busy", "n0g1")]
    decided = decide(2, queue=[pending("a", gpus=2)], runs=runs)
    assert decided.preemptions == ()


def test_no_victim_is_one_too_many() -> None:
    runs = [idle("one", "n0g0", since=1), idle("two", "n1g0", "n1g1", since=2)]
    assert victims(decide(1, 2, queue=[pending("a", gpus=2)], runs=runs)) == ["two"]


def test_free_gpus_and_a_victim_together_make_a_place() -> None:
    decided = decide(2, queue=[pending("a", gpus=2)], runs=[idle("v", "n0g0")])
    assert victims(decided) == ["v"]
    assert decided.earmarks == {"n0g0": "a", "n0g1": "a"}


def test_two_waiting_workloads_do_not_share_a_victim() -> None:
    queue = [pending("a"), pending("b", since=1)]
    decided = decide(1, queue=queue, runs=[idle("v", "n0g0")])
    assert [(p.victim, p.preemptor) for p in decided.preemptions] == [("v", "a")]
    assert reasons(decided)["b"] is WaitReason.NO_FREE_GPUS


def test_nobody_else_is_asked_while_a_victim_leaves() -> None:
    runs = [idle("leaving", "n0g0", leaving=True), idle("other", "n0g1")]
    decided = decide(2, queue=[pending("a")], runs=runs, earmarks={"n0g0": "a"})
    assert decided.preemptions == ()
    assert decided.earmarks == {"n0g0": "a"}
    assert decided.waits[0].evidence == {"gpus": 1, "from": ["leaving"]}


def test_a_session_that_leaves_anyway_makes_room_without_another_victim() -> None:
    runs = [idle("leaving", "n0g0", leaving=True), idle("other", "n0g1")]
    decided = decide(2, queue=[pending("a"), pending("b", since=1)], runs=runs)
    assert [(p.victim, p.preemptor) for p in decided.preemptions] == [("other", "b")]
    assert reasons(decided)["a"] is WaitReason.BEING_FREED


def test_freed_gpus_are_kept_for_the_preemptor() -> None:
    queue = [pending("a", gpus=2, since=5), pending("urgent", priority=3)]
    runs = [idle("v", "n0g1", leaving=True)]
    decided = decide(2, queue=queue, runs=runs, earmarks={"n0g0": "a", "n0g1": "a"})
    assert placed(decided) == {}
    assert reasons(decided)["urgent"] is WaitReason.PROMISED
    decided = decide(2, queue=queue, earmarks={"n0g0": "a", "n0g1": "a"})
    assert placed(decided) == {"a": ("n0g0", "n0g1")}
    assert decided.earmarks == {}


def test_earmarks_of_a_workload_that_left_the_queue_are_gone() -> None:
    decided = decide(1, queue=[pending("b")], earmarks={"n0g0": "gone"})
    assert placed(decided) == {"b": ("n0g0",)}


def test_earmarks_are_let_go_when_a_victim_stays_after_all() -> None:
    runs = [running("v", "n0g0")]
    queue = [pending("a", gpus=2), pending("b", since=1)]
    decided = decide(2, queue=queue, runs=runs, earmarks={"n0g0": "a", "n0g1": "a"})
    assert placed(decided) == {"b": ("n0g1",)}
    assert decided.earmarks == {}


def test_a_pause_lets_nobody_yield_and_says_so() -> None:
    rules = Rules(preemption=False)
    decided = decide(1, queue=[pending("a")], runs=[idle("v", "n0g0")], rules=rules)
    assert (decided.preemptions, dict(decided.earmarks)) == ((), {})
    assert reasons(decided) == {"a": WaitReason.PREEMPTION_PAUSED}
    assert decided.waits[0].evidence == {"would_yield": ["v"]}


def test_inputs_stay_as_they_were() -> None:
    runs = (idle("v", "n0g0"),)
    state = fleet(1, running=runs)
    queue = [pending("a"), pending("b")]
    before = copy.deepcopy((state, queue, runs))
    plan(state, queue, runs, Rules(), NOW)
    assert (state, queue, runs) == before
