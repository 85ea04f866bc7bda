"""One tree with a creature for everything that has to survive, led through its stages.

A creature that fails says so in its own log and leaves the others alone: each test looks at one.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from snapshot import sandbox
from snapshot.freezer import FreezeFailedError, LocalFreezer
from snapshot.model import Bind
from tests.builders.sandboxes import Box, sandboxes, until
from tests.fakes.repositories import StoreDiesAtTheCommit
from tests.survival.creatures.stage import STAGES

PROGRAMS = Path(__file__).parent / "creatures"
SYSTEM = "/usr/bin/python3"
OURS = sys.executable
SHARED_GROUP = 210_900
COLLEAGUE = 210_901
READY_SECONDS = 60.0
STAGE_SECONDS = 40.0

CREATURES = {
    "threads": SYSTEM,
    "tasks": SYSTEM,
    "timers": SYSTEM,
    "pool": SYSTEM,
    "shared": SYSTEM,
    "family": SYSTEM,
    "jobs": SYSTEM,
    "editing": SYSTEM,
    "files": SYSTEM,
    "locks": SYSTEM,
    "databases": SYSTEM,
    "watches": SYSTEM,
    "descriptors": SYSTEM,
    "handles": SYSTEM,
    "group_file": SYSTEM,
    "tcp_pair": SYSTEM,
    "unix_pair": SYSTEM,
    "waiting_room": SYSTEM,
    "ring": SYSTEM,
    "manager": SYSTEM,
    "messages": OURS,
    "cluster": OURS,
}


@dataclass
class Menagerie:
    """The creatures of one box."""

    box: Box
    names: tuple[str, ...]

    def said(self, name: str) -> str:
        """All that a creature has said, its traceback included."""
        path = self.box.home / "said" / name
        return path.read_text(errors="replace") if path.exists() else ""

    async def wait_until_said(self, text: str, seconds: float) -> None:
        """Until every creature has said it or has failed."""

        def all_did() -> bool:
            said = [self.said(name) for name in self.names]
            return all(text in one or "Traceback" in one for one in said)

        try:
            await until(all_did, text, seconds)
        except AssertionError:
            return  # each one's own test tells

    async def reach(self, stage: str) -> None:
        """Let them look at themselves."""
        (self.box.home / "stages" / stage).touch()
        await self.wait_until_said(f"{stage}: survived", STAGE_SECONDS)


@asynccontextmanager
async def menagerie(folder: Path, creatures: dict[str, str]) -> AsyncIterator[Menagerie]:
    """All creatures, after all stages."""
    async with sandboxes(folder / "b") as box:
        await _start(box, folder, creatures)
        made = Menagerie(box, tuple(creatures))
        await made.wait_until_said("ready", READY_SECONDS)
        failing = LocalFreezer(box.tools, StoreDiesAtTheCommit(box.repository))
        with pytest.raises(FreezeFailedError, match="store does not answer"):
            await box.freeze(failing)
        await made.reach(STAGES[0])
        for stage in STAGES[1:]:
            old, stored = box.process, await box.freeze()
            assert sandbox.is_empty(old)
            await box.thaw(stored)
            await made.reach(stage)
        yield made


async def _start(box: Box, folder: Path, creatures: dict[str, str]) -> None:
    shutil.copytree(PROGRAMS, box.home / "creatures", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("said", "stages"):
        (box.home / name).mkdir()
        (box.home / name).chmod(0o777)
    identity = replace(box.spec.identity, groups=(SHARED_GROUP,))
    box.spec = replace(
        box.spec,
        identity=identity,
        binds=(
            *box.spec.binds,
            Bind(sys.prefix, sys.prefix, read_only=True),
            Bind(str(_shared_folder(folder, identity.uid)), "/shared"),
        ),
    )
    lines = [f"{name}={interpreter}" for name, interpreter in creatures.items()]
    await box.start(SYSTEM, "/home/alice/creatures/keeper.py", *lines)


def _shared_folder(folder: Path, owner: int) -> Path:
    """A folder of a group, as projects have, closed to everybody else. It belongs to root, and what
    is made in it to the group."""
    shared = folder / "shared"
    project = shared / "project"
    project.mkdir(parents=True)
    for name, account in (("results", owner), ("colleague", COLLEAGUE)):
        file = project / name
        file.write_text("begun\n")
        os.chown(file, account, SHARED_GROUP)
        file.chmod(0o660)
    for place in (shared, project):
        os.chown(place, 0, SHARED_GROUP)
        place.chmod(0o2770)
    return shared
