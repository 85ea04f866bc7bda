"""Real installations for end-to-end tests: `hubernate up`, its Hub, proxy, CRIU and S3 server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import pytest_asyncio

from hub_config.demo.browserless import Researcher, log_in
from hub_config.demo.stage import Stage, installation
from hub_config.paths import state_folder
from tests.e2e.scenes import end


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A folder that session users can pass through, unlike pytest's own temporary ones."""
    with TemporaryDirectory(prefix="hubernate-e2e-") as name:
        path = Path(name)
        path.chmod(0o711)
        yield path


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def two_gpus(folder: Path) -> AsyncIterator[Stage]:
    """One installation per test module: two virtual GPUs, nobody idle for long enough to be
    suspended unless a test asks for it."""
    async with installation(
        folder / "state", downloads=state_folder().downloads, gpus=2, idle_after=3600
    ) as stage:
        yield stage


@asynccontextmanager
async def researcher(stage: Stage, name: str) -> AsyncIterator[Researcher]:
    """A logged-in user, with every session ended and forgotten afterwards."""
    user = await log_in(stage.url, name, stage.password())
    try:
        yield user
        for session in await user.sessions():
            await end(user, server=session["server"])
    finally:
        await user.http.aclose()


@pytest_asyncio.fixture(loop_scope="module")
async def alice(two_gpus: Stage) -> AsyncIterator[Researcher]:
    async with researcher(two_gpus, "alice") as user:
        yield user


@pytest_asyncio.fixture(loop_scope="module")
async def bob(two_gpus: Stage) -> AsyncIterator[Researcher]:
    async with researcher(two_gpus, "bob") as user:
        yield user
