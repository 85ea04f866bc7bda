"""Stopping a tree for a moment: everything stands still, and goes on as if nothing had been."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from ptrace.binding.func import ptrace

from snapshot import proc, proctree, trial
from snapshot.inspection import stopping
from snapshot.model import Process
from snapshot.refusals import CannotFreezeError
from tests.builders.sandboxes import Box, until
from tests.snapshot.obstacles import start

STOPPED, TRACED, SLEEPING = "T", "t", "S"

THREADS = """
for _ in range(20):
    threading.Thread(target=lambda: time.sleep(9999), daemon=True).start()
if os.fork() == 0:
    time.sleep(9999)
"""


def states(box: Box) -> list[str]:
    """Of every thread of the tree that has not ended."""
    found = [
        proc.stat(thread)
        for member in proc.members(box.process)
        for thread in proc.threads(member.pid)
    ]
    return [each.state for each in found if each]


async def goes_on(box: Box) -> None:
    reached = box.output().count("turn")
    await until(lambda: box.output().count("turn") > reached + 1, "progress")


async def test_everything_stands_still_and_goes_on(box: Box) -> None:
    await start(box, THREADS)
    stopped, seen = await asyncio.to_thread(
        stopping.while_stopped, box.process, lambda: states(box)
    )
    assert set(seen) == {TRACED}
    assert stopped.threads == len(seen) >= 22
    assert stopped.blockers == ()
    assert TRACED not in states(box)
    await goes_on(box)


async def test_a_trial_tells_what_stands_in_the_way_and_how_long_it_took(box: Box) -> None:
    await start(box, THREADS)
    found = await asyncio.to_thread(trial.try_freeze, box.process)
    assert found.verdict.blockers == ()
    assert found.verdict.bytes > 0
    assert found.threads >= 22
    assert 0 < found.seconds < 3
    await goes_on(box)


async def test_it_goes_on_whatever_happens_meanwhile(box: Box) -> None:
    await start(box, THREADS)

    def fails() -> None:
        raise ValueError("while it stood still")

    with pytest.raises(ValueError, match="stood still"):
        await asyncio.to_thread(stopping.while_stopped, box.process, fails)
    assert TRACED not in states(box)
    await goes_on(box)


_DIES = """
import os, sys
from snapshot.inspection import stopping
from snapshot.model import Process
from snapshot.model import Process

def dies():
    print("stopped", flush=True)
    sys.stdin.read()

stopping.while_stopped(Process({pid}, {started}), dies)
"""


async def test_it_goes_on_when_the_inspector_is_killed(box: Box, tmp_path: Path) -> None:
    process = await _started(box)
    script = tmp_path / "inspector.py"
    script.write_text(_DIES.format(pid=process.pid, started=process.started))
    inspector = await asyncio.create_subprocess_exec(
        sys.executable,
        str(script),
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert inspector.stdout is not None
    assert await inspector.stdout.readline() == b"stopped\n"
    assert set(states(box)) == {TRACED}
    inspector.kill()
    await inspector.communicate()
    await goes_on(box)


async def _started(box: Box) -> Process:
    await start(box, THREADS)
    return box.process


async def test_what_the_user_stopped_stays_stopped_and_nobody_hears_of_it(box: Box) -> None:
    """A shell learns of stopped and continued jobs by waiting for them."""
    text = (
        "heard = []\n"
        "def hear(number, frame):\n    print('heard', flush=True)\n"
        "job = os.fork()\n"
        "if job == 0:\n    time.sleep(9999)\n"
        "os.kill(job, signal.SIGSTOP)\n"
        "os.waitpid(job, os.WUNTRACED)\n"
        "signal.signal(signal.SIGCHLD, hear)\n"
    )
    await start(box, text)
    assert states(box).count(STOPPED) == 1
    for _ in range(3):
        await asyncio.to_thread(trial.inspect_before_dump, box.process)
        await asyncio.to_thread(trial.try_freeze, box.process)
    await until(lambda: states(box).count(STOPPED) == 1, "the job is stopped as before")
    await goes_on(box)
    assert "heard" not in box.output()


@contextmanager
def tracing(thread: int) -> Iterator[None]:
    """Trace one thread from here, without stopping it, for as long as the block runs."""
    seized, done = threading.Event(), threading.Event()

    def trace() -> None:
        ptrace(stopping.PTRACE_SEIZE, thread)
        seized.set()
        done.wait(60)

    tracer = threading.Thread(target=trace, daemon=True)
    tracer.start()
    try:
        assert seized.wait(10)
        yield
    finally:
        done.set()
        tracer.join()


@pytest.mark.criu
@pytest.mark.usefixtures("working_criu")
async def test_a_tracer_of_a_single_thread_shows_only_when_it_is_stopped(box: Box) -> None:
    """A freeze stops it right before the dump, and so refuses before anything is touched."""
    await start(box, THREADS)
    leader = next(m.pid for m in proc.members(box.process) if len(proc.threads(m.pid)) > 20)
    other = proc.threads(leader)[-1]
    with tracing(other):
        assert await asyncio.to_thread(proctree.inspect, box.process) == ()
        tried = await asyncio.to_thread(trial.try_freeze, box.process)
        (found,) = tried.verdict.blockers
        assert "another program traces it" in found.what
        assert "threading" in found.command or "python3" in found.command
        with pytest.raises(CannotFreezeError, match="traces it"):
            await box.freeze()
        assert TRACED not in states(box)
        await goes_on(box)
    assert await asyncio.to_thread(trial.inspect_before_dump, box.process) == ()


WAITS = """
poll = must(libc.epoll_create(1), "epoll")
room = ctypes.create_string_buffer(12)
def wait():
    while True:
        if libc.epoll_wait(poll, room, 1, 3_600_000) < 0:
            print("interrupted", flush=True)
threading.Thread(target=wait, daemon=True).start()
"""


async def test_looking_interrupts_nothing_and_stopping_does(box: Box) -> None:
    """Why nothing is stopped unless somebody asks: a program may take the end of its wait for an
    error. Attaching without stopping goes unnoticed."""
    await start(box, WAITS)
    for _ in range(5):
        await asyncio.to_thread(proctree.examine, box.process)
        await asyncio.to_thread(trial.inspect_before_dump, box.process)
    await goes_on(box)
    assert "interrupted" not in box.output()
    await asyncio.to_thread(trial.try_freeze, box.process)
    await box.says("interrupted")


HANGING = """
os.mkfifo("/tmp/nobody-writes")
waits = [(os.POSIX_SPAWN_OPEN, 0, "/tmp/nobody-writes", os.O_RDONLY, 0)]
for _ in range(6):
    if os.fork() == 0:
        os.posix_spawn("/bin/true", ["true"], {}, file_actions=waits)
"""
"""Six that wait for a child in a way that only killing ends."""


async def test_many_that_hang_do_not_keep_the_rest_standing(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each may take its time, and all of them together no more than that."""
    await start(box, HANGING)
    await until(lambda: states(box).count("D") == 6, "they hang")
    for name in ("STOP_SECONDS", "ALL_SECONDS"):
        monkeypatch.setattr(stopping, name, 1.0)
    stopped, _ = await asyncio.to_thread(stopping.while_stopped, box.process, lambda: None)
    assert stopped.blockers
    assert stopped.seconds < 4
    await goes_on(box)
