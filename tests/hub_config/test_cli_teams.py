"""`hubernate teams` against the real scheduler service."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hub_config.cli_bench import Cli, Service, running_service, state_at

TEAMS = """
version: 1
teams:
  - name: research
    share_percent: 50
    limit: 2
  - name: vision
    parent: research
    guaranteed: 0
    priority_limits: {urgent: 1}
    users: [ada]
"""


@pytest.fixture
def service() -> Iterator[Service]:
    with running_service() as found:
        yield found


@pytest.fixture
def cli(service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    cli = Cli(service, state_at(tmp_path / "state", service.port), monkeypatch)
    cli.as_root()
    return cli


def file_with(folder: Path, text: str = TEAMS) -> str:
    path = folder / "teams.yaml"
    path.write_text(text)
    return str(path)


def applied(cli: Cli, folder: Path) -> str:
    """The id of the change set that the file makes."""
    answer = cli.json("teams", "apply", file_with(folder), "--reason", "new year")
    return str(answer["change_set"]["id"])


def test_a_file_is_applied_and_listed(cli: Cli, tmp_path: Path) -> None:
    assert "No budgets are set" in cli.ok("teams", "list")
    said = cli.ok("teams", "apply", file_with(tmp_path), "--reason", "new year")
    assert "create research: share_percent 50, limit 2\n" in said
    assert "create vision: parent research, priority_limits urgent 1, users ada\n" in said
    assert "teams undo t-" in said
    shown = cli.ok("teams", "list")
    assert "No budgets" not in shown
    row = next(line for line in shown.splitlines() if "vision" in line)
    assert row.startswith("  vision")
    assert "50.0%" in row and "24" in row
    listed = cli.json("teams", "list")
    assert [it["team"]["name"] for it in listed["teams"]] == ["research", "vision", "default"]


def test_applying_the_same_again_changes_nothing(cli: Cli, tmp_path: Path) -> None:
    applied(cli, tmp_path)
    written = cli.ok("teams", "list", "--yaml")
    said = cli.ok("teams", "apply", file_with(tmp_path, written), "--reason", "again")
    assert said == "Nothing to change.\n"
    assert len(cli.json("teams", "history")) == 1


def test_a_dry_run_says_what_would_change(cli: Cli, tmp_path: Path) -> None:
    applied(cli, tmp_path)
    raised = file_with(tmp_path, "version: 1\nteams:\n  - name: research\n    limit: 1\n")
    said = cli.ok("teams", "apply", raised, "--prune", "--dry-run")
    assert said == ("change research: share_percent 50 → none, limit 2 → 1\ndelete vision\n")
    assert len(cli.json("teams", "history")) == 1


def test_mistakes_in_the_file_and_of_the_tree_are_told(cli: Cli, tmp_path: Path) -> None:
    wrong = file_with(tmp_path, "version: 1\nteams:\n  - nam: x\n")
    result = cli("teams", "apply", wrong)
    assert result.exit_code == 1
    assert "teams.yaml:3: nam: unknown key; did you mean name?" in result.stderr
    assert cli("teams", "apply", wrong, "--json").exit_code == 1
    much = file_with(tmp_path, "version: 1\nteams:\n  - name: x\n    guaranteed: 3\n")
    said = cli.fails("teams", "apply", much, "--reason", "r")
    assert "x are promised 3 GPUs together; the fleet has 2. Nothing was changed." in said
    assert "needs a reason" in cli.fails("teams", "apply", much)
    assert cli.json("teams", "history") == []


def test_history_and_undo(cli: Cli, tmp_path: Path) -> None:
    assert cli.ok("teams", "history") == "Teams were never changed.\n"
    first = applied(cli, tmp_path)
    said = cli.ok("teams", "undo", first, "--reason", "too early")
    assert "delete research\ndelete vision\nDone as t-" in said
    shown = cli.ok("teams", "history")
    assert "new year" in shown
    assert f"too early (undoes {first})" in shown
    assert [it["undoes"] for it in cli.json("teams", "history")] == ["", first]
    assert "needs a reason" in cli.fails("teams", "undo", first)
    assert "has changed it since" in cli.fails("teams", "undo", first, "--reason", "r")
    assert "no change set 't-0'" in cli.fails("teams", "undo", "t-0", "--reason", "r")


def test_one_team_is_shown_with_what_follows(cli: Cli, tmp_path: Path) -> None:
    applied(cli, tmp_path)
    shown = cli.ok("teams", "show", "vision")
    for words in ("parent              research", "urgent 1", "at most 2", "50.0%, 24 GPU-hours"):
        assert words in shown
    assert "sub-teams           vision" in cli.ok("teams", "show", "research")
    assert cli.json("teams", "show", "vision")["limit"] == 2
    assert "There is: research, vision, default." in cli.fails("teams", "show", "audio")


def test_a_user_sees_their_own_teams_and_changes_none(cli: Cli, tmp_path: Path) -> None:
    first = applied(cli, tmp_path)
    cli.in_a_session()
    listed = cli.json("teams", "list")
    assert [it["team"]["name"] for it in listed["teams"]] == ["research", "vision"]
    assert "may not do this" in cli.fails("teams", "undo", first, "--reason", "r")
    assert "may not do this" in cli.fails("teams", "history")
