"""The page-server protocol, with CRIU played by the test."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable

import pytest

from snapshot import pageserver
from snapshot.images import PagemapEntry

# The four bytes of padding hold whatever CRIU's stack held.
HEADER = struct.Struct("<II QQQ".replace(" ", ""))
TASK, SHARED = 7 << 8 | 1, 9 << 8 | 2


def header(command: int, pages: int = 0, address: int = 0, destination: int = 0) -> bytes:
    return HEADER.pack(command, 0x5555, pages, address, destination)


def play(criu: Callable[[socket.socket], None]) -> tuple[pageserver.Received, dict[int, bytes]]:
    ours, theirs = socket.socketpair()
    stored: dict[int, bytes] = {}

    def keep(kind: str, id: int, address: int, pages: memoryview) -> None:
        stored[address] = bytes(pages)

    thread = threading.Thread(target=criu, args=(theirs,))
    thread.start()
    try:
        return pageserver.receive(ours, keep), stored
    finally:
        ours.close()
        thread.join(10)
        theirs.close()


def test_pages_arrive_in_order_and_the_end_is_answered() -> None:
    answers: list[bytes] = []

    def criu(connection: socket.socket) -> None:
        connection.sendall(header(4, destination=TASK))
        answers.append(connection.recv(1))
        connection.sendall(header(6 | 6 << 16, 2, 0x1000, TASK) + b"a" * 8192)
        connection.sendall(header(6 | 4 << 16, 1, 0x9000, TASK) + b"b" * 4096)
        connection.sendall(header(4, destination=SHARED))
        answers.append(connection.recv(1))
        connection.sendall(header(0x1024))
        answers.append(connection.recv(4))

    received, stored = play(criu)
    assert answers == [b"\0", b"\0", struct.pack("<i", 0)]
    assert stored == {0x1000: b"a" * 8192, 0x9000: b"b" * 4096}
    assert received.bytes == 3 * 4096
    assert received.maps == {
        ("task", 7): [PagemapEntry(0x1000, 2, 6), PagemapEntry(0x9000, 1, 4)],
        ("shmem", 9): [],
    }


def test_a_long_run_comes_in_pieces_without_gaps() -> None:
    pages = pageserver.LARGEST_PIECE // 4096 + 3

    def criu(connection: socket.socket) -> None:
        connection.sendall(header(4, destination=TASK))
        connection.recv(1)
        connection.sendall(header(6 | 4 << 16, pages, 0x1000, TASK) + bytes(pages * 4096))
        connection.sendall(header(0x1024))
        connection.recv(4)

    received, stored = play(criu)
    assert sorted((a, len(b)) for a, b in stored.items()) == [
        (0x1000, pageserver.LARGEST_PIECE),
        (0x1000 + pageserver.LARGEST_PIECE, 3 * 4096),
    ]
    assert received.maps[("task", 7)] == [PagemapEntry(0x1000, pages, 4)]


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        header(6 | 4 << 16, 1, 0, TASK)[:20],
        header(4, destination=TASK) + header(6 | 4 << 16, 2, 0x1000, TASK) + bytes(4096),
        header(99),
        header(4, destination=7 << 8 | 77),
    ],
)
def test_what_is_cut_short_or_unknown_fails_the_dump(sent: bytes) -> None:
    def criu(connection: socket.socket) -> None:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)

    with pytest.raises(pageserver.PageProtocolError):
        play(criu)
