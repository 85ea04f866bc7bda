"""A Jupyter Server in a real sandbox, as the product starts it, whose user has turned on cullers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from snapshot import sandbox
from snapshot.freezer import FreezeFailedError, LocalFreezer
from snapshot.model import Bind, NetworkSpec, StoreSettings
from snapshot.repository import open_repository
from spawner.local import SINGLEUSER_ARGUMENTS
from spawner.supervisor import inside
from tests.builders.jupyter import TOKEN, Server, page
from tests.builders.s3 import S3Server
from tests.builders.sandboxes import Box, sandboxes, until
from tests.fakes.repositories import StoreDiesAtTheCommit

SOURCE = Path(__file__).resolve().parents[2]
UP_SECONDS = 60.0

CULLERS = (
    "--MappingKernelManager.cull_idle_timeout=3600",
    "--MappingKernelManager.cull_interval=1",
    "--TerminalManager.cull_inactive_timeout=3600",
    "--TerminalManager.cull_interval=1",
)


@dataclass
class Session:
    """The server, and the box that it runs in. `kernels` and `terminals` by what they are for."""

    box: Box
    server: Server
    kernels: dict[str, str]

    async def run(self, name: str, code: str) -> str:
        """What a cell prints in the kernel called `name`, which is started if there is none."""
        if name not in self.kernels:
            self.kernels[name] = await self.server.start_kernel()
        return (await self.server.execute(self.kernels[name], code)).strip()

    async def type(self, terminal: str, keys: str, *, shows: str) -> str:
        """Keys typed into a terminal, as its page does; what it shows up to `shows`."""
        url = self.server.url.replace("http", "ws", 1)
        async with page(f"{url}terminals/websocket/{terminal}?token={TOKEN}") as screen:
            await screen.write_message(json.dumps(["stdin", keys]))
            seen = ""
            async with asyncio.timeout(20):
                while shows not in seen:
                    raw = await screen.read_message()
                    assert raw is not None, f"the terminal was closed after {seen!r}"
                    kind, *content = json.loads(raw)
                    seen += content[0] if kind == "stdout" else ""
            return seen

    async def undo_a_suspend(self) -> None:
        """Freeze, and let go on because the store fails."""
        failing = LocalFreezer(self.box.tools, StoreDiesAtTheCommit(self.box.repository))
        with pytest.raises(FreezeFailedError, match="store does not answer"):
            await self.box.freeze(failing)
        await self._reconnect()

    async def sleep_eight_hours(self) -> None:
        """Freeze and thaw, with everything looking idle for eight hours."""
        asking = asyncio.create_task(self._age())
        await until((self.box.home / "aged").exists, "the server stands still")
        old = self.box.process
        stored = await self.box.freeze()
        assert sandbox.is_empty(old)
        with contextlib.suppress(httpx.HTTPError):
            await asking  # its connection was closed
        inside.announce_gap(self.box.spec, epoch=2, now=time.time(), seconds=None)
        await self.box.thaw(stored)
        await self._reconnect()

    async def _age(self) -> None:
        await self.server.call("POST", "eight-hours?until=resume")

    async def _reconnect(self) -> None:
        link = await self.box.connect()
        self.server = Server(link.host_port)
        await answers(self.server)


async def answers(server: Server) -> None:
    """Wait until the server does."""
    async with asyncio.timeout(UP_SECONDS), httpx.AsyncClient(trust_env=False) as client:
        while True:
            with contextlib.suppress(httpx.HTTPError):
                if (await client.get(f"{server.url}api")).status_code == 200:
                    return
            await asyncio.sleep(0.05)


@asynccontextmanager
async def session(folder: Path, store: S3Server) -> AsyncIterator[Session]:
    """A session whose snapshots go to an S3 server."""
    async with sandboxes(folder / "b") as box:
        box.settings = _settings(folder, store)
        box.repository = open_repository(box.settings)
        shutil.copy(Path(__file__).parent / "eight_hours.py", box.home)
        binds = [Bind(path, path, read_only=True) for path in (sys.prefix, str(SOURCE))]
        box.spec = replace(box.spec, binds=(*box.spec.binds, *binds), network=NetworkSpec())
        await box.start(*_command(), environment=_environment())
        made = Session(box, Server((await box.connect()).host_port), {})
        await answers(made.server)
        yield made


def _settings(folder: Path, store: S3Server) -> StoreSettings:
    credentials = folder / "credentials.json"
    keys = {"access_key": store.access_key, "secret_key": store.secret_key}
    credentials.write_text(json.dumps(keys))
    return StoreSettings(
        "s3",
        store.endpoint,
        bucket="survival",
        credentials_file=str(credentials),
        keys_directory=str(folder / "keys"),
        cache_directory=str(folder / "cache"),
    )


def _command() -> tuple[str, ...]:
    """As the product starts it, with the user's own arguments in place of the product's."""
    own = (
        *CULLERS,
        "--ServerApp.jpserver_extensions={'spawner.extension': True, 'eight_hours': True}",
        f"--IdentityProvider.token={TOKEN}",
    )
    names = {word.split("=")[0] for word in own}
    ours = [word for word in SINGLEUSER_ARGUMENTS if word.split("=")[0] not in names]
    return (
        f"{sys.prefix}/bin/python",
        *("-m", "jupyter_server", "--ServerApp.ip=0.0.0.0", "--ServerApp.port=8888"),
        *(word for word in ours if "LabApp" not in word),
        *own,
    )


def _environment() -> dict[str, Any]:
    return {
        "PATH": f"{sys.prefix}/bin:/usr/local/bin:/usr/bin:/bin",
        "PYTHONPATH": f"{SOURCE}:/home/alice",
        "PYTHONDONTWRITEBYTECODE": "1",
        "MPLCONFIGDIR": "/tmp",
        "JUPYTER_PLATFORM_DIRS": "1",
    }
