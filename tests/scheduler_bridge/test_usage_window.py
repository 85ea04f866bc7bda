"""How much of the past counts."""

from __future__ import annotations

from math import nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_bridge.model.usage import HOUR_MS, MICRO, TeamBalance
from scheduler_bridge.policy.usage_window import Balances, UsageWindow

NOW = 500_000
FLAT = UsageWindow(100, None, None)


def balance(window: UsageWindow, *hours: tuple[int, int], part: float = 0.0) -> TeamBalance:
    """Of a team that is owed `net` GPU-seconds more than it had in the hour `ago` hours before."""
    balances = Balances(window)
    for ago, net in hours:
        balances.add(NOW - ago, "a", net * MICRO)
    return balances.at(NOW * HOUR_MS + int(part * HOUR_MS), {})["a"]


@pytest.mark.parametrize(
    ("window", "hours", "expected", "forgiven"),
    [
        pytest.param(FLAT, [(0, 5), (1, 7), (9, -2)], 10, 0, id="all hours count the same"),
        pytest.param(UsageWindow(9, None, None), [(9, 5), (10, 7)], 5, 0, id="look-back"),
        pytest.param(
            UsageWindow(100, 4.0, None), [(0, 8), (1, 8), (5, 8), (9, -8)], 18, 0, id="half-life"
        ),
        pytest.param(
            UsageWindow(100, None, 4),
            [(1, 3), (4, -5), (5, -7)],
            -2,
            7,
            id="an old debt is forgiven",
        ),
        pytest.param(
            UsageWindow(100, None, 4), [(1, 3), (5, 7)], 10, 0, id="what it was owed it keeps"
        ),
        pytest.param(
            UsageWindow(100, None, 4),
            [(1, 3), (5, -7), (6, 5)],
            3,
            2,
            id="only what is left of a debt is forgiven",
        ),
        pytest.param(UsageWindow(100, 4.0, 4), [(5, -8)], 0, 4, id="forgiven as it counts"),
    ],
)
def test_balances(
    window: UsageWindow, hours: list[tuple[int, int]], expected: float, forgiven: float
) -> None:
    found = balance(window, *hours)
    assert (found.balance, found.forgiven) == pytest.approx((expected, forgiven))


def test_hours_age_within_an_hour_too_but_the_present_one_does_not() -> None:
    window = UsageWindow(100, 1.0, None)
    assert balance(window, (0, 8), (1, 8), part=0.5).balance == pytest.approx(8 + 8 / 2**0.5)


def test_what_is_not_stored_yet_counts_too() -> None:
    balances = Balances(FLAT)
    balances.add(NOW, "a", MICRO)
    found = balances.at(NOW * HOUR_MS, {(NOW, "a"): MICRO, (NOW - 101, "b"): 5 * MICRO})
    assert found == {"a": TeamBalance("a", 2.0)}


@given(
    st.lists(st.tuples(st.integers(-3, 12), st.sampled_from("ab"), st.integers(-9, 9)), max_size=20)
)
def test_the_order_in_which_hours_come_and_questions_between_do_not_matter(
    added: list[tuple[int, str, int]],
) -> None:
    window = UsageWindow(8, 3.0, 4)
    asked, plain = Balances(window), Balances(window)
    for ago, team, net in added:
        asked.add(NOW - ago, team, net)
        asked.at(NOW * HOUR_MS, {})
    for ago, team, net in sorted(added):
        plain.add(NOW - ago, team, net)
    found, expected = (it.at(NOW * HOUR_MS, {}) for it in (asked, plain))
    assert {n: b.balance for n, b in found.items() if b.balance} == pytest.approx(
        {n: b.balance for n, b in expected.items() if b.balance}
    )


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ((0, None, None), "lookback_hours"),
        ((10**6, None, None), "lookback_hours"),
        ((1, 0.0, None), "half_life_hours"),
        ((1, nan, None), "half_life_hours"),
        ((1, None, -1), "forgiveness_hours"),
    ],
)
def test_a_window_that_makes_no_sense_is_refused(
    values: tuple[int, float | None, int | None], named: str
) -> None:
    with pytest.raises(ValueError, match=named):
        UsageWindow(*values)
