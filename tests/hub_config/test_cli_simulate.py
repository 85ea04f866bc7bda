"""`hubernate simulate`, which needs nothing that runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from hub_config.cli import app

SHORT = ("--scenario", "philly-80x8", "--days", "0.1", "--workers", "1")


def run(*words: str) -> Result:
    return CliRunner().invoke(app, ["simulate", *words], env={"TRACE": ""})


def test_policies_are_shown_side_by_side() -> None:
    result = run(*SHORT, "--policy", "fifo", "--policy", "borrow")
    assert result.exit_code == 0, result.output
    assert "philly-80x8" in result.stdout
    assert "debug wait p90" in result.stdout
    assert "borrow: owed" in result.stdout
    assert "hubernate" not in result.stdout


def test_json_has_one_object_per_policy() -> None:
    result = run(*SHORT, "--policy", "fifo", "--policy", "fairshare", "--json")
    found = json.loads(result.stdout)
    assert [(it["policy"], it["violations"]) for it in found] == [("fifo", {}), ("fairshare", {})]
    assert {"occupancy", "owed_delivered", "worst_team", "lost_work"} <= set(found[0])


def test_pictures_are_named(tmp_path: Path) -> None:
    result = run(*SHORT, "--policy", "fifo", "--plots", str(tmp_path))
    assert f"Written: {tmp_path}/philly-80x8.png" in result.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--scenario", "mars"), "There is no scenario mars; there are ai2"),
        (("--policy", "best"), "There is no policy best; there are hubernate"),
        (("--scenario", "trace"), "needs the file"),
        (("--scenario", "philly-96x8", "--trace", "/nothing.csv"), "/nothing.csv cannot be read"),
    ],
)
def test_mistakes_are_one_line(words: tuple[str, ...], said: str) -> None:
    result = run(*words, "--workers", "1")
    assert result.exit_code == 2
    assert said in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("words", [("--days", "-1"), ("--grace", "-1"), ("--tick", "0")])
def test_absurd_times_are_refused(words: tuple[str, str]) -> None:
    result = run(*words)
    assert result.exit_code == 2
    assert words[0] in result.stderr
