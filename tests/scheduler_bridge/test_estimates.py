"""When waiting work will start: intervals from what others waited, and no answer where nobody knows."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_bridge.policy.estimates import (
    ENOUGH,
    PROBABILITY,
    REMEMBERED,
    History,
    Tails,
    Waited,
    classes,
    estimate,
    size_of,
    survival_times,
)
from scheduler_bridge.policy.values import WaitReason
from tests.scheduler_bridge.fleets import pending

NOW = 1_000_000.0


def waited(seconds: float, **more: Any) -> Waited:
    return Waited(seconds, **{"gpus": 1, "team": "red", "is_allocated": True, **more})


def history(*waits: Waited) -> History:
    made = History()
    for each in waits:
        made.add(each)
    return made


def hundred(**more: Any) -> History:
    """Waits of 1, 2, ... 100 s."""
    return history(*(waited(float(s), **more) for s in range(1, 101)))


@pytest.mark.parametrize(
    ("gpus", "size"), [(0, 0), (1, 1), (2, 2), (3, 3), (4, 3), (5, 4), (8, 4), (9, 5), (512, 10)]
)
def test_sizes_double(gpus: int, size: int) -> None:
    assert size_of(gpus) == size


def test_the_interval_leaves_out_a_tenth_on_either_side() -> None:
    assert hundred().rest(waited(0)) == (10.0, 90.0)


def test_who_has_waited_is_compared_with_those_that_waited_longer_still() -> None:
    low, high = hundred().rest(waited(50)) or (0.0, 0.0)
    assert 50 + low == pytest.approx(55, abs=1) and 50 + high == pytest.approx(95, abs=1)


def test_those_that_wait_still_make_it_longer() -> None:
    known = hundred()
    known.still_waiting([waited(200.0) for _ in range(100)])
    low, high = known.rest(waited(0)) or (0.0, 0.0)
    assert low > 10 and high == inf, "half of all have waited for 200 s and nobody knows how long"


def test_the_narrowest_class_with_enough_of_them_counts() -> None:
    known = history(
        *(waited(10.0) for _ in range(ENOUGH)),
        *(waited(500.0, team="blue") for _ in range(3 * ENOUGH)),
    )
    assert known.rest(waited(0)) == (10.0, 10.0)
    assert known.rest(waited(0, team="green")) == (10.0, 500.0)


def test_how_many_were_ahead_counts() -> None:
    known = history(
        *(waited(5.0, ahead=0) for _ in range(ENOUGH)),
        *(waited(900.0, ahead=40) for _ in range(ENOUGH)),
    )
    assert known.rest(waited(0, ahead=0)) == (5.0, 5.0)
    assert known.rest(waited(0, ahead=50)) == (900.0, 900.0)


def test_too_few_say_nothing() -> None:
    assert history(*(waited(1.0) for _ in range(ENOUGH - 1))).rest(waited(0)) is None
    assert hundred().rest(waited(0, gpus=64)) is None
    assert hundred().rest(waited(99.0)) is None


def test_old_waits_are_forgotten() -> None:
    known = history(*(waited(1e6) for _ in range(REMEMBERED)))
    for _ in range(REMEMBERED):
        known.add(waited(1.0))
    assert known.rest(waited(0)) == (1.0, 1.0)


@given(st.lists(st.floats(0, 1e6), min_size=ENOUGH, max_size=80), st.floats(0, 1e3))
def test_an_interval_is_one_and_lies_ahead(waits: list[float], elapsed: float) -> None:
    rest = history(*map(waited, waits)).rest(waited(elapsed))
    if rest is not None:
        assert 0 <= rest[0] <= rest[1]


@given(st.lists(st.floats(1, 1e5), min_size=1, max_size=60))
def test_without_anybody_waiting_these_are_plain_quantiles(waits: list[float]) -> None:
    low, high = survival_times(np.array(waits), np.array([]), 0.0, (0.9, 0.1))
    assert low in waits and high in waits
    # at least so many had started by then
    assert sum(each <= low for each in waits) >= 0.1 * len(waits) - 1e-6
    assert sum(each <= high for each in waits) >= 0.9 * len(waits) - 1e-6


def test_of_many_the_promised_share_comes_true() -> None:
    draws = np.random.default_rng(7).lognormal(5, 1.5, 4000)
    known = history(*(waited(float(seconds)) for seconds in draws[:1000]))
    low, high = known.rest(waited(0)) or (0.0, 0.0)
    share = float(np.mean((draws[1000:] >= low) & (draws[1000:] <= high)))
    assert share == pytest.approx(PROBABILITY, abs=0.04)


def test_each_class_is_wider_than_the_one_before() -> None:
    one = waited(1.0, ahead=3)
    assert len(set(classes(one))) == 5
    assert set(classes(replace(one, ahead=None))) <= set(classes(one))


# -- the estimate ----------------------------------------------------------------------------


def told(
    reason: WaitReason = WaitReason.NO_FREE_GPUS, known: History | None = None, **more: Any
) -> Any:
    item = pending("p", 1, since=NOW, min_runtime=more.pop("min_runtime", 60.0))
    return estimate(item, reason, known or History(), NOW, **more)


def test_from_history() -> None:
    found = told(known=hundred())
    assert (found.earliest, found.latest, found.basis) == (NOW + 10, NOW + 90, "history")
    assert found.probability == PROBABILITY


def test_a_reservation_ends_the_interval() -> None:
    found = told(known=hundred(), starts_by=NOW + 40)
    assert (found.earliest, found.latest) == (NOW + 10, NOW + 40)
    alone = told(starts_by=NOW + 40)
    assert (alone.earliest, alone.latest, alone.basis) == (NOW, NOW + 40, "reservation")


def test_what_runs_on_slack_is_promised_nothing() -> None:
    assert not told(starts_by=NOW + 40, min_runtime=0.0).is_known


@pytest.mark.parametrize(
    ("reason", "word"),
    [
        (WaitReason.TOO_LARGE, "no_machine"),
        (WaitReason.NO_NODE_FITS, "no_machine"),
        (WaitReason.NO_READY_NODE, "no_machine"),
        (WaitReason.PREEMPTION_PAUSED, "paused"),
    ],
)
def test_no_estimate_where_nobody_can_know(reason: WaitReason, word: str) -> None:
    found = told(reason, known=hundred(), starts_by=NOW + 40)
    assert (found.latest, found.reason) == (None, word)


def test_no_estimate_where_too_little_is_known() -> None:
    assert told().reason == "too_few_started"
    known = hundred()
    known.still_waiting([waited(200.0) for _ in range(100)])
    assert told(known=known).reason == "too_many_wait"


def test_gpus_that_are_being_freed() -> None:
    found = told(WaitReason.BEING_FREED, freed_by=NOW + 30)
    assert (found.latest, found.basis) == (NOW + 30, "freed")


def test_who_started_at_once_did_not_wait() -> None:
    known = history(*(waited(0.1) for _ in range(1000)), *(waited(60.0) for _ in range(ENOUGH)))
    assert known.rest(waited(0)) == (60.0, 60.0)


@pytest.mark.parametrize("trend", [1.0, 1.0005, 0.9995])
def test_also_of_waits_that_grow_or_shrink_the_promised_share_comes_true(trend: float) -> None:
    """Each wait is told an estimate first, then known; the share counts after a time of learning."""
    rng, known, right = np.random.default_rng(3), History(), []
    for number in range(4000):
        actual = float(rng.lognormal(5, 1.0)) * trend**number
        rest = known.rest(waited(0))
        if rest is not None:
            early, late = actual < rest[0], actual > rest[1]
            known.tails = known.tails.after(early=early, late=late)
            right.append(not early and not late)
        known.add(waited(max(actual, 1.0)))
    assert float(np.mean(right[500:])) == pytest.approx(PROBABILITY, abs=0.03)


@given(st.lists(st.sampled_from(["early", "late", "right"]), max_size=300))
def test_whatever_comes_an_interval_leaves_out_something_and_not_all(outcomes: list[str]) -> None:
    tails = Tails()
    for outcome in outcomes:
        tails = tails.after(early=outcome == "early", late=outcome == "late")
    assert 0 < tails.early <= 0.4 and 0 < tails.late <= 0.4
