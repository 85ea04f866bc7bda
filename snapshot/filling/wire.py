"""Messages between supervisor, filler and guard: JSON, with descriptors beside it.

Sequenced packets: one message is one packet, and what was sent to a process that has not begun yet
waits for it, descriptors included.
"""

from __future__ import annotations

import array
import contextlib
import errno
import json
import os
import resource
import socket
from collections.abc import Sequence
from typing import Any

LARGEST = 1 << 20
MOST_DESCRIPTORS = 16
_ITEM = array.array("i").itemsize

Message = dict[str, Any]


def hold_many() -> None:
    """Let this process have as many descriptors as it may: one for each child of a tree."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def pair() -> tuple[socket.socket, socket.socket]:
    """Two connected ends, not inherited by programs."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(
    sock: socket.socket, message: Message, descriptors: Sequence[int] = (), flags: int = 0
) -> None:
    """Send one message. Raises `OSError` when the other end is gone (or, with MSG_DONTWAIT, slow)."""
    data = json.dumps(message).encode()
    rights = array.array("i", descriptors).tobytes()
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if descriptors else []
    sock.sendmsg([data], ancillary, flags | socket.MSG_NOSIGNAL)


def receive(sock: socket.socket) -> tuple[Message, tuple[int, ...]] | None:
    """One message and its descriptors, which the caller owns. None: the other end is gone.

    Raises `BlockingIOError` on a non-blocking socket without a message, `OSError` if there was no
    room for all descriptors: going on without one would lose memory.
    """
    data, ancillary, flags = _receive_what_is_left(sock)
    descriptors = array.array("i")
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.frombytes(content[: len(content) - len(content) % _ITEM])
    if data and not flags & socket.MSG_CTRUNC:
        return json.loads(data), tuple(descriptors)
    for descriptor in descriptors:
        os.close(descriptor)
    if data:
        raise OSError(errno.EMFILE, "no room for descriptors")
    return None


def _receive_what_is_left(sock: socket.socket) -> tuple[bytes, list[tuple[int, int, bytes]], int]:
    """The end of one who had not read everything is reported before what it sent: ask again."""
    room = socket.CMSG_SPACE(MOST_DESCRIPTORS * _ITEM)
    with contextlib.suppress(ConnectionResetError):
        return sock.recvmsg(LARGEST, room, socket.MSG_CMSG_CLOEXEC)[:3]
    return sock.recvmsg(LARGEST, room, socket.MSG_CMSG_CLOEXEC)[:3]
