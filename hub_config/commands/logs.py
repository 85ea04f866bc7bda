"""What a job has written, read from the file that its supervisor keeps.

The file lies in a folder that belongs to the job's user, who may have put anything there: it is
opened without following links, and only a regular file is read.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

import typer

from hub_config.commands.connection import Access
from hub_config.commands.errors import CommandError
from hub_config.commands.names import display_name
from scheduler_bridge.model.phases import TERMINAL, Phase
from scheduler_bridge.model.workload import Workload
from scheduler_bridge.plugin import SchedulerPlugin

OUTPUT_FILE: Final = "output.log"
FOLLOW_SECONDS: Final = 0.2
BLOCK: Final = 1 << 16


async def show_logs(
    scheduler: SchedulerPlugin, access: Access, workload: Workload, *, follow: bool
) -> None:
    """Print the output so far; with `follow`, go on until the job has ended."""
    if access.state is None:
        raise CommandError(
            f"the output of {display_name(workload)} is kept on the machine where it runs"
            f"{f', in {workload.log_path}' if workload.log_path else ''}.",
            remedy="Ask the administrator, or let the job write to a file in your home.",
        )
    tail = Tail(access.state.run / workload.id / "run" / OUTPUT_FILE)
    printed = tail.copy_new(sys.stdout.buffer)
    while follow and workload.phase not in TERMINAL:
        workload = await scheduler.wait(
            workload.id, version=workload.version, timeout=FOLLOW_SECONDS
        )
        printed = tail.copy_new(sys.stdout.buffer) or printed
    if not printed:
        typer.echo(_nothing_yet(workload), err=True)


def _nothing_yet(workload: Workload) -> str:
    name = display_name(workload)
    if workload.phase is Phase.QUEUED:
        return f"{name} has not started: {workload.wait_reason or 'it is in the queue.'}"
    return f"{name} has written nothing; it is {workload.phase}."


@dataclass(slots=True)
class Tail:
    """A file that grows, and is replaced when a job is started again."""

    path: Path
    _position: int = field(default=0)
    _inode: int = field(default=0)

    def copy_new(self, target: BinaryIO) -> bool:
        """Write what was added since the last call. Whether there was anything."""
        copied = False
        with _opened(self.path) as handle:
            if handle is None:
                return False
            status = os.fstat(handle.fileno())
            if status.st_ino != self._inode or status.st_size < self._position:
                self._inode, self._position = status.st_ino, 0
            handle.seek(self._position)
            while block := handle.read(BLOCK):
                target.write(block)
                self._position += len(block)
                copied = True
        target.flush()
        return copied


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO | None]:
    """The regular file at `path`; None if there is none. Raises `CommandError` for anything else.

    The folder above is opened first, so that it cannot be exchanged for a link in between.
    """
    try:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:
        yield None
        return
    except OSError as error:
        raise CommandError(f"{path.parent} cannot be opened: {error.strerror}.") from error
    try:
        descriptor = _open_regular(path, folder)
    finally:
        os.close(folder)
    if descriptor is None:
        yield None
        return
    with os.fdopen(descriptor, "rb") as handle:
        yield handle


def _open_regular(path: Path, folder: int) -> int | None:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        descriptor = os.open(path.name, flags, dir_fd=folder)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CommandError(
            f"{path} is not an ordinary file; it is not read ({error.strerror})."
        ) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise CommandError(f"{path} is not an ordinary file; it is not read.")
    return descriptor
