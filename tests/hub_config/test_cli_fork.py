"""`hubernate resume --fork` (through a real Hub: tests/e2e/test_fork.py), and the token in a session
that was resumed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from hub_config.commands import connection
from spawner.supervisor import inside
from tests.hub_config.cli_bench import ADA_TOKEN, Cli, Service, running_service, state_at


@pytest.fixture
def service() -> Iterator[Service]:
    with running_service() as found:
        yield found


@pytest.fixture
def cli(service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    cli = Cli(service, state_at(tmp_path / "state", service.port), monkeypatch)
    cli.as_root()
    monkeypatch.setenv("HUBERNATE_RUN", str(tmp_path / "run"))
    return cli


def test_a_new_name_without_fork_is_a_mistake(cli: Cli) -> None:
    cli.service.session()
    assert "is for --fork" in cli.fails("resume", "ada", "second")


def test_without_the_hub_there_is_no_fork(cli: Cli) -> None:
    cli.service.session()
    assert "holds no token for the Hub" in cli.fails("resume", "--fork", "ada")
    tokens = cli.state.secrets / "service-tokens.json"
    tokens.write_text(json.dumps(json.loads(tokens.read_text()) | {"scheduler": "t"}))
    assert "the Hub does not answer" in cli.fails("resume", "--fork", "ada")


def test_what_the_hub_refuses_is_told(cli: Cli) -> None:
    cli.service.session()
    cli.in_a_session()
    assert "it was not forked" in cli.fails("resume", "--fork", "ada", "second")


def test_a_resumed_session_uses_its_new_token(cli: Cli, tmp_path: Path) -> None:
    cli.service.session()
    cli.in_a_session(token="frozen-with-the-programs")
    cli.fails("queue")
    (tmp_path / "run").mkdir()
    told = {"environment": {"JUPYTERHUB_API_TOKEN": ADA_TOKEN}}
    (tmp_path / "run" / connection.IDENTITY_FILE).write_text(json.dumps(told))
    cli.ok("queue")
    cli.monkeypatch.setenv("HUBERNATE_TOKEN", "of-the-users-own-choice")
    cli.fails("queue")


def test_both_sides_mean_the_same_file() -> None:
    assert connection.IDENTITY_FILE == inside.IDENTITY_FILE
