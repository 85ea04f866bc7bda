"""Network helpers of sandboxes that are gone are ended; all others are left alone."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from hub_config.leftovers import end_stray_links
from snapshot import proc, sandbox
from spawner.supervisor.status import Status, write_status
from tests.builders.sandboxes import Box, sandboxes

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="sandboxes need root")


@pytest.fixture
async def box() -> AsyncIterator[Box]:
    with TemporaryDirectory(prefix="hubernate-run-") as name:
        os.chmod(name, 0o711)
        async with sandboxes(Path(name, "s-1")) as made:
            yield made


def tell(box: Box, folder: Path) -> None:
    write_status(folder, Status("s-1", "running", supervisor=None, sandbox=box.process))


async def test_only_the_helper_of_a_sandbox_that_is_gone_is_ended(box: Box) -> None:
    folder = Path(box.spec.directory)
    await box.start("/bin/sleep", "1000")
    link = await box.connect()
    assert await end_stray_links(folder.parent) == (), "nobody knows of its sandbox"
    tell(box, folder)
    assert await end_stray_links(folder.parent) == (), "its sandbox lives"
    await sandbox.terminate(box.process, 0.0)
    assert not proc.has_ended(link.process), "it does not end by itself"
    assert await end_stray_links(folder.parent) == (link.process.pid,)
    assert proc.has_ended(link.process)
    assert await end_stray_links(folder.parent) == ()
