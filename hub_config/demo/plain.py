"""The same minute beside ours with what people run today: a Hub, a culler, and what is lost.

A second, unmodified JupyterHub on ports of its own with `jupyterhub-idle-culler`, its time-out scaled
like our idle time. Users are not isolated there; it lives for one demo on the loopback address.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from hub_config.demo.browserless import Researcher, StoryError, log_in

CONFIG = """
import os, sys
c = get_config()
port = int(os.environ["PLAIN_PORT"])
c.JupyterHub.bind_url = f"http://127.0.0.1:{port}"
c.JupyterHub.hub_port = port + 1
c.ConfigurableHTTPProxy.api_url = f"http://127.0.0.1:{port + 2}"
c.ConfigurableHTTPProxy.command = os.environ["PLAIN_PROXY"].split("\\n")
c.JupyterHub.authenticator_class = "dummy"
c.DummyAuthenticator.password = os.environ["PLAIN_PASSWORD"]
c.Authenticator.allow_all = True
c.JupyterHub.spawner_class = "simple"
c.Spawner.cmd = [os.path.join(os.path.dirname(sys.executable), "jupyterhub-singleuser")]
c.Spawner.args = ["--allow-root"]
c.SimpleLocalProcessSpawner.home_dir_template = os.environ["PLAIN_HOMES"] + "/{username}"
c.JupyterHub.last_activity_interval = 1
c.JupyterHub.load_roles = [{
    "name": "culler",
    "scopes": ["list:users", "read:users:activity", "read:servers", "delete:servers"],
    "services": ["culler"],
}]
c.JupyterHub.services = [{
    "name": "culler",
    "command": [sys.executable, "-m", "jupyterhub_idle_culler",
                "--timeout=" + os.environ["PLAIN_TIMEOUT"], "--cull-every=1"],
}]
"""


def _prepare(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.py").write_text(CONFIG)


@asynccontextmanager
async def plain_hub(
    folder: Path, *, port: int, proxy_command: list[str], timeout_seconds: int, password: str
) -> AsyncIterator[str]:
    """A running plain Hub with a culler; yields its address and ends it afterwards."""
    await asyncio.to_thread(_prepare, folder)
    environment = os.environ | {
        "PLAIN_PORT": str(port),
        "PLAIN_PROXY": "\n".join(proxy_command),
        "PLAIN_PASSWORD": password,
        "PLAIN_TIMEOUT": str(timeout_seconds),
        "PLAIN_HOMES": str(folder / "homes"),
    }
    with open(folder / "hub.log", "wb") as log:  # noqa: ASYNC230 - once, before anything runs
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "jupyterhub",
            "-f",
            str(folder / "config.py"),
            cwd=folder,
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        if process.returncode is None:
            process.terminate()
            await asyncio.wait_for(process.wait(), 30)


async def _log_in_when_up(url: str, password: str) -> Researcher:
    async with asyncio.timeout(60):
        while True:
            try:
                return await log_in(url, "alice", password)
            except (httpx.TransportError, StoryError):
                await asyncio.sleep(0.2)


async def lose_a_variable(url: str, password: str) -> str:
    """Set a variable, be culled, come back; returns one sentence on what was left."""
    alice = await _log_in_when_up(url, password)
    await alice.open({})
    kernel_id = await alice.new_kernel()
    async with alice.kernel(kernel_id) as kernel:
        await kernel.run("answer = 42")
    await alice.until_stopped(timeout=90)
    await alice.open({})
    if kernel_id in [kernel["id"] for kernel in await alice.kernels()]:
        raise StoryError("the plain culler left the kernel alive; there is nothing to compare")
    async with alice.kernel(await alice.new_kernel()) as kernel:
        left = await kernel.run("print('answer' in dir())")
    await alice.http.aclose()
    return f"server culled; kernel {kernel_id[:8]} is gone; variable there after return: {left}"
