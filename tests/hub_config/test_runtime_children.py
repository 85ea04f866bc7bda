"""Programs are started, watched, adopted and ended, and never mistaken for others."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from hub_config.children import Children, Program, Record, last_line, read_records
from hub_config.problems import NotReady

SERVE = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(600)"
REFUSES_TO_END = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);" + SERVE


def program(folder: Path, code: str = SERVE, **changes: object) -> Program:
    """A program that is ready once it has written its PID."""
    ready = folder / "ready"

    async def probe() -> str:
        return "" if ready.exists() and ready.read_text() else "no PID was written yet"

    values: dict[str, object] = {
        "name": "one",
        "argv": (sys.executable, "-c", code, str(ready)),
        "environment": {"PATH": os.environ["PATH"]},
        "log_file": folder / "one.log",
        "probe": probe,
        "ready_seconds": 20.0,
        "end_seconds": 10.0,
    }
    return Program(**(values | changes))  # type: ignore[arg-type]


@asynccontextmanager
async def children(folder: Path) -> AsyncIterator[Children]:
    """Ended on every path, so that no test leaves a process behind."""
    made = Children(folder / "children.json")
    try:
        yield made
    finally:
        await made.end()


async def until(claim: Callable[[], bool]) -> None:
    """Wait for something outside this program to become true."""
    async with asyncio.timeout(20):
        while not claim():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_a_program_is_recorded_and_ended(tmp_path: Path) -> None:
    async with children(tmp_path) as ours:
        assert await ours.start(program(tmp_path)) is False
        record = read_records(tmp_path / "children.json")["one"]
        assert record.pid == int((tmp_path / "ready").read_text())
        assert record.is_alive()
    assert not record.is_alive()
    assert read_records(tmp_path / "children.json") == {}


async def test_a_killed_program_is_started_again(tmp_path: Path) -> None:
    async with children(tmp_path) as ours:
        await ours.start(program(tmp_path))
        first = ours.record("one")
        assert first is not None
        os.kill(first.pid, signal.SIGKILL)
        await until(lambda: ours.record("one") not in (None, first))
        await until(lambda: (tmp_path / "ready").read_text() == str(ours.record("one").pid))  # type: ignore[union-attr]
        assert ours.restarts == {"one": 1}


async def test_a_program_left_running_is_adopted_and_watched(tmp_path: Path) -> None:
    async with children(tmp_path) as first_run:
        await first_run.start(program(tmp_path))
        left = first_run.record("one")
        assert left is not None
        async with children(tmp_path) as second_run:
            assert await second_run.start(program(tmp_path)) is True
            assert second_run.record("one") == left
            first_run._tasks["one"].cancel()  # the first run died: nobody watches from there
            os.kill(left.pid, signal.SIGKILL)
            await until(lambda: second_run.record("one") not in (None, left))


async def test_other_settings_replace_a_program_left_running(tmp_path: Path) -> None:
    settings = tmp_path / "settings"
    settings.write_text("1")
    async with children(tmp_path) as first_run:
        await first_run.start(program(tmp_path, inputs=(settings,)))
        left = first_run.record("one")
        first_run._tasks["one"].cancel()
        settings.write_text("2")
        async with children(tmp_path) as second_run:
            assert await second_run.start(program(tmp_path, inputs=(settings,))) is False
            assert left is not None
            assert not left.is_alive()


async def test_a_stranger_with_the_recorded_pid_is_left_alone(tmp_path: Path) -> None:
    stranger = await asyncio.create_subprocess_exec(sys.executable, "-c", "input()", stdin=-1)
    try:
        started = psutil.Process(stranger.pid).create_time()
        record = Record(stranger.pid, started - 100, "whatever")
        assert not record.is_alive()
        async with children(tmp_path) as ours:
            ours._records["one"] = record
        assert stranger.returncode is None
        assert psutil.pid_exists(stranger.pid)
    finally:
        stranger.kill()
        await stranger.wait()


async def test_a_program_that_does_not_end_is_killed(tmp_path: Path) -> None:
    async with children(tmp_path) as ours:
        await ours.start(program(tmp_path, REFUSES_TO_END, end_seconds=0.2))
        record = ours.record("one")
    assert record is not None
    assert not record.is_alive()


async def test_a_program_that_ends_at_once_says_why(tmp_path: Path) -> None:
    async with children(tmp_path) as ours:
        with pytest.raises(NotReady, match=r"no such thing.*one\.log"):
            await ours.start(program(tmp_path, "raise SystemExit('no such thing')"))


async def test_a_program_that_never_gets_ready_has_a_deadline(tmp_path: Path) -> None:
    async with children(tmp_path) as ours:
        with pytest.raises(NotReady, match="was not ready after 0 s: no PID"):
            await ours.start(program(tmp_path, "import time; time.sleep(60)", ready_seconds=0.3))


def test_no_secret_can_be_read_from_a_digest(tmp_path: Path) -> None:
    shown = program(tmp_path, environment={"TOKEN": "s3cret"}).digest()
    assert "s3cret" not in shown
    assert shown != program(tmp_path, environment={"TOKEN": "other"}).digest()


@pytest.mark.parametrize(
    ("content", "line"),
    [("one\ntwo\n\n", "two"), ("\n", "its log is empty"), (None, "it wrote no log")],
)
def test_the_last_line_of_a_log(tmp_path: Path, content: str | None, line: str) -> None:
    if content is not None:
        (tmp_path / "log").write_text(content)
    assert last_line(tmp_path / "log") == line
