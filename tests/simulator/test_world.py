"""The world, by scenarios small enough to be worked out by hand."""

from __future__ import annotations

from math import inf

import pytest

from scheduler_bridge.simulator.contract import Decisions
from scheduler_bridge.simulator.fifo import Fifo
from scheduler_bridge.simulator.jobs import Costs, SimFleet
from tests.simulator.builders import FREE, job, play, scenario, scripted, starts

COSTS = Costs(grace=60, suspend=20, restore=20, start=30)


def test_one_job_waits_for_the_other() -> None:
    jobs = [(0.0, job("a1", 4, 100)), (10.0, job("a2", 4, 50))]
    outcome = play(scenario(jobs, nodes=1), Fifo)
    assert starts(outcome) == {"a1": 0.0, "a2": 100.0}
    assert outcome.records["a2"].ended == 150.0
    assert outcome.meter.busy_seconds == 4 * 150
    # a backlog exists from 10 to 100, and the fleet is full meanwhile
    assert outcome.meter.backlog_seconds == 90
    assert outcome.meter.backlog_busy == 4 * 90


def test_starting_takes_gpus_without_work() -> None:
    outcome = play(scenario([(0.0, job("a1", 2, 100))], costs=COSTS), Fifo)
    assert outcome.records["a1"].ended == 130.0
    assert outcome.losses.starting == 2 * 30
    assert outcome.losses.restoring == 0


def test_owed_is_the_smaller_of_share_and_demand() -> None:
    # a asks for 2 of its 4 GPUs and then for 8; b for nothing
    jobs = [(0.0, job("a1", 2, 100)), (100.0, job("a2", 4, 100, nodes=2))]
    outcome = play(scenario(jobs), Fifo)
    assert outcome.teams["a"].owed == pytest.approx(2 * 100 + 4 * 100)
    assert outcome.teams["a"].delivered == pytest.approx(2 * 100 + 8 * 100)
    assert outcome.teams["b"].owed == 0


def test_unallocated_use_counts_as_delivered_and_apart() -> None:
    jobs = [(0.0, job("a1", 2, 100)), (0.0, job("a2", 1, 100, min_runtime=10.0))]
    team = play(scenario(jobs), Fifo).teams["a"]
    assert (team.delivered, team.unallocated) == (300.0, 200.0)


def test_decisions_are_a_tick_apart() -> None:
    jobs = [(float(at), job(f"a{at}")) for at in range(8)]
    outcome = play(scenario(jobs), Fifo, tick=5.0)
    assert starts(outcome) == {f"a{at}": 5.0 * -(-at // 5) for at in range(8)}


@pytest.mark.parametrize(
    ("more", "ends", "redone", "restoring"),
    [
        # preempted at 200, gone at 260 after 230 s of work; back at 300 with start and restore
        ({"checkpoint_every": 100.0}, 300 + 50 + 500 - 200, 30.0, 20.0),
        ({"checkpoint_every": 300.0}, 300 + 50 + 500, 230.0, 20.0),
        ({"checkpoint_every": inf}, 300 + 50 + 500, 230.0, 20.0),
        # frozen at 200 after 170 s of work, gone at 220
        ({"freezes": True}, 300 + 50 + 500 - 170, 0.0, 20.0),
    ],
    ids=["from its checkpoint", "before its first", "never saves", "frozen"],
)
def test_a_preempted_job_goes_on_from_what_it_saved(
    more: dict[str, float], ends: float, redone: float, restoring: float
) -> None:
    place = ((0, 1),)
    policy, make = scripted(
        {
            0.0: Decisions((("a1", place),)),
            200.0: Decisions((), (("a1", "b1"),)),
            300.0: Decisions((("a1", place),)),
        }
    )
    jobs = [(0.0, job("a1", 1, 500, **more)), (150.0, job("b1", 8, 10, team="b"))]
    outcome = play(scenario(jobs, costs=COSTS, until=5000.0), make)
    assert outcome.records["a1"].ended == ends
    assert (outcome.losses.redone, outcome.losses.restoring) == (redone, restoring)
    assert ("yielded", "a1", 220.0 if more.get("freezes") else 260.0) in policy.told
    assert outcome.records["a1"].returns == [300.0 - (220.0 if more.get("freezes") else 260.0)]
    assert not outcome.violations


def test_a_job_that_ends_within_its_grace_loses_nothing() -> None:
    policy, make = scripted(
        {0.0: Decisions((("a1", ((0, 1),)),)), 90.0: Decisions((), (("a1", "b1"),))}
    )
    jobs = [(0.0, job("a1", 1, 70)), (50.0, job("b1", 8, 10, team="b"))]
    outcome = play(scenario(jobs, costs=COSTS, until=300.0), make)
    assert outcome.records["a1"].ended == 100.0
    assert ("finished", "a1", 100.0) in policy.told
    assert not any(what == "yielded" for what, _, _ in policy.told)
    assert outcome.losses.redone == 0


@pytest.mark.parametrize(
    ("starts_", "fault"),
    [
        ((("a1", ((0, 2),)), ("a2", ((0, 3),))), "gpu_twice"),
        ((("a3", ((0, 2),)),), "gang_broken"),
        ((("a3", ((0, 2), (0, 2))),), "gang_broken"),
        ((("a1", ((0, 1),)),), "gang_broken"),
        ((("a1", ((7, 2),)),), "no_such_node"),
        ((("nobody", ((0, 2),)),), "started_nothing"),
    ],
)
def test_what_breaks_a_rule_is_counted_and_not_done(starts_: tuple, fault: str) -> None:
    _, make = scripted({0.0: Decisions(starts_)})
    jobs = [(0.0, job("a1", 2)), (0.0, job("a2", 3)), (0.0, job("a3", 2, nodes=2))]
    outcome = play(scenario(jobs, until=10.0), make)
    assert outcome.violations == {fault: 1}
    assert sum(record.started is not None for record in outcome.records.values()) <= 1


@pytest.mark.parametrize(
    ("at", "promises", "broken"), [(99, True, 1), (100, True, 0), (99, False, 0)]
)
def test_protection(at: float, promises: bool, broken: int) -> None:
    script = {0.0: Decisions((("a1", ((0, 4),)),)), at: Decisions((), (("a1", "b1"),))}
    _, make = scripted(script, promises_protection=promises)
    jobs = [
        (0.0, job("a1", 4, 500, min_runtime=100.0)),
        (1.0, job("b1", 4, 10, team="b", nodes=2)),
    ]
    outcome = play(scenario(jobs, until=300.0), make)
    assert outcome.violations["protection"] == broken
    assert outcome.unprotected == (at < 100)


def test_ping_pong_is_seen() -> None:
    place = ((0, 4),)
    _, make = scripted(
        {
            0.0: Decisions((("a1", place),)),
            10.0: Decisions((), (("a1", "b1"),)),
            11.0: Decisions((("b1", place),)),
            20.0: Decisions((), (("b1", "a1"),)),
        }
    )
    jobs = [(0.0, job("a1", 4, 500)), (1.0, job("b1", 4, 500, team="b"))]
    outcome = play(scenario(jobs, nodes=1, until=100.0), make)
    assert outcome.ping_pong == 1
    assert outcome.served == [1.0]


def test_who_does_not_run_cannot_be_preempted() -> None:
    _, make = scripted({0.0: Decisions((), (("a1", "a2"),))})
    outcome = play(scenario([(0.0, job("a1")), (0.0, job("a2"))], until=5.0), make)
    assert outcome.violations == {"preempted_nothing": 1}


def test_what_still_runs_at_the_end_is_measured() -> None:
    outcome = play(scenario([(0.0, job("a1", 2, 1000))], until=100.0), Fifo)
    assert outcome.ended_at == 100
    assert outcome.teams["a"].delivered == 200
    assert not outcome.violations


def test_two_jobs_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="two jobs with the id a1"):
        play(scenario([(0.0, job("a1")), (1.0, job("a1"))]), Fifo)


@pytest.mark.parametrize(
    ("shares", "said"), [({"a": 1.5}, "150%; 100% is the limit"), ({"a": -0.1}, "negative")]
)
def test_absurd_shares_are_refused(shares: dict[str, float], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        SimFleet(1, 1, shares)


@pytest.mark.parametrize("grace", [-1.0, inf, float("nan")])
def test_absurd_costs_are_refused(grace: float) -> None:
    with pytest.raises(ValueError, match="`grace`"):
        Costs(grace=grace)
    assert FREE.grace == 0
