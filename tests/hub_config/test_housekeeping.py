"""What runs every hour: a real process each time, without waiting an hour."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import psutil

from hub_config.cli import app
from hub_config.housekeeping import FIRST_SECONDS, INTERVAL_SECONDS, Housekeeping, collecting
from hub_config.settings import LocalSettings


def keeping(tmp_path: Path, code: str) -> tuple[Housekeeping, list[float], asyncio.Event]:
    """With waits that are over at once, until the third begins."""
    waits: list[float] = []
    third = asyncio.Event()

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) >= 3:
            third.set()
            await asyncio.Event().wait()

    argv = (sys.executable, "-c", code)
    return Housekeeping(argv, {"WORD": "hello"}, tmp_path / "log", sleep), waits, third


async def test_it_runs_again_and_again_and_a_failure_does_not_end_it(tmp_path: Path) -> None:
    code = "import os, sys; print(os.environ['WORD'], 'PATH' in os.environ); sys.exit(3)"
    housekeeping, waits, third = keeping(tmp_path, code)
    task = asyncio.create_task(housekeeping.run())
    async with asyncio.timeout(60):
        await third.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    lines = (tmp_path / "log").read_text().splitlines()
    assert [line for line in lines if "hello" in line] == ["hello False"] * 2
    assert len(lines) == 4  # and the time of each run
    assert waits[0] == FIRST_SECONDS
    assert all(0.9 <= wait / INTERVAL_SECONDS <= 1.1 for wait in waits[1:])


async def test_a_program_that_is_not_there_does_not_end_it(tmp_path: Path) -> None:
    housekeeping, _, third = keeping(tmp_path, "")
    housekeeping.argv = ("/nowhere/python",)
    task = asyncio.create_task(housekeeping.run())
    async with asyncio.timeout(60):
        await third.wait()
    assert housekeeping.runs == 2
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_the_process_ends_with_the_installation(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    os.mkfifo(ready)
    code = f"import os; open({str(ready)!r}, 'w').write(str(os.getpid())); input_ = os.read(os.pipe()[0], 1)"
    housekeeping, _, _ = keeping(tmp_path, code)
    task = asyncio.create_task(housekeeping.once())
    pid = int(await asyncio.to_thread(ready.read_text))
    assert psutil.pid_exists(pid)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert not psutil.pid_exists(pid)


def test_it_is_a_command_that_there_is(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    settings = LocalSettings(str(tmp_path), str(tmp_path))
    argv = collecting(settings, {}).argv
    assert argv[:4] == (str(tmp_path / "venv/bin/python"), "-P", "-m", "hub_config.cli")
    assert CliRunner().invoke(app, [*argv[4:], "--help"]).exit_code == 0
