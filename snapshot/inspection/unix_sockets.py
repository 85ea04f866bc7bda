"""The UNIX sockets of a sandbox, and where their other ends are.

/proc does not tell who is connected to whom, so the kernel's socket table is read (sock_diag(7)),
inside the sandbox's network namespace: only sockets of that namespace are in it.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, TypeVar

from snapshot import linux
from snapshot.model import Process

NETLINK_SOCK_DIAG: Final = 4
SOCK_DIAG_BY_FAMILY: Final = 20
NLM_F_REQUEST_DUMP: Final = 0x301
NLMSG_ERROR, NLMSG_DONE = 2, 3
SHOW_PEER, SHOW_ICONS, SHOW_RQLEN = 0x4, 0x8, 0x10
PEER, ICONS, RQLEN, SHUTDOWN = 2, 3, 4, 6
BOTH_WAYS: Final = b"\3"
ALL_STATES: Final = 0xFFFFFFFF
LISTENING: Final = 10
ANSWER_BYTES: Final = 1 << 16
PATIENCE_SECONDS: Final = 2.0
GONE_SECONDS: Final = 0.0001

_HEADER = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBHIIIII")
_MESSAGE = struct.Struct("=BBBxIII")
_ATTRIBUTE = struct.Struct("=HH")
_PAIR = struct.Struct("=II")

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class UnixSocket:
    """By inode numbers. `peer`: None if it has none, 0 if the other end has not been accepted yet
    (of a datagram socket: has ended); `is_over`: nothing can be sent or received any more; `callers`
    wait to be accepted by this one; `unread` bytes were
    sent and not received."""

    inode: int
    peer: int | None
    is_datagram: bool = False
    is_over: bool = False
    callers: tuple[int, ...] = ()
    unread: int = 0


def unix_sockets(process: Process) -> dict[int, UnixSocket]:
    """All UNIX sockets of the process's network namespace, by inode. Raises `OSError`."""
    answers = in_own_thread(lambda: _ask(process))
    return {found.inode: found for answer in answers for found in parse(answer)}


def in_own_thread(work: Callable[[], Result]) -> Result:
    """Run to the end in a thread that is gone when this returns, and with it what it did to itself (a
    namespace joined, processes traced). Raises what `work` raises."""
    results: list[Result] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join()
    # Python lets go of a thread somewhat before the kernel does.
    while os.path.exists(f"/proc/self/task/{thread.native_id}"):
        time.sleep(GONE_SECONDS)
    if errors:
        raise errors[0]
    return results[0]


def _ask(process: Process) -> list[bytes]:
    linux.join_namespace(f"/proc/{process.pid}/ns/net", linux.CLONE_NEWNET)
    kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC
    with socket.socket(socket.AF_NETLINK, kind, NETLINK_SOCK_DIAG) as diagnosis:
        diagnosis.settimeout(PATIENCE_SECONDS)
        show = SHOW_PEER | SHOW_ICONS | SHOW_RQLEN
        body = _REQUEST.pack(socket.AF_UNIX, 0, 0, ALL_STATES, 0, show, 0, 0)
        length = _HEADER.size + len(body)
        diagnosis.send(_HEADER.pack(length, SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST_DUMP, 1, 0) + body)
        answers: list[bytes] = []
        while not answers or not is_last(answers[-1]):
            answers.append(diagnosis.recv(ANSWER_BYTES))
        return answers


def is_last(answer: bytes) -> bool:
    """Whether nothing follows this datagram (pure)."""
    return any(kind in (NLMSG_DONE, NLMSG_ERROR) for kind, _ in _messages(answer))


def parse(answer: bytes) -> Iterator[UnixSocket]:
    """The sockets in one datagram of the kernel's answer (pure)."""
    for kind, body in _messages(answer):
        if kind == SOCK_DIAG_BY_FAMILY:
            yield _socket(body)


def _messages(answer: bytes) -> Iterator[tuple[int, bytes]]:
    offset = 0
    while offset + _HEADER.size <= len(answer):
        length, kind, *_ = _HEADER.unpack_from(answer, offset)
        if length < _HEADER.size:
            return
        yield kind, answer[offset + _HEADER.size : offset + length]
        offset += (length + 3) & ~3


def _socket(body: bytes) -> UnixSocket:
    _, kind, state, inode, _, _ = _MESSAGE.unpack_from(body)
    attributes = dict(_attributes(body[_MESSAGE.size :]))
    callers = attributes.get(ICONS, b"")
    queues = attributes.get(RQLEN, b"")
    unread = _PAIR.unpack(queues)[1] if queues and state != LISTENING else 0
    peer = attributes.get(PEER)
    return UnixSocket(
        inode,
        struct.unpack("=I", peer)[0] if peer else None,
        kind == socket.SOCK_DGRAM,
        attributes.get(SHUTDOWN) == BOTH_WAYS,
        struct.unpack(f"={len(callers) // 4}I", callers),
        unread,
    )


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    offset = 0
    while offset + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, offset)
        if length < _ATTRIBUTE.size:
            return
        yield kind, data[offset + _ATTRIBUTE.size : offset + length]
        offset += (length + 3) & ~3
