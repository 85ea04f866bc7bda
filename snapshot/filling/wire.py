"""Messages between supervisor, filler and guard: JSON, with descriptors beside it.

Sequenced packets: one message is one packet, and what was sent to a process that has not begun yet
waits for it, descriptors included.
"""

from __future__ import annotations

import array
import json
import os
import socket
from collections.abc import Sequence
from typing import Any

LARGEST = 1 << 20
MOST_DESCRIPTORS = 16
_ITEM = array.array("i").itemsize

Message = dict[str, Any]


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

    Raises `BlockingIOError` on a non-blocking socket without a message.
    """
    try:
        data, ancillary, _, _ = sock.recvmsg(
            LARGEST, socket.CMSG_SPACE(MOST_DESCRIPTORS * _ITEM), socket.MSG_CMSG_CLOEXEC
        )
    except ConnectionResetError:
        return None
    descriptors = array.array("i")
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.frombytes(content[: len(content) - len(content) % _ITEM])
    if not data:
        for descriptor in descriptors:
            os.close(descriptor)
        return None
    return json.loads(data), tuple(descriptors)
