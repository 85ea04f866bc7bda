"""Whoever takes part in a restore is killed at each of its steps: nothing is left, nothing is lost.

One suspended tree is resumed again and again: its snapshot stays what it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from snapshot import proc, sandbox
from snapshot.filling.escrow import Escrow
from snapshot.freezer import CannotThawError
from snapshot.half_built import half_built
from snapshot.model import Stored
from tests.builders.filling import fillers, guards
from tests.builders.sandboxes import Box, sandboxes, until

pytestmark = [
    pytest.mark.criu,
    pytest.mark.usefixtures("working_criu"),
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(60),
]
PROGRAM = """
import hashlib, os, time
memory = os.urandom(6_000_000) + bytes(2_000_000)
expected = hashlib.sha256(memory).digest()
while True:
    print("sound" if hashlib.sha256(memory).digest() == expected else "wrong", flush=True)
    time.sleep(0.02)
"""


@dataclass
class Asleep:
    """A box with a suspended tree."""

    box: Box
    stored: Stored

    @property
    def directory(self) -> Path:
        return self.box.spec.directory

    async def wakes(self) -> None:
        """It comes back, with every byte as it was, and is ended again."""
        said = len(self.box.output())
        await self.box.thaw(self.stored)
        await self.is_sound(said)

    async def is_sound(self, said: int) -> None:
        """What came back finds its memory, and is ended."""
        await self.box.says("sound", after=said)
        assert self.box.process in half_built(self.directory)
        await self.box.filled()
        await sandbox.terminate(self.box.process, 0)
        await self.nothing_is_left()

    async def nothing_is_left(self) -> None:
        """No process, no mount, no file that says that somebody is there."""
        await until(lambda: not half_built(self.directory), "no process of the tree")
        await until(lambda: fillers() == guards() == [], "nobody who brings memory")
        assert not list(self.directory.glob("*.sock"))
        assert str(self.box.folder) not in proc.read_text("/proc/self/mountinfo")
        assert "wrong" not in self.box.output()


@pytest.fixture(scope="module")
def open_folder() -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("sandboxes need root")
    with tempfile.TemporaryDirectory(prefix="hubernate-box-") as name:
        Path(name).chmod(0o711)
        yield Path(name)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def asleep(open_folder: Path) -> AsyncIterator[Asleep]:
    async with sandboxes(open_folder / "b") as box:
        await box.start("/usr/bin/python3", "-c", PROGRAM)
        await box.says("sound")
        yield Asleep(box, await box.freeze())


SUPERVISORS = """
import asyncio, os, signal, sys
from pathlib import Path
from snapshot import linux, proc
from snapshot.filling.escrow import Escrow
from tests.builders import sandboxes
from tests.builders.filling import guards

async def resume(folder, manifest, moment, victims):
    def die(*words, **named):
        if victims == "guard":
            (pid,) = guards()
            os.kill(pid, signal.SIGKILL)
        if victims == "criu":
            criu = proc.identify(words[0]._restoring["pid"])
            os.kill(criu.pid, signal.SIGKILL)
            while not proc.has_ended(criu):
                pass
        os.kill(os.getpid(), signal.SIGKILL)

    linux.become_subreaper()
    box = sandboxes.existing_box(Path(folder))
    if hasattr(Escrow, moment):
        setattr(Escrow, moment, die)
    told = lambda step, seconds: die() if step == moment else None
    await box.freezer.thaw(box.spec, manifest, on_step=told)
    die()

print("ready", flush=True)
for line in sys.stdin:
    if (child := os.fork()) == 0:
        asyncio.run(resume(*line.split("\t")[:4]))
        os._exit(1)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
"""For each line, one that resumes, and kills itself (after one of its `victims`) when a step has ended or in
a method of its escrow, at the latest when all is done but written down."""

CHECKOUT = str(Path(__file__).parents[2])


class Supervisors:
    """Makes supervisors that are killed."""

    def __init__(self) -> None:
        self._child = subprocess.Popen(
            [sys.executable, "-c", SUPERVISORS],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": CHECKOUT},
        )
        assert self._child.stdin and self._child.stdout
        self._asked, self._told = self._child.stdin, self._child.stdout
        assert self._told.readline() == "ready\n"

    def run(self, asleep: Asleep, moment: str, victims: str) -> int:
        """Returns how it ended."""
        words = (str(asleep.box.folder), asleep.stored.manifest, moment, victims)
        self._asked.write("\t".join((*words, "\n")))
        self._asked.flush()
        return int(self._told.readline())

    def close(self) -> None:
        self._child.communicate()


@pytest.fixture(scope="module")
def supervisors() -> Iterator[Supervisors]:
    made = Supervisors()
    yield made
    made.close()


@pytest.mark.parametrize(
    ("moment", "victims"),
    [
        *((moment, "") for moment in ("adapt", "restoring", "_hold", "_go", "runs", "end")),
        *((moment, "guard") for moment in ("restoring", "_hold", "_go", "runs", "end")),
        ("_hold", "criu"),
    ],
)
async def test_a_supervisor_that_is_killed(
    asleep: Asleep, supervisors: Supervisors, moment: str, victims: str
) -> None:
    """Alone; with the guard at the same time, when the filler is the last who can end the tree; with
    CRIU, when nobody can name what that has made."""
    said = len(asleep.box.output())
    ended = await asyncio.to_thread(supervisors.run, asleep, moment, victims)
    assert ended == -signal.SIGKILL
    await asleep.nothing_is_left()
    if moment not in ("_go", "runs", "end"):  # from then on it may have run for a moment
        assert asleep.box.output()[said:] == ""
    await asleep.wakes()


def kill_criu(escrow: Escrow) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(int(escrow._restoring["pid"]), signal.SIGKILL)


def kill_guard(escrow: Escrow) -> None:
    (pid,) = guards()
    os.kill(pid, signal.SIGKILL)


def kill_filler(escrow: Escrow) -> None:
    (pid,) = fillers()
    os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def striking(strike: Callable[[Escrow], None], moment: str) -> Iterator[None]:
    """The first call of that method strikes, before it does anything; where CRIU begins, after it,
    because only then it is known."""
    method = getattr(Escrow, moment)

    def struck(escrow: Escrow, *words: Any, **named: Any) -> None:
        patch.undo()
        if moment == "restoring":
            method(escrow, *words, **named)
        strike(escrow)
        if moment != "restoring":
            method(escrow, *words, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Escrow, moment, struck)
        yield


@pytest.mark.parametrize("moment", ["restoring", "_hold"])
async def test_a_criu_that_is_killed(asleep: Asleep, moment: str) -> None:
    said = len(asleep.box.output())
    with striking(kill_criu, moment), pytest.raises(CannotThawError, match="CRIU was killed"):
        await asleep.box.thaw(asleep.stored)
    await asleep.nothing_is_left()
    assert asleep.box.output()[said:] == ""
    await asleep.wakes()


async def test_a_criu_that_is_killed_at_the_end_has_finished_or_has_not(asleep: Asleep) -> None:
    """It waits for nobody after it has said that these are all. Either way it is one tree or none."""
    said = len(asleep.box.output())
    try:
        with striking(kill_criu, "_go"):
            await asleep.box.thaw(asleep.stored)
    except CannotThawError:
        await asleep.nothing_is_left()
    else:
        await asleep.is_sound(said)
    await asleep.wakes()


@pytest.mark.parametrize("strike", [kill_guard, kill_filler])
@pytest.mark.parametrize("moment", ["restoring", "_hold", "_go", "runs", "keep"])
async def test_a_guard_or_filler_that_is_killed_keeps_nobody_from_coming_back(
    asleep: Asleep, moment: str, strike: Callable[[Escrow], None]
) -> None:
    said = len(asleep.box.output())
    with striking(strike, moment):
        await asleep.box.thaw(asleep.stored)
    await asleep.is_sound(said)


async def test_of_two_resumes_at_once_one_is_refused_and_the_other_is_whole(asleep: Asleep) -> None:
    """And a third one, that comes when the tree is there, leaves it alone."""
    said = len(asleep.box.output())
    two = [asleep.box.thaw(asleep.stored) for _ in range(2)]
    refused = [
        each for each in await asyncio.gather(*two, return_exceptions=True) if is_error(each)
    ]
    (why,) = map(str, refused)
    assert "being brought back already" in why
    with pytest.raises(CannotThawError, match="has processes on this machine already"):
        await asleep.box.thaw(asleep.stored)
    await asleep.is_sound(said)


def is_error(outcome: object) -> bool:
    return isinstance(outcome, BaseException)
