"""The world changes while a session sleeps, in ways that a running program would hardly notice."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from snapshot.model import Thawed
from tests.builders.sandboxes import Box, sandboxes

pytestmark = pytest.mark.criu

PROGRAM = """
import ctypes, os, time
home = os.path.expanduser("~")
os.makedirs(f"{home}/work/deep")
os.mkdir(f"{home}/watched")
log = open(f"{home}/work/log", "w+")
folder = os.open(f"{home}/work", os.O_RDONLY)
os.chdir(f"{home}/work/deep")
libc = ctypes.CDLL(None)
watcher = libc.inotify_init1(0o4000)
libc.inotify_add_watch(watcher, f"{home}/watched".encode(), 0x100)
libc.inotify_add_watch(watcher, home.encode(), 0x100)
turn = 0

def told():
    try:
        return os.read(watcher, 4096).count(b"letter")
    except BlockingIOError:
        return 0

while True:
    turn += 1
    log.write("x")
    log.flush()
    log.seek(0)
    assert log.read() == "x" * turn
    print(f"turn {turn} in {os.getcwd()} {os.listdir('.')} letters {told()}", flush=True)
    time.sleep(0.05)
"""


@pytest.fixture
async def asleep(open_folder: Path) -> AsyncIterator[Box]:
    """A box whose tree runs; its folder is gone afterwards."""
    async with sandboxes(open_folder / "b") as box:
        await box.start("/usr/bin/python3", "-c", PROGRAM)
        await box.says("turn 2")
        yield box
    shutil.rmtree(open_folder / "b")


async def goes_on(box: Box, thawed: Thawed) -> tuple[str, ...]:
    """See that it does, and does once more after another freeze; the notes of the thaw."""
    seen = len(box.output())
    await box.says("turn", after=seen)
    await box.thaw(await box.freeze())
    seen = len(box.output())
    (box.home / "letter").touch()
    await box.says("letters 1", after=seen)
    assert "Traceback" not in box.output()
    return thawed.notes


async def test_other_permissions_are_no_reason_to_stay_away(asleep: Box) -> None:
    stored = await asleep.freeze()
    for place, mode in ((".", 0o755), ("work", 0o700), ("work/deep", 0o2775), ("work/log", 0o600)):
        (asleep.home / place).chmod(mode)
    notes = await goes_on(asleep, await asleep.thaw(stored))
    assert "in /home/alice/work/deep []" in asleep.output().splitlines()[-1]
    assert notes == ()


async def test_folders_that_are_gone_are_stood_in_for_and_told(asleep: Box) -> None:
    stored = await asleep.freeze()
    (asleep.home / "work").rename(asleep.home / "moved")
    shutil.rmtree(asleep.home / "watched")
    (asleep.home / "work").write_text("a file in its place")
    notes = await goes_on(asleep, await asleep.thaw(stored))
    # The file was only moved, and is written on.
    assert (asleep.home / "moved/log").read_text().startswith("xxx")
    for place in ("/home/alice/work", "/home/alice/work/deep", "/home/alice/watched"):
        assert sum(f"{place} " in note for note in notes) == 1, notes


LOCKS = """
import fcntl, os, time
home = os.path.expanduser("~")
files = [open(f"{home}/{name}", "w") for name in ("whole", "part", "own")]
fcntl.flock(files[0], fcntl.LOCK_EX)
fcntl.lockf(files[1], fcntl.LOCK_EX, 10, 100)
fcntl.flock(files[2], fcntl.LOCK_EX)
while True:
    print("turn", flush=True)
    time.sleep(0.05)
"""


@contextmanager
def other_program(home: Path) -> Iterator[None]:
    """Has the files of two of the locks, and nothing of the third."""
    with open(home / "whole", "r+") as whole, open(home / "part", "r+") as part:
        fcntl.flock(whole, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.lockf(part, fcntl.LOCK_EX | fcntl.LOCK_NB, 50, 60)
        yield


def is_locked(file: Path) -> bool:
    with open(file, "r+") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


async def test_locks_that_others_have_taken_are_left_to_them(open_folder: Path) -> None:
    async with sandboxes(open_folder / "locks") as box:
        await box.start("/usr/bin/python3", "-c", LOCKS)
        await box.says("turn")
        stored = await box.freeze()
        with other_program(box.home):
            thawed = await box.thaw(stored)
        assert sorted(note.split(" is locked")[0] for note in thawed.notes) == [
            "/home/alice/part",
            "/home/alice/whole",
        ]
        assert is_locked(box.home / "own")
        seen = len(box.output())
        await box.says("turn", after=seen)
