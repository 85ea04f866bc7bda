"""A CRIU that is killed leaves half a tree behind, which is not its child any more."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from snapshot import sandbox
from snapshot.filling.escrow import Escrow
from snapshot.freezer import CannotThawError
from snapshot.half_built import half_built
from tests.builders.sandboxes import Box, until

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


def criu_of(escrow: Escrow) -> int:
    """The CRIU that restores, not what it has forked."""
    return int(escrow._restoring["pid"])


def killing(then: Callable[..., Any]) -> Callable[..., Any]:
    """When CRIU hands over the memory of the first task, it is killed."""

    def hold(escrow: Escrow, *words: Any) -> None:
        os.kill(criu_of(escrow), signal.SIGKILL)
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
        patched.setattr(Escrow, "_hold", killing(Escrow._hold))
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


async def test_criu_and_supervisor_killed_in_a_restore_leave_nothing(box: Box) -> None:
    """CRIU first: the guard finds what it has made though nobody can name it."""
    await box.start(PYTHON, "-c", REMEMBERS)
    await box.says("still")
    stored = await box.freeze()
    script = _DOOMED.format(folder=str(box.folder), manifest=stored.manifest)
    doomed = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, env={**os.environ, "PYTHONPATH": _CHECKOUT}
    )
    assert await doomed.wait() == -signal.SIGKILL
    await until(lambda: not half_built(box.spec.directory), "everything has ended")
    said = len(box.output())
    await box.thaw(stored)
    await box.says("still", after=said)


_CHECKOUT = str(Path(__file__).parents[2])
_DOOMED = """
import asyncio, os, signal
from pathlib import Path
from snapshot import linux, proc
from snapshot.filling.escrow import Escrow
from tests.builders import sandboxes
from tests.snapshot.test_half_built import criu_of

box = sandboxes.existing_box(Path({folder!r}))

def die(escrow, *words):
    criu = proc.identify(criu_of(escrow))
    os.kill(criu.pid, signal.SIGKILL)
    while not proc.has_ended(criu):
        pass
    os.kill(os.getpid(), signal.SIGKILL)

async def main():
    linux.become_subreaper()
    Escrow._hold = die
    await box.freezer.thaw(box.spec, {manifest!r}, on_step=lambda name, seconds: None)
asyncio.run(main())
"""
