"""What a job has written, read from the file that its supervisor keeps on this machine.

The file lies in a folder that belongs to the job's user, who may have put anything there: it is
opened without following links, and only a regular file is read.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from scheduler_bridge.errors import Refused
from scheduler_bridge.model.phases import Kind
from scheduler_bridge.model.workload import Output, Workload

BLOCK: Final = 1 << 18
"""Bytes of one piece."""


def read_output(workload: Workload, *, position: int = 0, serial: int = 0) -> Output:
    """The next piece. Nothing has been written where there is no file. Raises `Refused` for
    anything but a regular file."""
    if not workload.log_path:
        return Output(position=position, serial=serial)
    with _opened(_file_of(workload)) as handle:
        if handle is None:
            return Output(position=position, serial=serial)
        found = os.fstat(handle.fileno())
        if found.st_ino != serial or found.st_size < position:
            position = 0
        handle.seek(position)
        data = handle.read(BLOCK)
        return Output(data, position + len(data), found.st_ino)


def _file_of(workload: Workload) -> Path:
    """A job's log is what it has written; a session's is its supervisor's, beside what it wrote."""
    log = Path(workload.log_path)
    return log if workload.spec.kind is Kind.JOB else log.parent / "run" / "output.log"


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO | None]:
    """The folder above is opened first, so that it cannot be exchanged for a link in between."""
    try:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:
        yield None
        return
    except OSError as error:
        raise Refused(f"{path.parent} cannot be opened: {error.strerror}.") from error
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
        raise Refused(
            f"{path} is not an ordinary file; it is not read ({error.strerror})."
        ) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise Refused(f"{path} is not an ordinary file; it is not read.")
    return descriptor
