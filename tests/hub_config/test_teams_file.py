"""The file of teams: what is read, how mistakes are told, and what it would change."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub_config.teams_file import TeamsFileError, as_yaml, parse_teams, propose, read_teams
from scheduler_bridge.model.teams import Team
from scheduler_bridge.model.workload import Priority
from scheduler_bridge.policy.budget_checks import mistakes
from scheduler_bridge.policy.budgets import Budgets
from tests.builders.teams import team


def test_everything_that_a_team_may_state_is_read() -> None:
    teams = parse_teams(
        """
version: 1
teams:
  - name: research
    share_percent: 60
    limit: 16
    guaranteed: 4
    lending_limit: 2
    borrowing_limit: 12
    priority_limits: {high: 4, urgent: 0}
    price_per_gpu_hour: 2.5
  - name: vision
    parent: research
    gpu_hours_per_day: 48
    groups: [vision, sehen]
    users: ada
"""
    )
    assert teams == (
        Team(
            "research",
            share_percent=60,
            limit=16,
            priority_limits={Priority.HIGH: 4, Priority.URGENT: 0},
            guaranteed=4,
            lending_limit=2,
            borrowing_limit=12,
            price_per_gpu_hour=2.5,
        ),
        Team(
            "vision", "research", gpu_hours_per_day=48, groups=("vision", "sehen"), users=("ada",)
        ),
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "t.yaml:1: must have the keys version and teams; start with version: 1"),
        ("version: 2", "t.yaml:1: version: must be 1, the only version known here"),
        ("version: 1\nteam: []", "t.yaml:2: team: unknown key; did you mean teams?; allowed: version"),
        ("version: 1\nteams: []", "t.yaml:2: teams: must be a list with at least one entry"),
        ("version: 1\nteams:\n  - vision", "t.yaml:3: teams: every entry must be a group of keys"),
        ("version: 1\nteams:\n  - limit: 2", "t.yaml:3: name: must be a name"),
        ("version: 1\nteams:\n  - name: a\n    limits: 2", "t.yaml:4: limits: unknown key; did you mean limit?"),
        ("version: 1\nteams:\n  - name: a\n    limit: many", "t.yaml:4: limit: must be a whole number between 0 and 1000000, is many"),
        ("version: 1\nteams:\n  - name: a\n    limit: 2.5", "4: limit: must be a whole number"),
        ("version: 1\nteams:\n  - name: a\n    limit:", "4: limit: must be a whole number"),
        ("version: 1\nteams:\n  - name: a\n    share_percent: .nan", "4: share_percent: must be a number between 0 and 100, is nan"),
        ("version: 1\nteams:\n  - name: a\n    share_percent: 110", "must be a number between 0 and 100, is 110"),
        ("version: 1\nteams:\n  - name: a\n    parent: []", "4: parent: must be a name"),
        ("version: 1\nteams:\n  - name: a\n    priority_limits: {hihg: 2}", "hihg: unknown key; did you mean high?; allowed: low, normal, high, urgent"),
        ("version: 1\nteams:\n  - name: a\n    groups: [1]", "4: groups: must be a name or a list of names"),
        ("version: 1\nteams:\n  - name: a\n  - name: a", "t.yaml:4: name: a is the name of an earlier team"),
        ("version: 1\nteams:\n  - name: a\n    name: b", "t.yaml:4:"),
        ("version: 1\nteams: [", "t.yaml:2:"),
    ],
)  # fmt: skip
def test_mistakes_are_told_with_line_key_and_what_is_allowed(text: str, said: str) -> None:
    with pytest.raises(TeamsFileError) as caught:
        parse_teams(text, "t.yaml")
    assert said in str(caught.value)


def test_all_mistakes_are_told_at_once_in_the_order_of_their_lines() -> None:
    with pytest.raises(TeamsFileError) as caught:
        parse_teams("version: 1\nteams:\n  - name: a\n    limit: -1\n  - limit: x\n")
    assert [it.line for it in caught.value.mistakes] == [4, 5, 5]


def test_the_example_of_the_how_to_can_be_used() -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/teams-and-limits.md").read_text()
    example = page.partition("```yaml\n")[2].partition("```")[0]
    teams = parse_teams(example)
    assert [it.name for it in teams] == ["research", "vision", "default"]
    assert mistakes(Budgets({it.name: it for it in teams}), 16) == ()


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "teams.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(TeamsFileError, match=r"teams\.yaml:1: cannot be read"):
        read_teams(path)


NAMES = st.text(
    st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=9
)  # as the scheduler accepts them
COUNTS = st.none() | st.integers(0, 1_000_000)
TEAMS = st.builds(
    Team,
    NAMES,
    st.just("") | NAMES,
    share_percent=st.none() | st.floats(0, 100),
    gpu_hours_per_day=st.none() | st.floats(0, 1e6),
    limit=COUNTS,
    priority_limits=st.dictionaries(st.sampled_from(Priority), st.integers(0, 9)),
    guaranteed=st.integers(0, 9),
    lending_limit=COUNTS,
    borrowing_limit=COUNTS,
    groups=st.lists(NAMES, max_size=2).map(tuple),
    users=st.lists(NAMES, max_size=2).map(tuple),
    price_per_gpu_hour=st.none() | st.floats(0, 1000),
)


@given(st.lists(TEAMS, min_size=1, max_size=4, unique_by=lambda it: it.name))
def test_what_is_written_is_read_again(teams: list[Team]) -> None:
    assert parse_teams(as_yaml(teams)) == tuple(teams)


def test_only_what_differs_is_proposed() -> None:
    current = [team("a", limit=1), team("b", limit=1), team("c")]
    wanted = [team("a", limit=1), team("b", limit=2), team("d")]
    kept = propose(current, wanted, prune=False, based_on="t-1", reason="r")
    assert (kept.created, kept.changed, kept.deleted) == ((team("d"),), (team("b", limit=2),), ())
    assert (kept.based_on, kept.reason) == ("t-1", "r")
    assert propose(current, wanted, prune=True, based_on="", reason="r").deleted == ("c",)
