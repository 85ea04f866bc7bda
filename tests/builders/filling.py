"""Trees that are resumed while their store is away, and those who bring their memory."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from snapshot import proc
from snapshot.filling.escrow import Escrow
from snapshot.model import Process, Thawed
from tests.builders.sandboxes import WAIT_SECONDS, Box, until

MEMORIES = """
import hashlib, os, time

def digest():
    return hashlib.sha256(memory).hexdigest()

part = os.urandom(1_000_000)
memory = bytearray(part * 4 + bytes(2_000_000) + os.urandom(8_000_000))
name, looked, turn = "parent", 0, 0
for number in range(3):
    if os.fork() == 0:
        name = f"child{number}"
        memory[number * 3_000_000 : number * 3_000_000 + 100_000] = os.urandom(100_000)
        break
expected = digest()
print(f"{name} ready", flush=True)
while True:
    if os.path.exists(os.path.expanduser(f"~/look{looked}")):
        verdict = "sound" if digest() == expected else "wrong"
        print(f"{name} look {looked} {verdict}", flush=True)
        looked += 1
    turn += 1
    if name == "parent":
        print(f"turn {turn}", flush=True)
    time.sleep(0.02)
"""
"""Four processes with 14 MB each, part of it shared with their parent: each looks at all of its own
when `~/lookN` appears, and says whether it is as it was."""

NAMES = ("parent", "child0", "child1", "child2")


async def say(box: Box, text: str) -> None:
    """Wait until each process has said it."""
    for name in NAMES:
        await box.says(f"{name} {text}")


def ask_to_look(box: Box, number: int) -> None:
    (box.home / f"look{number}").touch()


async def all_is_sound(box: Box, number: int = 0) -> None:
    """Each process finds its memory as it was."""
    ask_to_look(box, number)
    await until(lambda: box.output().count(f" look {number} ") == len(NAMES), "all have looked")
    assert "wrong" not in box.output()
    assert "Traceback" not in box.output()


def packs(box: Box) -> Path:
    return box.folder / "store" / "packs"


def lose_store(box: Box) -> None:
    packs(box).rename(box.folder / "away")


def bring_back_store(box: Box) -> None:
    (box.folder / "away").rename(packs(box))


async def thaw_without_store(box: Box, manifest: str) -> Thawed:
    """The store goes away when CRIU has finished, just before the filler is told to bring the rest.

    Not earlier, because CRIU itself waits for some pages, those of the tasks' rseq areas.
    """
    go = Escrow._go

    def lose_store_and_go(escrow: Escrow) -> None:
        lose_store(box)
        go(escrow)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Escrow, "_go", lose_store_and_go)
        thawed = await box.freezer.thaw(box.spec, manifest, on_step=lambda name, seconds: None)
    assert thawed.filling is not None
    thawed.filling.keep()
    box.started.append(thawed.process)
    box.fillings.append(thawed.filling)
    return thawed


def fillers(parent: int = 0) -> list[int]:
    """PIDs of fillers that this process (or `parent`) has started or inherited."""
    return _children("snapshot.filling", parent)


def guards(parent: int = 0) -> list[int]:
    return _children("snapshot.filling.guard", parent)


def _children(module: str, parent: int) -> list[int]:
    children = proc.children(parent or os.getpid())
    return [pid for pid in children if module in " ".join(proc.arguments(pid)).split()]


async def kill(pids: list[int]) -> None:
    """The only one of these."""
    (pid,) = pids
    process = proc.identify(pid)
    os.kill(pid, signal.SIGKILL)
    await until(lambda: process is None or not _is_there(process), "it is gone")


def _is_there(process: Process) -> bool:
    return not proc.has_ended(process)


async def until_filled(box: Box) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        await box.filled()
