"""`hubernate usage` against the real scheduler service."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from hub_config.commands.errors import FAILED, MISUSED, CommandError
from hub_config.commands.usage import read_moment
from tests.hub_config.cli_bench import Cli, Service, running_service, state_at

TEAMS = """
version: 1
teams:
  - name: vision
    share_percent: 50
    price_per_gpu_hour: 360000
  - name: audio
    share_percent: 50
    guaranteed: 1
"""


@pytest.fixture
def service() -> Iterator[Service]:
    with running_service() as found:
        yield found


@pytest.fixture
def cli(service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Vision holds both GPUs."""
    cli = Cli(service, state_at(tmp_path / "state", service.port), monkeypatch)
    cli.as_root()
    path = tmp_path / "teams.yaml"
    path.write_text(TEAMS)
    cli.ok("teams", "apply", str(path), "--reason", "test")
    service.session("ada", gpus=2, team="vision")
    return cli


def row(text: str, name: str) -> list[str]:
    return next(line.split() for line in text.splitlines() if line.startswith(name))


def test_teams_with_owed_delivered_and_cost(cli: Cli) -> None:
    seen = cli.json("usage")
    vision = next(it for it in seen["lines"] if it["team"] == "vision")
    assert vision["delivered"] == vision["unallocated"] > 0
    assert vision["cost"] == pytest.approx(vision["delivered"] * 100)
    assert [it["team"] for it in seen["balances"]] == ["audio", "vision"]
    text = cli.ok("usage")
    assert row(text, "TEAM")[:3] == ["TEAM", "OWED", "DELIVERED"]
    assert float(row(text, "vision")[-1]) >= round(vision["cost"], 2)
    assert "audio did not use" in text
    assert "vision had" in text
    assert "were held" in text


@pytest.mark.parametrize(
    ("by", "name", "headings"),
    [
        ("user", "ada", ["USER", "DELIVERED"]),
        ("project", "vision", ["TEAM", "PROJECT"]),
        ("tag", "unallocated", ["TAG", "DELIVERED"]),
    ],
)
def test_other_groups(cli: Cli, by: str, name: str, headings: list[str]) -> None:
    text = cli.ok("usage", "--by", by, "--from", "1h")
    assert row(text, headings[0])[:2] == headings
    assert row(text, name)


def test_where_nothing_was_used(service: Service, cli: Cli) -> None:
    assert cli.ok("usage", "--from", "3d", "--to", "2d") == "No GPU was used.\n"


def test_pieces_have_their_time(cli: Cli) -> None:
    text = cli.ok("usage", "--by", "user", "--each", "hour", "--from", "2h")
    assert row(text, "FROM")[:2] == ["FROM", "USER"]
    (line, *_) = cli.json("usage", "--each", "day", "--from", "2d")["lines"]
    assert line["at"] % 86400 == 0


def test_who_uses_it_in_a_session_sees_their_own(cli: Cli) -> None:
    cli.in_a_session()
    seen = cli.json("usage", "--by", "user")
    assert {it["user"] for it in seen["lines"]} == {"ada"}
    assert seen["fleet"] is None


@pytest.mark.parametrize(
    ("arguments", "named", "code"),
    [
        (("--from", "yesterday"), "--from: 'yesterday' is no time", MISUSED),
        (("--to", "5"), "--to: '5' is no time", MISUSED),
        (("--from", "1h", "--to", "2h"), "before", FAILED),
        (("--from", "90d", "--each", "hour"), "31 days", FAILED),
    ],
)
def test_times_that_make_no_sense(
    cli: Cli, arguments: tuple[str, ...], named: str, code: int
) -> None:
    assert named in cli.fails("usage", *arguments, code=code)


def test_moments() -> None:
    assert read_moment("x", "1h30m", 10_000.0) == 4600.0
    assert read_moment("x", "2026-11-01", 0.0) == datetime(2026, 11, 1).timestamp()
    assert read_moment("x", "2026-11-01T12:00+00:00", 0.0) == 1793534400.0
    with pytest.raises(CommandError, match="2026-11-01"):
        read_moment("x", "-1h", 0.0)
