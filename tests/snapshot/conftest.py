"""Sandboxes for tests: skipped, with the reason, only where the machine cannot run them."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from snapshot import criu
from tests.builders.sandboxes import Box, installed_tools, sandboxes


@pytest.fixture(scope="session")
def working_criu() -> None:
    """Skips where sessions cannot be frozen, saying why."""
    capability = asyncio.run(criu.check(installed_tools()))
    if not capability.works:
        pytest.skip(f"{capability.reason} {capability.remedy}")


@pytest.fixture
def passable() -> Iterator[Path]:
    """A folder that a sandbox's account can pass, unlike pytest's own, which are private."""
    folder = Path(tempfile.mkdtemp(prefix="hubernate-box-"))
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
async def box(passable: Path) -> AsyncIterator[Box]:
    """A sandbox folder of its own, and everything started in it ended."""
    if os.geteuid() != 0:
        pytest.skip("sandboxes need root")
    async with sandboxes(passable / "b") as made:
        yield made
