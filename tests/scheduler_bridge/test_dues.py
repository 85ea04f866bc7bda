"""Who is due what, who lends to whom, and whose guarantees others use: tables and properties."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_bridge.model.usage import TeamSums
from scheduler_bridge.policy.dues import Due, Held, Moment, Tree, apportion, dues
from tests.builders.teams import team, tree

FLEET = 10
TWO = {"a": Due(5000), "b": Due(5000)}
NESTED = {
    "a": Due(6000),
    "x": Due(2000, parent="a"),
    "y": Due(2000, parent="a"),
    "b": Due(4000),
}


def moment(
    due: Mapping[str, Due], held: Mapping[str, tuple[int, int]], capacity: int = FLEET
) -> Moment:
    """(held, waiting) GPUs by team."""
    standing = {name: Held(gpus * 1000, 0, waits * 1000) for name, (gpus, waits) in held.items()}
    return of(due, standing, capacity)


def of(due: Mapping[str, Due], held: Mapping[str, Held], capacity: int = FLEET) -> Moment:
    """When each team itself holds this."""
    tree, totals = Tree(due), dict[str, Held]()
    for name, own in held.items():
        for above in tree.line(name):
            total = totals.setdefault(above, Held())
            total.allocated += own.allocated
            total.unallocated += own.unallocated
            total.waiting += own.waiting
    return Moment(tree, capacity * 1000, totals)


@pytest.mark.parametrize(
    ("held", "expected"),
    [
        pytest.param({"a": (3, 0)}, {"a": 3000, "b": 0}, id="no more than what it wants"),
        pytest.param({"a": (3, 9)}, {"a": 5000, "b": 0}, id="no more than its share"),
        pytest.param({"a": (8, 0)}, {"a": 5000, "b": 0}, id="what it borrows it is not owed"),
        pytest.param({"other": (8, 2)}, {"a": 0, "b": 0, "other": 0}, id="nobody knows the team"),
    ],
)
def test_owed(held: dict[str, tuple[int, int]], expected: dict[str, int]) -> None:
    assert {name: it.owed for name, it in moment(TWO, held).rates().items()} == expected


@pytest.mark.parametrize(
    ("due", "held", "lent", "borrowed"),
    [
        pytest.param(TWO, {"a": (7, 0), "b": (2, 0)}, {"b": 2000}, {"a": 2000}, id="what is over"),
        pytest.param(
            TWO, {"a": (6, 0), "b": (1, 0)}, {"b": 1000}, {"a": 1000}, id="the rest is free"
        ),
        pytest.param(
            {"a": Due(2000), "b": Due(2000)},
            {"a": (6, 0), "b": (2, 0)},
            {},
            {},
            id="what is nobody's share is not borrowed",
        ),
        pytest.param(
            TWO | {"c": Due(0)},
            {"a": (1, 0), "b": (3, 0), "c": (3, 0)},
            {"a": 2000, "b": 1000},
            {"c": 3000},
            id="two lend in proportion to what they spare",
        ),
        pytest.param(
            NESTED,
            {"x": (4, 0), "b": (4, 0)},
            {"y": 1000},
            {"x": 2000},
            id="inside a team; its parent's own part lends the rest",
        ),
        pytest.param(
            NESTED,
            {"x": (4, 0), "y": (2, 0), "a": (2, 0), "b": (1, 0)},
            {"b": 2000},
            {"a": 2000, "x": 2000},
            id="a sub-team borrows what its parent borrows",
        ),
        pytest.param(
            NESTED,
            {"y": (2, 0), "b": (6, 0)},
            {"a": 2000, "x": 1000},
            {"b": 2000},
            id="a sub-team lends its part of what its parent lends",
        ),
    ],
)
def test_lent_and_borrowed(
    due: dict[str, Due],
    held: dict[str, tuple[int, int]],
    lent: dict[str, int],
    borrowed: dict[str, int],
) -> None:
    rates = moment(due, held).rates()
    assert {name: it.lent for name, it in rates.items() if it.lent} == lent
    assert {name: it.borrowed for name, it in rates.items() if it.borrowed} == borrowed


@pytest.mark.parametrize(
    ("held", "unused", "lent", "used"),
    [
        pytest.param({"a": (1, 0), "b": (4, 0)}, 3000, 0, {}, id="enough is free"),
        pytest.param({"a": (1, 0), "b": (8, 0)}, 3000, 2000, {"b": 2000}, id="one is left"),
        pytest.param(
            {"a": (0, 0), "b": (5, 0), "c": (5, 0)},
            4000,
            4000,
            {"b": 2000, "c": 2000},
            id="two use it",
        ),
        pytest.param({"a": (6, 0), "b": (4, 0)}, 0, 0, {}, id="its owner uses it"),
    ],
)
def test_guaranteed_gpus_that_their_owner_does_not_use(
    held: dict[str, tuple[int, int]], unused: int, lent: int, used: dict[str, int]
) -> None:
    rates = moment({"a": Due(4000, 4000), "b": Due(6000)}, held).rates()
    assert (rates["a"].guaranteed_unused, rates["a"].guaranteed_lent) == (unused, lent)
    assert {name: it.on_guarantees for name, it in rates.items() if it.on_guarantees} == used


def test_a_parents_sums_include_its_sub_teams() -> None:
    standing = {"x": Held(1000, 0, 0), "y": Held(0, 2000, 5000), "a": Held(0, 0, 1000)}
    rates = of(NESTED, standing).rates()
    assert rates["a"][:3] == (6000, 1000, 2000)
    assert [rates[name].owed for name in ("x", "y")] == [1000, 2000]


def test_dues_follow_from_budgets() -> None:
    budgets = tree(
        team("a", share_percent=50, guaranteed=2),
        team("x", "a", share_percent=33.3),
        team("b", gpu_hours_per_day=24, limit=4),
        team("c", share_percent=30, limit=2),
    )
    assert dues(budgets, FLEET) == {
        "a": Due(5000, 2000),
        "x": Due(1665, 0, "a"),
        "b": Due(1000),
        "c": Due(2000),
    }


def test_what_hangs_on_itself_or_on_nobody_does_no_harm() -> None:
    odd = {"a": Due(1000, parent="b"), "b": Due(1000, parent="a"), "c": Due(1000, parent="gone")}
    rates = moment(odd, {"a": (1, 0), "c": (2, 0)}).rates()
    assert (rates["a"].allocated, rates["c"].allocated) == (1000, 2000)
    assert Tree(odd).place("c") == ("c", "")


PARTS = st.dictionaries(st.text("abc", min_size=1, max_size=2), st.integers(0, 10**6), max_size=6)


@given(PARTS, st.floats(0, 1))
def test_apportioned_parts_add_up_and_none_gets_more_than_its_part(
    parts: dict[str, int], share: float
) -> None:
    total = int(sum(parts.values()) * share)
    given_ = apportion(total, parts)
    assert sum(given_.values()) == total
    assert all(0 <= given_[name] <= part for name, part in parts.items())
    assert given_ == apportion(total, dict(reversed(parts.items())))


GPUS = st.integers(0, 12)


@given(
    st.dictionaries(st.sampled_from("abcxy"), st.tuples(GPUS, GPUS), max_size=5), st.integers(0, 12)
)
def test_what_is_lent_is_borrowed_by_others(
    held: dict[str, tuple[int, int]], capacity: int
) -> None:
    due = {
        "a": Due(4000, 2000),
        "b": Due(3000, 1000),
        "x": Due(1500, 1000, "a"),
        "y": Due(2500, 0, "a"),
    }
    rates = moment(due, held, capacity).rates()
    roots = [rates[name] for name in rates if Tree(due).is_root(name)]
    for lent, used in (("lent", "borrowed"), ("guaranteed_lent", "on_guarantees")):
        assert sum(getattr(it, lent) for it in roots) == sum(getattr(it, used) for it in roots)
    for name, it in rates.items():
        share = Tree(due).due(name).share
        assert it.lent <= max(0, share - it.delivered)
        assert it.borrowed <= max(0, it.delivered - share)
        assert it.guaranteed_lent <= it.guaranteed_unused
        assert it.owed <= share
        assert min(it) >= 0
    assert TeamSums().delivered == 0
