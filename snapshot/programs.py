"""Running the few outside programs of the engine: bounded, without a shell, told apart by PID."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from snapshot import proc
from snapshot.model import Process

# CRIU and pasta call `ip`, `iptables` and the like by name.
CLEAN_ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG": "C.UTF-8",
}
_SOURCE = str(Path(__file__).resolve().parent.parent)


@dataclass(frozen=True, slots=True)
class Finished:
    """A program that ended: exit status (negative: the signal that ended it) and its output."""

    status: int
    output: str
    errors: str


def launcher(mode: str) -> tuple[str, ...]:
    """The argument vector of `snapshot.launch`, in an interpreter that loads nothing it can spare."""
    start = f"import sys; sys.path.insert(0, {_SOURCE!r}); from snapshot.launch import main; main()"
    return (sys.executable, "-I", "-S", "-c", start, mode)


async def run(
    argv: Sequence[str],
    *,
    seconds: float,
    text: str = "",
    environment: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
) -> Finished:
    """Run to the end. Past `seconds`, or when cancelled, the program is killed and waited for.

    Raises `TimeoutError` and `OSError` (no such program).
    """
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=dict(environment or CLEAN_ENVIRONMENT),
        pass_fds=tuple(pass_fds),
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(seconds):
            output, errors = await process.communicate(text.encode())
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    assert process.returncode is not None  # noqa: S101 - communicate() waits for the end
    return Finished(
        process.returncode, output.decode(errors="replace"), errors.decode(errors="replace")
    )


async def wait_until_ended(process: Process, seconds: float) -> bool:
    """Wait for a process that need not be our child. True if it has ended, False past `seconds`.

    Reaps it where it is our child (a launcher's or CRIU's orphan that we adopted as subreaper).
    """
    ended = await _wait_readable(process, seconds)
    if ended:
        reap(process)
    return ended


async def _wait_readable(process: Process, seconds: float) -> bool:
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return True
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    try:
        # Only now is it certain that the descriptor means the process that we were asked about.
        if proc.has_ended(process):
            return True
        loop.add_reader(descriptor, ended.set)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await ended.wait()
        return proc.has_ended(process)
    finally:
        # Also when cancelled: the loop would otherwise miss events of the number's next owner.
        loop.remove_reader(descriptor)
        os.close(descriptor)


def end_group(leader: Process) -> None:
    """Kill what is left of the process group that `leader` began, also when it has ended itself.

    Its number is not given to anybody else while the group has members: one that is another's by now
    had none left."""
    if proc.identify(leader.pid) in (None, leader):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(leader.pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-leader.pid, 0):  # those that came to us as orphans
                pass


def reap(process: Process) -> None:
    """Collect a zombie of ours; nothing happens if it is not our child or still runs."""
    found = proc.stat(process.pid)
    if found and found.started == process.started and found.parent == os.getpid():
        with contextlib.suppress(ChildProcessError):
            os.waitpid(process.pid, os.WNOHANG)


def send_signal(process: Process, number: int) -> None:
    """Signal exactly this process; nothing happens if it is gone."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    try:
        if proc.exists(process):
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, number)
    finally:
        os.close(descriptor)
