"""Sandboxes for tests: skipped, with the reason, only where the machine cannot run them."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from snapshot import criu
from tests.builders.cuda import CudaStub, GpuTree, Trees, build, gpu_tree
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


@pytest.fixture
def cuda_stub(tmp_path: Path) -> CudaStub:
    """A scripted driver; the first three programs of a tree have CUDA."""
    made = build(tmp_path / "libraries")
    made.programs(1, 2, 3)
    return made


@pytest.fixture
def gpu_trees(tmp_path: Path) -> Iterator[Trees]:
    """Starts a tree of as many programs."""
    if os.geteuid() != 0:
        pytest.skip("a tree with devices of its own needs root")
    with ExitStack() as started:

        def start(count: int, *words: str, gpus: int = 1) -> GpuTree:
            return started.enter_context(gpu_tree(tmp_path / "tree", count, *words, gpus=gpus))

        yield start
