"""What can be frozen at all on this machine, and folders that sandboxes can pass."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from snapshot import criu
from tests.builders.sandboxes import installed_tools


@pytest.fixture(scope="module", autouse=True)
def working_criu() -> None:
    """Skips where sessions cannot be frozen, saying why."""
    if os.geteuid() != 0:
        pytest.skip("sandboxes need root")
    capability = asyncio.run(criu.check(installed_tools()))
    if not capability.works:
        pytest.skip(f"{capability.reason} {capability.remedy}")


@pytest.fixture(scope="module")
def open_folder() -> Iterator[Path]:
    """A folder that a sandbox's account can pass, unlike pytest's own, which are private."""
    with tempfile.TemporaryDirectory(prefix="hubernate-survival-") as name:
        folder = Path(name)
        folder.chmod(0o711)
        yield folder
