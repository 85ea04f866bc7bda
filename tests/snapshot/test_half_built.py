"""A CRIU that is killed leaves half a tree behind, which is not its child any more."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from snapshot import proc, sandbox
from snapshot.filling.escrow import Escrow
from snapshot.freezer import CannotThawError
from snapshot.half_built import half_built
from tests.builders.sandboxes import Box

pytestmark = [pytest.mark.criu, pytest.mark.usefixtures("working_criu"), pytest.mark.timeout(60)]
PYTHON = "/usr/bin/python3"
REMEMBERS = """
import time
memory = bytearray(b"remembered") * 500_000
while True:
    assert memory[-10:] == b"remembered"
    print("still", flush=True)
    time.sleep(0.05)
"""


def criu_of(box: Box) -> int:
    """The CRIU that restores, not what it has forked."""
    log = f"{box.spec.directory}/restore.log"
    found = {p for p in proc.all_pids() if log in proc.read_text(f"/proc/{p}/cmdline").split("\0")}
    (first,) = (p for p in found if (stat := proc.stat(p)) and stat.parent not in found)
    return first


def killing(box: Box, then: Callable[..., Any]) -> Callable[..., Any]:
    """When CRIU hands over the memory of the first task, it is killed."""

    def hold(escrow: Escrow, *words: Any) -> None:
        os.kill(criu_of(box), signal.SIGKILL)
        then(escrow, *words)

    return hold


async def test_criu_killed_in_a_restore_leaves_nothing_and_the_next_one_succeeds(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    await box.start(PYTHON, "-c", REMEMBERS)
    await box.says("still")
    stored = await box.freeze()
    assert half_built(box.spec.directory) == []
    with monkeypatch.context() as patched:
        patched.setattr(Escrow, "_hold", killing(box, Escrow._hold))
        async with asyncio.timeout(20):
            with pytest.raises(CannotThawError, match="CRIU was killed"):
                await box.thaw(stored)
    assert half_built(box.spec.directory) == []
    said = len(box.output())
    thawed = await box.thaw(stored)
    await box.says("still", after=said)
    assert thawed.process in half_built(box.spec.directory)
    await sandbox.terminate(thawed.process, 0)
    assert half_built(box.spec.directory) == []
