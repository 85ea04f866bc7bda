"""One real Hub and proxy per test module, on the fakes of `tests.fakes.plain_spawner`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.builders.hub import RunningHub, running_hub
from tests.fakes.plain_spawner import CONFIG


@pytest.fixture(scope="module")
def sessions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the fake host keeps its sessions' folders."""
    return tmp_path_factory.mktemp("hub") / "sessions"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hub(sessions: Path) -> AsyncIterator[RunningHub]:
    async with running_hub(sessions.parent, CONFIG.format(folder=str(sessions))) as running:
        yield running
