"""An installation of its own for one play: temporary state folder, own ports, shared downloads."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from hub_config.demo.browserless import StoryError


@dataclass(slots=True)
class Stage:
    """A running `hubernate up` and the command line beside it."""

    state: Path
    port: int
    idle_after: float
    idle_note: str
    environment: dict[str, str]
    process: asyncio.subprocess.Process

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def hubernate(self, *arguments: str) -> str:
        """Run the command line as the machine's administrator; returns its output."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "hub_config.cli", *arguments),
            env=self.environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate()
        if process.returncode != 0:
            command = " ".join(arguments[:2])
            raise StoryError(f"hubernate {command} failed: {err.decode()[-600:]}{out.decode()}")
        return out.decode()

    async def hubernate_json(self, *arguments: str) -> Any:
        """The same for a command with `--json`."""
        return json.loads(await self.hubernate(*arguments))

    async def cancel_jobs(self) -> None:
        """End the jobs that still run: they would outlive the installation, as they should."""
        for job in await self.hubernate_json("jobs", "--json"):
            await self.hubernate("cancel", job["id"])

    def child(self, name: str) -> int:
        """PID of one of the installation's programs, from its own record."""
        children = json.loads((self.state / "run" / "children.json").read_text())
        return int(children[name]["pid"])

    async def kill(self, name: str) -> int:
        """Kill a program as a crash would; `up` starts it again. Returns the PID that died."""
        pid = self.child(name)
        os.kill(pid, signal.SIGKILL)
        return pid

    def hold(self, name: str) -> int:
        """Stop a program without ending it, as an overloaded machine would. Returns its PID."""
        pid = self.child(name)
        os.kill(pid, signal.SIGSTOP)
        return pid

    def password(self) -> str:
        """The demo users' password, as printed at the start."""
        return (self.state / "secrets" / "demo-password").read_text().strip()


def free_port_block(count: int = 5) -> int:
    """A port P such that P..P+count-1 are free on the loopback address at this moment."""
    for first in range(18000 + os.getpid() % 1000 * 10, 60000, 10):
        try:
            for port in range(first, first + count):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        return first
    raise StoryError("no free block of ports on the loopback address")


def _tail(log: Path) -> str:
    return log.read_text()[-3000:]


async def _until_up(stage: Stage, log: Path, *, timeout: float) -> None:
    async with asyncio.timeout(timeout), httpx.AsyncClient() as http:
        while True:
            if stage.process.returncode is not None:
                raise StoryError(f"hubernate up ended: {_tail(log)}")
            try:
                answers = [
                    await http.get(f"{stage.url}/hub/login"),
                    await http.get(f"{stage.url}/services/hubernate/healthz"),
                ]
                if all(answer.status_code == 200 for answer in answers):
                    return
            except httpx.TransportError:
                pass
            await asyncio.sleep(0.1)


@asynccontextmanager
async def installation(
    state: Path,
    *,
    downloads: Path,
    gpus: int = 1,
    idle_after: float = 8.0,
    arguments: tuple[str, ...] = (),
) -> AsyncIterator[Stage]:
    """Start `hubernate up` on free ports; end it with all its programs afterwards."""
    port = free_port_block()
    log = state.with_name(state.name + "-up.log")
    environment = os.environ | {
        "HUBERNATE_STATE": str(state),
        "HUBERNATE_DOWNLOADS": str(downloads),
    }
    with open(log, "wb") as output:  # noqa: ASYNC230 - once, before anything runs
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "hub_config.cli", "up", "--port", str(port)),
            *("--gpus", str(gpus), "--idle-after", f"{idle_after:g}s", *arguments),
            env=environment,
            stdout=output,
            stderr=output,
        )
    note = f"idle time scaled to {idle_after:g} s"
    stage = Stage(state, port, idle_after, note, environment, process)
    try:
        await _until_up(stage, log, timeout=90)
        yield stage
        await stage.cancel_jobs()
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
            await asyncio.wait_for(process.wait(), 120)
