"""Bringing programs' GPU state back, wherever each of them stands: the undo of a freeze, the end of
a thaw, and what a supervisor does for one that died in the middle.

All memory is back before the first program goes on, in the reverse order of the taking.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from snapshot import proc
from snapshot.gpu.driver import Driver, GpuError, State
from snapshot.model import Process, SandboxSpec
from snapshot.printable import printable

NOTE_FILE = "gpu.json"
NAME_LENGTH = 60

Pairs = Sequence[tuple[str, str]]


async def put_back(driver: Driver, processes: Sequence[Process], pairs: Pairs = ()) -> list[str]:
    """Restore and unlock every process, whichever state it is in; sentences about those that could
    not be. One that has ended needs nothing."""
    waiting, lost = list(reversed(processes)), []
    for step in (_restore, _unlock):
        for process in tuple(waiting):
            try:
                await step(driver, process, pairs)
            except GpuError as error:
                waiting.remove(process)
                if proc.exists(process) and not proc.has_ended(process):
                    lost.append(f"{short_name(process)}: {error.message}")
    return lost


def short_name(process: Process) -> str:
    """The beginning of a program's command line, for a sentence."""
    return printable(" ".join(proc.command(process.pid).split()), NAME_LENGTH)


async def _restore(driver: Driver, process: Process, pairs: Pairs) -> None:
    if not proc.has_ended(process) and await driver.state(process.pid) == State.CHECKPOINTED:
        await driver.restore(process.pid, pairs)


async def _unlock(driver: Driver, process: Process, pairs: Pairs) -> None:
    if proc.has_ended(process):
        return
    if await driver.state(process.pid) == State.LOCKED:
        await driver.unlock(process.pid)
    # The driver says "done" also of processes that it cannot bring back (seen by others).
    if (state := await driver.state(process.pid)) != State.RUNNING:
        raise GpuError(f"its GPU state is {_word(state)} and does not come back.")


def _word(state: int) -> str:
    known = state in set(State)
    return State(state).name.lower() if known else f"unknown ({state})"


def write_note(spec: SandboxSpec, pairs: Pairs = ()) -> None:
    """Remember that programs may be without their GPU from now on, and how to bring it back."""
    path = Path(spec.directory, NOTE_FILE)
    temporary = path.with_suffix(".new")
    temporary.write_text(json.dumps({"pairs": list(pairs)}))
    os.replace(temporary, path)


def _read_note(spec: SandboxSpec) -> Pairs | None:
    """None if there is none."""
    try:
        found = json.loads(Path(spec.directory, NOTE_FILE).read_text())
        return [(str(old), str(new)) for old, new in found["pairs"]]
    except (OSError, ValueError, LookupError, TypeError):
        return None


def drop_note(spec: SandboxSpec) -> None:
    """Nothing is under way any more."""
    Path(spec.directory, NOTE_FILE).unlink(missing_ok=True)


async def mend(spec: SandboxSpec, process: Process, libraries: str = "") -> None:
    """Bring back the GPU state of a tree whose supervisor died in a freeze or thaw. Nothing happens
    if none was under way. Raises `GpuError` naming the programs that are lost."""
    pairs = _read_note(spec)
    if pairs is None:
        return
    async with Driver(libraries) as driver:
        members = [m for m in proc.members(process) if await driver.has_cuda(m.pid)]
        lost = await put_back(driver, members, pairs)
    if lost:
        raise GpuError(" ".join(lost), remedy="Restart these programs.")
    drop_note(spec)
