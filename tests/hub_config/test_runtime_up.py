"""`hubernate up` as a person starts it: the real programs, killed, left behind, found and ended."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil
import pytest
import pytest_asyncio

from hub_config.children import Record, read_records
from hub_config.demo.stage import free_port_block
from hub_config.installation import stray_proxy
from hub_config.paths import StateFolder, state_folder

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

PROGRAMS = ["store", "scheduler", "hub", "reclaimer"]


@dataclass
class Installation:
    """One state folder on ports of its own, and every `up` that was started for it."""

    folder: StateFolder
    port: int
    started: list[asyncio.subprocess.Process] = field(default_factory=list)

    def environment(self) -> dict[str, str]:
        return os.environ | {
            "HUBERNATE_STATE": str(self.folder.root),
            "HUBERNATE_DOWNLOADS": str(self.folder.downloads),
        }

    async def command(self, *arguments: str) -> asyncio.subprocess.Process:
        """Start the command line with its output on one pipe."""
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "hub_config.cli", *arguments),
            env=self.environment(),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )

    async def up(self) -> tuple[asyncio.subprocess.Process, str]:
        """Start `up`; returns once it says where to log in, with what it said until then."""
        process = await self.command("up", "--port", str(self.port), "--gpus", "1")
        self.started.append(process)
        assert process.stdout is not None
        said = ""
        async with asyncio.timeout(90):
            while "log in as" not in said:
                line = await process.stdout.readline()
                assert line, f"`up` ended: {said}"
                said += line.decode()
        return process, said

    async def down(self, *arguments: str) -> str:
        """Run `down` to its end; returns what it said."""
        process = await self.command("down", *arguments)
        output, _ = await asyncio.wait_for(process.communicate(), 90)
        return output.decode()

    def records(self) -> dict[str, Record]:
        return read_records(self.folder.children_file)

    async def hub_answers(self) -> bool:
        async with httpx.AsyncClient(timeout=3) as client:
            try:
                answer = await client.get(f"http://127.0.0.1:{self.port}/hub/health")
            except httpx.TransportError:
                return False
            return answer.is_success


@pytest.fixture
def open_folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="hubernate-up-"))
    path.chmod(0o711)
    yield path
    shutil.rmtree(path)


@pytest_asyncio.fixture
async def installation(open_folder: Path) -> AsyncIterator[Installation]:
    folder = StateFolder(open_folder / "state", state_folder().downloads)
    made = Installation(folder, free_port_block())
    try:
        yield made
    finally:
        await made.down()
        for process in made.started:
            if process.returncode is None:
                process.kill()
            await process.wait()


async def until(claim: Callable[[], Awaitable[bool]], *, seconds: float = 60) -> None:
    """Wait for something that other programs bring about."""
    async with asyncio.timeout(seconds):
        while not await claim():  # noqa: ASYNC110
            await asyncio.sleep(0.1)


async def test_killed_programs_come_back_and_ctrl_c_ends_everything(
    installation: Installation,
) -> None:
    process, said = await installation.up()
    first = installation.records()
    assert sorted(first) == sorted(PROGRAMS)
    for name in PROGRAMS:
        assert f"{name}: ready after" in said
        os.kill(first[name].pid, signal.SIGKILL)

    async def all_are_new() -> bool:
        now = installation.records()
        return all(name in now and now[name].pid != first[name].pid for name in PROGRAMS)

    await until(all_are_new)
    await until(installation.hub_answers)
    process.send_signal(signal.SIGINT)
    await asyncio.wait_for(process.wait(), 60)
    assert process.returncode == 0
    assert installation.records() == {}
    assert not await installation.hub_answers()
    assert not left_over(installation)


async def test_what_a_killed_up_left_is_found_by_the_next(installation: Installation) -> None:
    process, _ = await installation.up()
    before = installation.records()
    process.kill()
    await process.wait()
    assert all(record.is_alive() for record in before.values())
    _, said = await installation.up()
    assert {name: record.pid for name, record in installation.records().items()} == {
        name: record.pid for name, record in before.items()
    }
    assert "hub: found running" in said


async def test_what_a_killed_up_left_is_ended_by_down(installation: Installation) -> None:
    process, _ = await installation.up()
    before = installation.records()
    process.kill()
    await process.wait()
    assert (await installation.down()).endswith("ended\n")
    assert not any(record.is_alive() for record in before.values())
    assert await installation.down() == "nothing was running\n"
    assert not left_over(installation)


async def test_a_second_up_is_refused_and_disturbs_nothing(installation: Installation) -> None:
    process, _ = await installation.up()
    settings = installation.folder.settings_file.read_text()
    second = await installation.command("up", "--gpus", "3")
    output, _ = await asyncio.wait_for(second.communicate(), 30)
    assert second.returncode == 1
    assert f"already runs for {installation.folder.root} (PID {process.pid})" in output.decode()
    assert installation.folder.settings_file.read_text() == settings


async def test_a_taken_port_is_refused_by_name(installation: Installation) -> None:
    listener = await asyncio.start_server(lambda *_: None, "127.0.0.1", installation.port + 3)
    async with listener:
        refused = await installation.command("up", "--port", str(installation.port))
        output, _ = await asyncio.wait_for(refused.communicate(), 30)
    assert refused.returncode == 1
    assert f"Port {installation.port + 3} (scheduler) is taken by PID {os.getpid()}" in (
        output.decode().replace("\n", " ")
    )
    assert installation.records() == {}


async def test_no_secret_is_in_any_argument_vector(installation: Installation) -> None:
    await installation.up()
    secrets = [
        path.read_text().strip() for path in installation.folder.secrets.iterdir() if path.is_file()
    ]
    tokens = json.loads((installation.folder.secrets / "service-tokens.json").read_text())
    vectors = [
        argument
        for record in installation.records().values()
        for process in (psutil.Process(record.pid), *psutil.Process(record.pid).children())
        for argument in process.cmdline()
    ]
    for secret in (*secrets, *tokens.values()):
        assert not any(secret in argument for argument in vectors)


def left_over(installation: Installation) -> list[list[str]]:
    """Command lines of processes that name this state folder, and of its proxy."""
    mark = str(installation.folder.root)
    proxy = stray_proxy(installation.folder)
    found = [proxy.cmdline()] if proxy else []
    for process in psutil.process_iter(["cmdline"]):
        command = process.info["cmdline"] or []
        if any(mark in argument for argument in command):
            found.append(command)
    return found
