"""Files that a supervisor leaves in `/run/hubernate`, a folder that belongs to the session's user.

Root writes where an ordinary user may have put links: everything is opened relative to the folder,
never through a link, and takes its place by rename.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from snapshot import sandbox
from snapshot.model import SandboxSpec

RESUME_FILE = "resume.json"
GPUS_FILE = "gpus.json"
GATE_FILE = "gate"
GATE_SECONDS = 20.0
GATE_POLL_SECONDS = 0.01


def prepare(folder: Path, uid: int, gid: int) -> None:
    """Make the folder (0700, owned by the user). What lies in it stays."""
    folder.mkdir(mode=0o700, exist_ok=True)
    with opened(folder) as descriptor:
        os.fchown(descriptor, uid, gid)
        os.fchmod(descriptor, 0o700)


@contextmanager
def opened(folder: Path) -> Iterator[int]:
    """A descriptor of the folder itself."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def write_json(spec: SandboxSpec, name: str, value: dict[str, Any]) -> None:
    """Put a file readable by the session's user in place, atomically."""
    sandbox.put_inside(spec, name, json.dumps(value).encode())


def announce_gap(
    spec: SandboxSpec,
    *,
    epoch: int,
    now: float,
    seconds: float | None,
    notes: tuple[str, ...] = (),
) -> None:
    """Tell the server extension that time passed without it: after a resume, or after a halt.

    `at` (UNIX seconds) tells two gaps of one epoch apart; `seconds` None: as long as it notices.
    """
    write_json(
        spec, RESUME_FILE, {"epoch": epoch, "at": now, "seconds": seconds, "notes": list(notes)}
    )


def gated(argv: tuple[str, ...]) -> tuple[str, ...]:
    """The same command, begun only when the gate opens: not before the network is there."""
    wait = f'read -r _ </run/hubernate/{GATE_FILE}; exec "$@"'
    return ("/bin/sh", "-c", wait, "hubernate-gate", *argv)


def make_gate(spec: SandboxSpec) -> None:
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
