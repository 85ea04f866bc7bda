"""What each reference policy does that the others do not, by small tables."""

from __future__ import annotations

import numpy as np
import pytest

from scheduler_bridge.simulator.borrow import Borrow
from scheduler_bridge.simulator.contract import Setting
from scheduler_bridge.simulator.fairshare import FairShare, Usage
from scheduler_bridge.simulator.fifo import Fifo
from scheduler_bridge.simulator.fitting import best_fit
from scheduler_bridge.simulator.jobs import DAY, Costs, JobSpec, SimFleet
from tests.simulator.builders import job, play, scenario, starts


@pytest.mark.parametrize(
    ("free", "gpus", "nodes", "found"),
    [
        ([4, 2, 3], 2, 1, ((1, 2),)),
        ([4, 2, 3], 3, 1, ((2, 3),)),
        ([4, 2, 3], 3, 2, ((2, 3), (0, 3))),
        ([4, 4, 4], 4, 2, ((0, 4), (1, 4))),
        ([4, 2, 3], 3, 3, None),
        ([1, 1, 1], 2, 1, None),
    ],
)
def test_best_fit_leaves_the_largest_holes(free, gpus, nodes, found) -> None:
    assert best_fit(np.array(free), gpus, nodes) == found


# -- first come, first served ------------------------------------------------------------------


def test_the_head_blocks_everybody() -> None:
    arrivals = [
        (0.0, job("running", 4, 100)),
        (1.0, job("gang", 4, 100, nodes=2)),
        (2.0, job("small", 1, 10)),
    ]
    assert starts(play(scenario(arrivals), Fifo))["small"] == 200.0


# -- fair share with backfill ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "started"),
    [(97.0, 2.0), (99.0, 200.0)],
    ids=["ends before the head's reservation", "would end after it"],
)
def test_backfill_passes_only_what_does_not_delay_the_head(limit: float, started: float) -> None:
    arrivals = [
        (0.0, job("running", 4, 100, limit=100.0)),
        (1.0, job("gang", 4, 100, nodes=2)),
        (2.0, job("small", 1, 10, limit=limit)),
    ]
    outcome = play(scenario(arrivals), FairShare)
    assert starts(outcome) == {"running": 0.0, "gang": 100.0, "small": started}


def test_backfill_uses_what_the_head_does_not_need_for_as_long_as_it_likes() -> None:
    arrivals = [
        (0.0, job("running", 3, 100, limit=100.0)),
        (1.0, job("head", 2, 100, nodes=2)),
        (2.0, job("long", 2, 900, limit=1000.0)),
    ]
    # at 100 the head takes 2 of 4 GPUs on both machines, which leaves 2 on the second one now
    assert starts(play(scenario(arrivals), FairShare))["long"] == 2.0


def test_who_has_used_less_of_its_share_goes_first() -> None:
    arrivals = [
        (0.0, job("a1", 8, 1000, limit=2000.0)),
        (1.0, job("a2", 8, 10)),
        (2.0, job("b1", 8, 10, team="b")),
    ]
    outcome = play(scenario(arrivals, nodes=1, gpus=8), FairShare)
    assert starts(outcome) == {"a1": 0.0, "b1": 1000.0, "a2": 1010.0}


def test_usage_halves_and_factors_compare_it_with_shares() -> None:
    usage = Usage({"a": 0.75, "b": 0.25}, half_life=100.0)
    assert usage.factors() == {"a": 1.0, "b": 1.0}
    usage.change("a", 3, 0.0)
    usage.change("b", 1, 0.0)
    usage.change("a", -3, 10.0)
    usage.change("b", -1, 10.0)
    assert usage.factors() == pytest.approx({"a": 0.5, "b": 0.5})
    usage.advance(110.0)
    assert usage.used == pytest.approx({"a": 15.0, "b": 5.0})


def test_age_counts_no_further_than_its_limit() -> None:
    fair = FairShare(Setting(SimFleet(1, 8, {"a": 1.0}), Costs(), _NoReports()))
    week, year = (fair._entry(JobSpec("x", "a", 1), 0.0, days * DAY)[0] for days in (7, 365))
    day = fair._entry(JobSpec("x", "a", 1), 0.0, DAY)[0]
    assert week == year < day


class _NoReports:
    def saved_at(self, job_id: str, now: float) -> float | None:
        return None


# -- quotas with borrowing ---------------------------------------------------------------------


def test_what_others_leave_unused_is_borrowed_and_taken_back_newest_first() -> None:
    arrivals = [
        (0.0, job("a1", 4, 900)),
        (1.0, job("a2", 2, 900)),
        (2.0, job("a3", 2, 900)),
        (10.0, job("b1", 2, 100, team="b")),
    ]
    outcome = play(scenario(arrivals), Borrow)
    assert [(it.victim, it.preemptor) for it in outcome.preempted] == [("a3", "b1")]
    assert outcome.records["b1"].started == 10.0 + 1.0


def test_no_more_victims_than_needed() -> None:
    arrivals = [
        (0.0, job("a1", 3, 900)),
        (1.0, job("a2", 1, 900)),
        (2.0, job("a3", 1, 900)),
        (3.0, job("a4", 3, 900)),
        (10.0, job("b1", 4, 100, team="b")),
    ]
    # a4 and a3 share the second machine; a2 on the first one is not given up for it
    outcome = play(scenario(arrivals, until=50.0), Borrow)
    assert {it.victim for it in outcome.preempted} == {"a3", "a4"}


def test_nobody_within_the_quota_loses_anything() -> None:
    arrivals = [
        (0.0, job("a1", 4, 900)),
        (1.0, job("b1", 4, 900, team="b")),
        (10.0, job("b2", 4, 100, team="b")),
    ]
    outcome = play(scenario(arrivals), Borrow)
    assert outcome.preempted == []
    assert outcome.records["b2"].started == 900.0


def test_lower_priority_is_taken_back_first() -> None:
    arrivals = [
        (0.0, job("low", 4, 900, priority=0)),
        (1.0, job("normal", 4, 900)),
        (10.0, job("b1", 4, 100, team="b")),
    ]
    outcome = play(scenario(arrivals), Borrow)
    assert [it.victim for it in outcome.preempted] == ["low"]


def test_whoever_others_left_for_is_served_before_older_ones_of_its_team() -> None:
    arrivals = [
        (0.0, job("a1", 4, 900)),
        (1.0, job("a2", 4, 900)),
        (2.0, job("wide", 4, 100, team="b", nodes=2)),
        (3.0, job("fits", 4, 100, team="b")),
    ]
    outcome = play(scenario(arrivals, costs=Costs(grace=5, start=0, restore=0)), Borrow)
    assert [(it.victim, it.preemptor) for it in outcome.preempted][:1] == [("a2", "fits")]
    assert outcome.records["fits"].started == 8.0
