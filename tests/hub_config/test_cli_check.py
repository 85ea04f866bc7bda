"""`sessions check`, and what `sessions show` says about a suspend."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from hub_config.paths import StateFolder
from scheduler_bridge.model.workload import Workload
from snapshot.model import Process
from spawner.site import read_site, write_site
from spawner.supervisor.status import Status, write_status
from tests.builders.sandboxes import Box, sandboxes
from tests.builders.site import needs_sandbox
from tests.hub_config.cli_bench import Cli, Service, running_service, state_at
from tests.hub_config.cli_store import store_at
from tests.snapshot.obstacles import start

KEYS = "import pty\npid, held = pty.fork()\nif pid == 0:\n    keys = open('/dev/tty'); {after}"
MENU = KEYS.format(after="print('x', flush=True); time.sleep(999)\nos.read(held, 1)")


@pytest.fixture
def service() -> Iterator[Service]:
    with running_service() as found:
        yield found


@pytest.fixture
def cli(service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    cli = Cli(service, state_at(tmp_path / "state", service.port), monkeypatch)
    cli.as_root()
    store_at(cli.state)
    site = read_site(cli.state.site_file)
    write_site(replace(site, run_directory=str(cli.state.run)), cli.state.site_file)
    return cli


@pytest.fixture
def passable() -> Iterator[Path]:
    """A folder that a sandbox's account can pass, unlike pytest's own."""
    with TemporaryDirectory(prefix="hubernate-box-") as name:
        Path(name).chmod(0o711)
        yield Path(name)


@pytest.fixture
async def box(passable: Path) -> AsyncIterator[Box]:
    async with sandboxes(passable / "b") as made:
        yield made


def supervised(
    state: StateFolder, session: Workload, tree: Process, phase: str = "running"
) -> None:
    """Leave what the session's supervisor would have written."""
    folder = state.run / session.id
    folder.mkdir(exist_ok=True)
    write_status(folder, Status(session.id, phase, sandbox=tree))


# -- check -----------------------------------------------------------------------------------


@needs_sandbox
async def test_a_session_that_could_be_suspended(cli: Cli, box: Box) -> None:
    await start(box, "memory = bytearray(os.urandom(1 << 20)) * 50")
    session = await asyncio.to_thread(lambda: cli.service.run(cli.service.session()))
    supervised(cli.state, session, box.process)
    said = await asyncio.to_thread(cli.ok, "sessions", "check", "ada")
    assert said.startswith("ada: Can be suspended: ")
    assert "threads stood still for 0." in said
    found = await asyncio.to_thread(cli.json, "sessions", "check", "ada")
    assert found["verdict"]["blockers"] == []
    assert found["verdict"]["bytes"] > 50 << 20
    assert found["threads"] >= 3
    before = len(box.output())
    await box.says("turn", after=before)


@needs_sandbox
async def test_a_session_that_could_not_says_why_and_what_helps(cli: Cli, box: Box) -> None:
    await start(box, MENU)
    session = await asyncio.to_thread(lambda: cli.service.run(cli.service.session()))
    supervised(cli.state, session, box.process)
    result = await asyncio.to_thread(cli, "sessions", "check", "ada")
    assert result.exit_code == 1
    assert result.stdout.startswith("ada: Cannot be suspended.\n")
    assert "reads keys past its terminal" in result.stdout
    assert "Leave the prompt" in result.stdout
    result = await asyncio.to_thread(cli, "sessions", "check", "ada", "--json")
    assert result.exit_code == 1
    (blocker,) = json.loads(result.stdout)["verdict"]["blockers"]
    assert "/dev/tty" in blocker["what"]


def test_only_running_sessions_of_this_machine_are_checked(cli: Cli) -> None:
    waiting = cli.service.session("bob")
    assert "bob is starting" in cli.fails("sessions", "check", waiting.id)
    session = cli.service.run(cli.service.session())
    assert "no supervisor on this machine" in cli.fails("sessions", "check", "ada")
    supervised(cli.state, session, Process(1, 1), "suspending")
    assert "ada is suspending" in cli.fails("sessions", "check", "ada")
    cli.state.site_file.unlink()
    assert "not found on this machine" in cli.fails("sessions", "check", "ada")


def test_a_test_freeze_is_the_administrators(cli: Cli) -> None:
    cli.in_a_session()
    assert "for the administrator" in cli.fails("sessions", "check", "ada")


# -- show ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("signals", "words"),
    [
        (
            {"freezable": True, "suspend_bytes": 2_500_000_000, "suspend_seconds": 14.2},
            ["suspend       Can be suspended: 2.5 GB of memory, 14 s at most"],
        ),
        (
            {"freezable": False, "blockers": ["a (process 7): it hangs.", "b (process 8): too."]},
            [
                "suspend       Cannot be suspended.",
                "\n              a (process 7)",
                "\n              b",
            ],
        ),
    ],
)
def test_show_says_whether_it_can_be_suspended(
    cli: Cli, signals: dict[str, Any], words: list[str]
) -> None:
    session = cli.service.run(cli.service.session())
    assert "suspend  " not in cli.ok("sessions", "show", "ada")
    cli.service.report(session, signals)
    shown = cli.ok("sessions", "show", "ada")
    for each in words:
        assert each in shown
