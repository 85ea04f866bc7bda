"""What fails after CRIU has let the tree run: nothing of it may go on, least of all without memory."""

from __future__ import annotations

import os

import pytest

from snapshot import proc
from snapshot.freezer import LazySource, LocalFreezer
from snapshot.restore import PID_FILE
from tests.builders.sandboxes import Box

pytestmark = [pytest.mark.criu, pytest.mark.usefixtures("working_criu")]


@pytest.mark.parametrize("is_lazy", [True, False])
async def test_a_restore_that_fails_when_the_tree_runs_already_leaves_nothing(
    box: Box, is_lazy: bool
) -> None:
    await box.start("/bin/sh", "-c", "echo up; exec sleep 600")
    await box.says("up")
    stored = await box.freeze()
    lazy = LazySource(box.settings) if is_lazy else None
    freezer = LocalFreezer(box.tools, box.repository, lazy=lazy)

    def fail(step: str, seconds: float) -> None:
        if step == "restore":
            raise RuntimeError("the listener is gone")

    with pytest.raises(RuntimeError, match="the listener is gone"):
        await freezer.thaw(box.spec, stored.manifest, on_step=fail)
    pid = int((box.spec.directory / PID_FILE).read_text())
    left = proc.identify(pid)
    assert left is None or proc.has_ended(left)
    assert pid not in proc.children(os.getpid())
