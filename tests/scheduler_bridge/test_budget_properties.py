"""What holds for every tree of teams and every change of it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TypeAlias, TypeVar

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_bridge.model.teams import ChangeSet, Proposal, Team
from scheduler_bridge.model.workload import Priority
from scheduler_bridge.policy.budget_changes import Staged, replay, stage, stage_undo
from scheduler_bridge.policy.budget_checks import mistakes
from scheduler_bridge.policy.budgets import Budgets, shares, team_rules

FLEET = 16
Value = TypeVar("Value")
NAMES = st.sampled_from("abcdef")
PRIORITY_LIMITS = st.dictionaries(st.sampled_from(Priority), st.integers(0, 3), max_size=1)
RARELY = st.sampled_from([False] * 7 + [True])


def sometimes(values: st.SearchStrategy[Value]) -> st.SearchStrategy[Value | None]:
    return RARELY.flatmap(lambda there: values if there else st.none())


@st.composite
def teams(draw: st.DrawFn) -> Team:
    """Any team; most of them somebody would accept."""
    share = draw(st.sampled_from([None, 0.0, 10.0, 100 / 3, 50.0, 100.0, 101.0]))
    by_hours = draw(RARELY)
    guaranteed = draw(st.sampled_from([0, 0, 0, 1, 2, 5]))
    return Team(
        draw(NAMES),
        draw(st.one_of(st.just(""), NAMES)),
        share_percent=None if by_hours else share,
        gpu_hours_per_day=share if by_hours else None,
        limit=draw(sometimes(st.integers(-1, 20))),
        priority_limits=draw(PRIORITY_LIMITS),
        guaranteed=guaranteed,
        lending_limit=draw(sometimes(st.integers(0, 2))),
        borrowing_limit=draw(sometimes(st.integers(0, 9))),
    )


@dataclass(frozen=True)
class Undo:
    """Take back that many change sets ago."""

    back: int


Wish: TypeAlias = "tuple[Team | str, ...] | Undo"
"""Teams as they should be (below one that exists), and names of those that should go; or an undo."""

CHANGES = st.lists(st.one_of(teams(), teams(), NAMES), min_size=1, max_size=3).map(tuple)
WISHES = st.one_of(CHANGES, CHANGES, st.integers(0, 5).map(Undo))


@dataclass
class History:
    """Change sets as the engine would write them."""

    change_sets: list[ChangeSet] = field(default_factory=list)

    @property
    def budgets(self) -> Budgets:
        return replay(self.change_sets)

    def stage(self, wish: Wish) -> Staged:
        if isinstance(wish, Undo):
            return stage_undo(self.change_sets, f"c{len(self.change_sets) - 1 - wish.back}", FLEET)
        known = self.budgets.teams
        puts = [
            it if it.parent in known else replace(it, parent="")
            for it in wish
            if isinstance(it, Team)
        ]
        proposal = Proposal(
            "r",
            created=tuple(team for team in puts if team.name not in known),
            changed=tuple(team for team in puts if team.name in known),
            deleted=tuple(it for it in wish if isinstance(it, str) and it in known),
        )
        return stage(self.budgets, proposal, FLEET)

    def add(self, staged: Staged) -> None:
        name = f"c{len(self.change_sets)}"
        head = self.budgets.head
        self.change_sets.append(ChangeSet(name, "root", "r", 1.0, head, staged.changes))


def histories() -> st.SearchStrategy[History]:
    """What many changes and undos leave, refused ones left out."""
    return st.lists(WISHES, min_size=5, max_size=25).map(played)


def played(wishes: list[Wish]) -> History:
    history = History()
    for wish in wishes:
        staged = history.stage(wish)
        if not staged.mistakes:
            history.add(staged)
    return history


@given(histories(), CHANGES)
@settings(max_examples=80)
def test_apply_then_undo_gives_the_same_tree(history: History, wish: Wish) -> None:
    before = history.budgets
    staged = history.stage(wish)
    if staged.mistakes:
        return
    history.add(staged)
    back = stage_undo(history.change_sets, history.budgets.head, FLEET)
    assert back.mistakes == ()
    history.add(back)
    assert history.budgets.teams == before.teams


@given(histories(), WISHES)
@settings(max_examples=80)
def test_either_it_is_refused_and_changes_nothing_or_a_good_tree_becomes_another(
    history: History, wish: Wish
) -> None:
    before = history.budgets
    staged = history.stage(wish)
    assert bool(staged.changes) != bool(staged.mistakes)
    assert history.budgets == before
    after = before.changed(staged.changes, "new")
    assert mistakes(after, FLEET) == ()
    assert (after.teams == before.teams) is bool(staged.mistakes)


@given(histories(), st.integers(0, 2 * FLEET))
@settings(max_examples=80)
def test_sub_teams_never_have_more_than_their_parent_also_in_a_fleet_of_another_size(
    history: History, fleet_gpus: int
) -> None:
    budgets = history.budgets
    parts = {"": 1.0, **shares(budgets, fleet_gpus)}
    assert set(parts) == {"", *budgets.teams}
    for parent, below in budgets.below().items():
        assert all(parts[team.name] >= 0 for team in below)
        assert sum(parts[team.name] for team in below) <= parts[parent] * (1 + 1e-9)
        assert sum(team.share_percent or 0 for team in below) <= 100 * (1 + 1e-9)


@given(histories())
@settings(max_examples=80)
def test_a_sub_teams_limits_and_guarantees_are_within_its_parents(history: History) -> None:
    budgets = history.budgets
    rules = team_rules(budgets, FLEET, {})
    for name, team in budgets.teams.items():
        above = rules.get(team.parent)
        if above is None:
            continue
        if above.limit is not None:
            limit = rules[name].limit
            assert limit is not None and limit <= above.limit
        for priority, most in above.priority_limits.items():
            assert rules[name].priority_limits[priority] <= most
    for parent, below in budgets.below().items():
        most = rules[parent].guaranteed if parent else FLEET
        assert sum(team.guaranteed for team in below) <= most


@given(st.lists(teams(), max_size=8))
@settings(max_examples=100)
def test_no_tree_however_wrong_makes_the_checks_fail_or_hang(found: list[Team]) -> None:
    budgets = Budgets({team.name: team for team in found})
    wrong = mistakes(budgets, FLEET)
    assert all(str(it) for it in wrong)
    if not wrong:
        assert len(list(budgets.downwards())) == len(budgets.teams)
