"""What every policy promises, whatever the work."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler_bridge.simulator.borrow import Borrow
from scheduler_bridge.simulator.contract import MakePolicy
from scheduler_bridge.simulator.fairshare import FairShare
from scheduler_bridge.simulator.fifo import Fifo
from scheduler_bridge.simulator.jobs import Costs, SimJob
from scheduler_bridge.simulator.ours import Ours
from tests.simulator.builders import job, play, scenario, starts

POLICIES: list[MakePolicy] = [Fifo, FairShare, Borrow, Ours]
every_policy = pytest.mark.parametrize("make", POLICIES, ids=lambda it: it.name)
COSTS = Costs(grace=5, suspend=2, restore=2, start=3)


@st.composite
def works(draw: Callable[..., int]) -> list[tuple[float, SimJob]]:
    """Up to 25 jobs of two teams on 3 nodes of 4 GPUs, all of which can run."""
    arrivals = []
    for number in range(draw(st.integers(1, 25))):
        nodes = draw(st.sampled_from([1, 1, 1, 2, 3]))
        made = job(
            f"j{number:02d}",
            draw(st.sampled_from([1, 2, 4])),
            draw(st.integers(1, 300)),
            team=draw(st.sampled_from("ab")),
            nodes=nodes,
            min_runtime=float(draw(st.sampled_from([0, 50, 200]))),
            checkpoint_every=draw(st.sampled_from([20.0, inf])),
        )
        arrivals.append((float(draw(st.integers(0, 400))), made))
    return arrivals


@every_policy
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(arrivals=works())
def test_no_rule_is_broken_and_everybody_has_a_turn(
    make: MakePolicy, arrivals: list[tuple[float, SimJob]]
) -> None:
    outcome = play(scenario(arrivals, nodes=3, until=20_000.0, costs=COSTS), make)
    assert not outcome.violations
    assert None not in starts(outcome).values()


@every_policy
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(arrivals=works())
def test_the_same_work_gives_the_same_life(
    make: MakePolicy, arrivals: list[tuple[float, SimJob]]
) -> None:
    what = scenario(arrivals, nodes=3, until=5_000.0, costs=COSTS)
    one, other = play(what, make), play(what, make)
    assert starts(one) == starts(other)
    assert one.preempted == other.preempted


@every_policy
def test_an_empty_fleet_is_used_at_once(make: MakePolicy) -> None:
    arrivals = [(0.0, job(f"j{n}", 1, min_runtime=50.0)) for n in range(8)]
    assert set(starts(play(scenario(arrivals), make)).values()) == {0.0}


@every_policy
def test_a_gang_starts_whole_on_different_machines(make: MakePolicy) -> None:
    arrivals = [(0.0, job("small", 1, 50, min_runtime=50.0)), (1.0, job("gang", 4, nodes=2))]
    outcome = play(scenario(arrivals, until=1_000.0, costs=COSTS), make)
    assert outcome.records["gang"].started is not None
    assert not outcome.violations


@every_policy
def test_work_that_never_fits_does_not_stop_the_world(make: MakePolicy) -> None:
    arrivals = [(0.0, job("small", 1)), (1.0, job("huge", 4, nodes=3, min_runtime=10.0))]
    outcome = play(scenario(arrivals, until=1_000.0), make)
    assert starts(outcome) == {"small": 0.0, "huge": None}


@every_policy
def test_each_has_a_name_of_its_own(make: MakePolicy) -> None:
    outcome = play(scenario([(0.0, job("a"))]), make)
    others = [play(scenario([(0.0, job("a"))]), it).policy for it in POLICIES if it is not make]
    assert outcome.policy not in others
