"""The tree of teams: shares, limits, what is refused, and undo, by tables of cases."""

from __future__ import annotations

from math import inf, nan

import pytest

from scheduler_bridge.model.teams import ChangeSet, Proposal, Team, TeamChange
from scheduler_bridge.model.workload import Priority
from scheduler_bridge.policy.budget_changes import replay, stage, stage_undo
from scheduler_bridge.policy.budget_checks import mistakes
from scheduler_bridge.policy.budgets import Budgets, flat_rules, shares, team_rules
from tests.builders.teams import change_set, team, tree

FLEET = 10
HIGH, URGENT = Priority.HIGH, Priority.URGENT


@pytest.mark.parametrize(
    ("teams", "expected"),
    [
        pytest.param([team("a")], {"a": 0.0}, id="a team that states nothing is owed nothing"),
        pytest.param(
            [team("a", share_percent=40), team("b", share_percent=60)],
            {"a": 0.4, "b": 0.6},
            id="percent of the fleet",
        ),
        pytest.param(
            [team("a", gpu_hours_per_day=24)], {"a": 0.1}, id="a GPU for a day of ten GPUs' days"
        ),
        pytest.param(
            [team("a", share_percent=50), team("b", "a", share_percent=30)],
            {"a": 0.5, "b": 0.15},
            id="percent of the parent's",
        ),
        pytest.param(
            [team("a", share_percent=50), team("b", "a", share_percent=40), team("c", "a")],
            {"a": 0.5, "b": 0.2, "c": 0.3},
            id="a sub-team that states nothing has what is left",
        ),
        pytest.param(
            [team("a", share_percent=50), team("b", "a"), team("c", "a")],
            {"a": 0.5, "b": 0.25, "c": 0.25},
            id="several share what is left",
        ),
        pytest.param(
            [team("a", gpu_hours_per_day=480), team("b", gpu_hours_per_day=240)],
            {"a": 2 / 3, "b": 1 / 3},
            id="hours of a fleet that has shrunk are cut in proportion",
        ),
    ],
)
def test_shares(teams: list[Team], expected: dict[str, float]) -> None:
    assert shares(tree(*teams), FLEET) == pytest.approx(expected)


def test_without_any_gpu_nobody_is_owed_hours() -> None:
    assert shares(tree(team("a", gpu_hours_per_day=24)), 0) == {"a": 0.0}


def test_rules_carry_what_the_planner_keeps_to() -> None:
    budgets = tree(
        team("a", share_percent=50, guaranteed=4, lending_limit=2, limit=8),
        team("b", "a", priority_limits={HIGH: 2}),
    )
    rules = team_rules(budgets, FLEET, {"a": 7.0})
    a, b = rules["a"], rules["b"]
    assert (a.limit, a.guaranteed, a.lending_limit, a.balance, a.share) == (8, 4, 2, 7.0, 0.5)
    assert (b.limit, b.priority_limits, b.balance, b.share) == (8, {2: 2}, 0.0, 0.5)


@pytest.mark.parametrize(
    ("teams", "limit"),
    [
        pytest.param([team("x")], None, id="none"),
        pytest.param([team("x", limit=3)], 3, id="its own"),
        pytest.param([team("p", limit=2), team("x", "p")], 2, id="its parent's"),
        pytest.param([team("g", limit=2), team("p", "g"), team("x", "p", limit=5)], 2, id="above"),
        pytest.param([team("x", guaranteed=2, borrowing_limit=1)], 3, id="what it may borrow"),
        pytest.param(
            [team("p", guaranteed=1, borrowing_limit=1), team("x", "p", limit=9)],
            2,
            id="what its parent may borrow",
        ),
    ],
)
def test_a_team_may_hold_no_more_than_those_above_it(teams: list[Team], limit: int | None) -> None:
    assert team_rules(tree(*teams), FLEET, {})["x"].limit == limit


def test_a_priority_counts_the_narrowest_limit_above_it() -> None:
    budgets = tree(
        team("p", priority_limits={URGENT: 1, HIGH: 5}), team("x", "p", priority_limits={HIGH: 4})
    )
    assert team_rules(budgets, FLEET, {})["x"].priority_limits == {HIGH: 4, URGENT: 1}


def test_flat_rules_can_be_added_up() -> None:
    budgets = tree(
        team("p", guaranteed=6, lending_limit=4, borrowing_limit=2),
        team("x", "p", guaranteed=3),
        team("y", "p", guaranteed=1),
    )
    rules = flat_rules(budgets, FLEET, {"x": 2.0})
    assert {name: it.guaranteed for name, it in rules.items()} == {"p": 2, "x": 3, "y": 1}
    assert {name: it.limit for name, it in rules.items()} == {"p": 8, "x": 8, "y": 8}
    assert rules["p"].lending_limit == 2
    assert {name: it.balance for name, it in rules.items()} == {"p": 0, "x": 2.0, "y": 0}


def test_who_is_in_a_group_of_a_team_or_named_may_use_it() -> None:
    budgets = tree(
        team("vision"), team("audio", groups=("sound", "speech")), team("x", users=("u",))
    )
    assert budgets.usable("u", {"vision", "speech", "audio"}) == ("audio", "vision", "x")
    assert budgets.usable("v", {"audio"}) == ()


# -- what is wrong ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("teams", "said"),
    [
        ([team("")], "name: must be 1 to 128"),
        ([team(" a")], "without spaces around; it is ' a'"),
        ([team("a\n")], "printable"),
        ([team("a", groups=("",))], "groups: must be 1 to 128"),
        ([team("a", users=tuple(f"u{n}" for n in range(1001)))], "use a Hub group"),
        ([team("a", share_percent=-1)], "share_percent: must be between 0 and 100; it is -1"),
        ([team("a", share_percent=nan)], "it is nan"),
        ([team("a", share_percent=101)], "between 0 and 100"),
        ([team("a", gpu_hours_per_day=inf)], "gpu_hours_per_day: must be between 0"),
        ([team("a", limit=-1)], "limit: must be between 0 and 1000000"),
        ([team("a", limit=10**9)], "limit: must be between"),
        ([team("a", guaranteed=-1)], "guaranteed: must be between"),
        ([team("a", borrowing_limit=-3)], "borrowing_limit: must be between"),
        ([team("a", price_per_gpu_hour=-0.5)], "price_per_gpu_hour: must be between"),
        ([team("a", priority_limits={HIGH: -1})], "priority_limits.high: must be between"),
        ([team("a", limit=2, priority_limits={HIGH: 3})], "at most its limit of 2; it is 3"),
        ([team("a", limit=2, guaranteed=3)], "guaranteed: at most its limit of 2"),
        ([team("a", guaranteed=1, lending_limit=2)], "lending_limit: only guaranteed"),
        ([team("a", share_percent=1, gpu_hours_per_day=1)], "not both"),
        ([team("a", "b")], "parent: there is no team 'b'"),
        ([team("a", "a")], "it is below itself: a → a"),
        ([team("a", "b"), team("b", "c"), team("c", "a")], "below itself: b → c → a → b"),
        ([team("a", "b"), team("b", "b")], "team b: parent: it is below itself: b → b"),
        (
            [team("a", share_percent=60), team("b", share_percent=50), team("c")],
            "a, b have 110 % of the fleet together; at most 100",
        ),
        (
            [team("p"), team("a", "p", share_percent=60), team("b", "p", share_percent=50)],
            "team p: share_percent: a, b have 110 % of team p together",
        ),
        (
            [team("a", gpu_hours_per_day=241)],
            "a have 241 GPU-hours a day together; the fleet has 240 (10 GPUs exist)",
        ),
        (
            [team("p", share_percent=50), team("a", "p", gpu_hours_per_day=121)],
            "team p has 120",
        ),
        (
            [team("a", gpu_hours_per_day=120), team("b", share_percent=60)],
            "a, b have 110.0% of the fleet together, by percent and by hours",
        ),
        (
            [team("a", guaranteed=6), team("b", guaranteed=5), team("c")],
            "guaranteed: a, b are promised 11 GPUs together; the fleet has 10",
        ),
        (
            [team("p", guaranteed=2), team("a", "p", guaranteed=3)],
            "a are promised 3 GPUs together; team p has guaranteed 2",
        ),
        (
            [team("p", limit=2), team("q", "p"), team("a", "q", limit=3)],
            "team a: limit: at most the 2 that team q may hold; it is 3",
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_what_would_be_accepted(teams: list[Team], said: str) -> None:
    found = [str(it) for it in mistakes(tree(*teams), FLEET)]
    assert any(said in it for it in found), found


@pytest.mark.parametrize(
    "teams",
    [
        [],
        [team(name, share_percent=100 / 3) for name in "abc"],
        [team("p", share_percent=10), *(team(n, "p", share_percent=10) for n in "abcdefghij")],
        [team("p", guaranteed=10, limit=10), team("a", "p", guaranteed=10, limit=10)],
        [team("p", share_percent=30), team("a", "p", gpu_hours_per_day=72.0)],
        [team("a", gpu_hours_per_day=24), team("b", share_percent=90)],
    ],
    ids=["nothing", "thirds", "tenths", "all guaranteed", "hours of percent", "hours and percent"],
)
def test_what_just_fits_is_accepted(teams: list[Team]) -> None:
    assert mistakes(tree(*teams), FLEET) == ()


def test_a_deep_tree_is_no_matter_of_recursion() -> None:
    names = [f"t{number}" for number in range(3000)]
    teams = [team(name, parent) for name, parent in zip(names[1:], names, strict=False)]
    top = team("t0", share_percent=100)
    assert mistakes(tree(top, team("t1", "t0")), FLEET) == ()
    assert shares(tree(top, *teams), FLEET)["t2999"] == 1.0


# -- changes ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("proposal", "said"),
    [
        (Proposal("r", created=(team("a"),)), "team a: name: there is such a team already"),
        (Proposal("r", changed=(team("x"),)), "team x: name: there is no such team"),
        (Proposal("r", deleted=("x",)), "team x: name: there is no such team"),
        (Proposal("r", created=(team("x"), team("x"))), "named more than once"),
        (Proposal("r", changed=(team("a"),), deleted=("a",)), "named more than once"),
        (Proposal("r"), "nothing would change"),
        (Proposal("r", changed=(team("a"),)), "nothing would change"),
        (Proposal("r", deleted=("a",)), "team b: parent: there is no team 'a'"),
        (Proposal("r", changed=(team("a", "b"),)), "below itself"),
    ],
)
def test_a_change_that_makes_no_sense_is_refused(proposal: Proposal, said: str) -> None:
    staged = stage(tree(team("a"), team("b", "a")), proposal, FLEET)
    assert staged.changes == ()
    assert said in str(staged.mistakes[0])


def test_a_parent_and_its_sub_team_can_be_changed_together() -> None:
    before = tree(team("a", limit=2), team("b", "a", limit=2))
    proposal = Proposal("r", changed=(team("a", limit=1), team("b", "a", limit=1)))
    staged = stage(before, proposal, FLEET)
    assert staged.mistakes == ()
    after = before.changed(staged.changes, "1")
    assert after == tree(team("a", limit=1), team("b", "a", limit=1), head="1")


MADE = change_set("1", TeamChange(None, team("a", limit=4)))
RAISED = change_set("2", TeamChange(team("a", limit=4), team("a", limit=6)), based_on="1")
BELOW = change_set("3", TeamChange(None, team("b", "a")), based_on="2")
MOVED = change_set("4", TeamChange(team("b", "a"), team("b")), based_on="3")
ALONE = change_set("5", TeamChange(team("a", limit=6), None), based_on="4")


def test_undo_gives_what_was_before() -> None:
    staged = stage_undo([MADE, RAISED], "2", FLEET)
    assert staged.mistakes == ()
    assert replay([MADE, RAISED]).changed(staged.changes, "1") == replay([MADE])


def test_an_undo_can_be_undone() -> None:
    back = change_set("9", *stage_undo([MADE, RAISED], "2", FLEET).changes, undoes="2")
    again = stage_undo([MADE, RAISED, back], "9", FLEET)
    assert again.changes == RAISED.changes


@pytest.mark.parametrize(
    ("history", "undone", "said"),
    [
        ([MADE], "7", "there is no change set '7'"),
        ([MADE, RAISED], "1", "team a: undo: 2 has changed it since"),
        ([MADE, RAISED, BELOW, MOVED, ALONE], "4", "team a: undo: 5 has deleted it since"),
        (
            [MADE, change_set("2", TeamChange(None, team("b", "a")))],
            "1",
            "team a: undo: 2 has put b below it since; undo that first, or move b",
        ),
        (
            [
                change_set("1", TeamChange(None, team("a", share_percent=70))),
                change_set("2", TeamChange(team("a", share_percent=70), team("a"))),
                change_set("3", TeamChange(None, team("b", share_percent=40))),
            ],
            "2",
            "a, b have 110 % of the fleet",
        ),
    ],
)
def test_an_undo_is_refused_where_later_changes_depend_on_it(
    history: list[ChangeSet], undone: str, said: str
) -> None:
    staged = stage_undo(history, undone, FLEET)
    assert staged.changes == ()
    assert said in str(staged.mistakes[0])


def test_an_undo_is_possible_once_later_changes_are_undone() -> None:
    back = change_set("9", *stage_undo([MADE, RAISED], "2", FLEET).changes, undoes="2")
    staged = stage_undo([MADE, RAISED, back], "1", FLEET)
    assert staged.changes == (TeamChange(team("a", limit=4), None),)


def test_no_change_at_all_is_no_budgets() -> None:
    assert replay([]) == Budgets()
