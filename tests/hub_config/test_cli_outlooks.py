"""`why`, `queue` and `what-if`: when work starts, and what would start it now."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hub_config.commands.outlook_text import change_lines, estimate_line, interval
from scheduler_bridge.model.outlook import Change, Estimate
from tests.hub_config.cli_bench import Cli, Service, running_service, state_at

HOUR = 3600.0
ASK = ("what-if", "--user", "bob", "--gpus", "2")


@pytest.fixture
def service() -> Iterator[Service]:
    with running_service() as found:
        yield found


@pytest.fixture
def cli(service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    cli = Cli(service, state_at(tmp_path / "state", service.port), monkeypatch)
    cli.as_root()
    return cli


def busy(cli: Cli) -> str:
    """One of two GPUs is held for an hour at most."""
    long = {"min_runtime_seconds": 60.0, "max_runtime_seconds": HOUR}
    return cli.service.run(cli.service.job("ada", "long", **long)).id


def test_why_prints_changes_the_moment_and_the_eta(cli: Cli) -> None:
    held_by = busy(cli)
    cli.service.job("bob", "big", gpus=2, min_runtime_seconds=2 * HOUR)
    shown = cli.ok("why", "big")
    assert "It would start now with:\n  1 GPU fewer (1 instead of 2)\n" in shown
    assert f"as it is, when the longest that it may run ends: {held_by}." in shown
    assert "ETA: by " in shown
    assert "(90% likely; no such estimate could be compared yet)." in shown
    told = cli.json("why", "big")
    assert [each["kind"] for each in told["changes"]] == ["gpus", "moment"]
    assert told["estimate"]["basis"] == "reservation"


def test_the_queue_tells_when_work_starts(cli: Cli) -> None:
    busy(cli)
    cli.service.job("bob", "big", gpus=2, min_runtime_seconds=2 * HOUR)
    (row,) = cli.json("queue")["rows"]
    assert row["work"]["estimate"]["basis"] == "reservation"
    assert row["work"]["estimate"]["compared"] == 0
    assert "by " in cli.ok("queue").splitlines()[1]


def test_what_if_tells_the_price_of_a_guarantee_and_submits_nothing(cli: Cli) -> None:
    busy(cli)
    shown = cli.ok(*ASK, "--min-runtime", "1h")
    lines = shown.splitlines()
    assert lines[1].startswith("1h") and "waits" in lines[1] and "by " in lines[1]
    assert lines[2].startswith("none") and "no ETA" in lines[2]
    assert [line.split()[0] for line in lines[3:5]] == ["15m", "8h"]
    assert "It would start now with:" in shown
    assert cli.json("jobs") == [each for each in cli.json("jobs") if each["spec"]["user"] == "ada"]
    told = cli.json(*ASK, "--min-runtime", "1h")
    assert [each["outcome"] for each in told] == ["waits"] * 4
    assert told[0]["spec"]["min_runtime_seconds"] == HOUR


def test_what_if_says_what_would_be_refused(cli: Cli) -> None:
    shown = cli.ok("what-if", "--user", "bob", "--gpus", "3")
    assert "is refused" in shown and "at most 2 GPUs" in shown


def test_what_if_takes_the_options_of_submit(cli: Cli) -> None:
    assert "starts now" in cli.ok(
        *(*ASK, "--nodes", "1", "--name", "x", "--priority", "high", "--env", "A=1"),
        *("--workdir", "w", "--max-runtime", "9h", "--cluster", "local"),
        *("--gpu-model", "Virtual GPU", "--grace", "1m", "--", "python", "train.py"),
    )
    assert "--min-runtime" in cli.fails(*ASK, "--min-runtime", "soon", code=2)


def test_a_user_asks_for_themselves_only(cli: Cli) -> None:
    cli.in_a_session()
    assert "starts now" in cli.ok("what-if", "--gpus", "1")
    assert "bob" in cli.fails("what-if", "--gpus", "1", "--user", "bob")
    assert "not in" in cli.fails("what-if", "--gpus", "1", "--team", "blue")


def test_a_user_is_not_told_whose_work_is_in_the_way(cli: Cli) -> None:
    long = {"min_runtime_seconds": 60.0, "max_runtime_seconds": HOUR}
    held_by = cli.service.run(cli.service.job("bob", "secret", **long)).id
    cli.in_a_session()
    before = cli.ok("what-if", "--gpus", "2", "--min-runtime", "1h")
    cli.service.job("ada", "big", gpus=2, min_runtime_seconds=2 * HOUR)
    for shown in (before, cli.ok("why", "big")):
        assert "when the longest that it may run ends: other." in shown
        assert held_by not in shown and "secret" not in shown
    assert cli.json("why", "big")["changes"][-1]["last"] == ["other"]


# -- words -----------------------------------------------------------------------------------


def test_an_interval_and_how_far_it_can_be_trusted() -> None:
    told = Estimate(0.0, 60.0, 7200.0, 0.8, "history", measured=0.79, compared=132)
    assert interval(told).startswith("between ")
    assert "(80% likely; of 132 such estimates 79% came true)." in estimate_line(told)


@pytest.mark.parametrize(
    "reason", ["no_machine", "paused", "too_few_started", "too_many_wait", "held_back"]
)
def test_no_eta_says_why(reason: str) -> None:
    line = estimate_line(Estimate(0.0, reason=reason))
    assert line.startswith("No ETA: ") and "_" not in line
    assert interval(Estimate(0.0, reason=reason)) == ""


def test_nothing_is_said_of_nothing() -> None:
    assert estimate_line(None) == "" and change_lines(()) == []


def test_making_room_is_said() -> None:
    lines = change_lines([Change("nodes", "1 machine fewer (3 instead of 4)", makes_room=True)])
    assert lines[1] == "  1 machine fewer (3 instead of 4), once others have made room"
