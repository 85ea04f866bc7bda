"""Holds a command back until its network is there.

A FIFO in the sandbox's folder: the command's shell reads from it before it becomes the command. Only
the first program of a sandbox meets it, and opening it is all that can be done with it.
"""

from __future__ import annotations

import asyncio
import errno
import os
import stat
from contextlib import suppress
from pathlib import Path

from snapshot.model import SandboxSpec
from spawner.supervisor.inside import opened

GATE_FILE = "gate"
GATE_SECONDS = 20.0
GATE_POLL_SECONDS = 0.01


def gated(argv: tuple[str, ...]) -> tuple[str, ...]:
    """The same command, begun only when the gate opens: not before the network is there."""
    wait = f'read -r _ </run/hubernate/{GATE_FILE}; exec "$@"'
    return ("/bin/sh", "-c", wait, "hubernate-gate", *argv)


def make(spec: SandboxSpec) -> None:
    """Put a closed gate (a FIFO) into the folder, which no program of the user sees yet."""
    with opened(Path(spec.directory, "run")) as folder:
        with suppress(FileNotFoundError):
            os.unlink(GATE_FILE, dir_fd=folder)
        os.mkfifo(GATE_FILE, 0o600, dir_fd=folder)
        owner = os.fstat(folder)
        os.chown(GATE_FILE, owner.st_uid, owner.st_gid, dir_fd=folder, follow_symlinks=False)


async def open_gate(spec: SandboxSpec) -> None:
    """Let the command begin, once it waits at the gate. No gate, or nobody waiting: nothing
    happens."""
    with opened(Path(spec.directory, "run")) as folder, suppress(OSError, TimeoutError):
        async with asyncio.timeout(GATE_SECONDS):
            await _write_when_read(folder)
        os.unlink(GATE_FILE, dir_fd=folder)


async def _write_when_read(folder: int) -> None:
    """Opening a FIFO for writing fails until somebody reads. Raises `OSError` if it is no FIFO."""
    while True:
        try:
            flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW
            descriptor = os.open(GATE_FILE, flags, dir_fd=folder)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            await asyncio.sleep(GATE_POLL_SECONDS)
            continue
        try:
            if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
                os.write(descriptor, b"go\n")
            return
        finally:
            os.close(descriptor)
