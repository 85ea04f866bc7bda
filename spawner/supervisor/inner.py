"""The second socket: what comes from inside a sandbox.

It can only tell signals and ask for a bounded delay. A datagram that is too large, not JSON or of
another shape is counted and dropped; unknown fields are ignored.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from spawner.supervisor.inside import opened
from spawner.supervisor.signals import InnerReport

_log = logging.getLogger(__name__)

SOCKET_NAME = "inner.sock"
LARGEST_DATAGRAM = 32 * 1024
MOST_LISTED = 256
MOST_PER_WAKE = 32
"""A flood from inside must not keep the supervisor from its heartbeats."""

_ADAPTER = TypeAdapter(InnerReport)


def parse(datagram: bytes) -> InnerReport | None:
    """The report in a datagram, or None if it is not one."""
    if len(datagram) > LARGEST_DATAGRAM:
        return None
    try:
        value = json.loads(datagram, parse_constant=_finite, parse_float=_finite)
        report = _ADAPTER.validate_python(value)
    except (ValidationError, ValueError, RecursionError):
        return None
    too_many = max(len(report.kernels or ()), len(report.terminals or ())) > MOST_LISTED
    return None if too_many else report


def _finite(number: str) -> float:
    """NaN and infinities would pass through comparisons unseen."""
    value = float(number)
    if not math.isfinite(value):
        raise ValueError(number)
    return value


def bind(folder: Path, uid: int, gid: int) -> socket.socket:
    """A fresh datagram socket `inner.sock` in `folder` that only this user (and root) may write to."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    sock.setblocking(False)
    with opened(folder) as directory:
        with suppress(FileNotFoundError):
            os.unlink(SOCKET_NAME, dir_fd=directory)
        # The address of a UNIX socket holds 107 bytes; through the descriptor it is always short.
        sock.bind(f"/proc/self/fd/{directory}/{SOCKET_NAME}")
        os.chown(SOCKET_NAME, uid, gid, dir_fd=directory, follow_symlinks=False)
    return sock


class InnerSocket:
    """Reads datagrams and hands valid reports to `hear`. Use `run` as a task."""

    def __init__(self, sock: socket.socket, hear: Callable[[InnerReport], None]) -> None:
        self._socket = sock
        self._hear = hear
        self.dropped = 0

    async def run(self) -> None:
        """Read until cancelled."""
        loop = asyncio.get_running_loop()
        loop.add_reader(self._socket, self._read)
        try:
            await asyncio.Event().wait()
        finally:
            loop.remove_reader(self._socket)

    def _read(self) -> None:
        for _ in range(MOST_PER_WAKE):
            try:
                datagram = self._socket.recv(LARGEST_DATAGRAM + 1)
            except BlockingIOError:
                return
            report = parse(datagram)
            if report is not None:
                self._hear(report)
                continue
            self.dropped += 1
            if self.dropped == 1:
                _log.warning("dropped a datagram from inside that is no report")
