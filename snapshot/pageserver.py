"""CRIU's page-server protocol, receiving side: memory pages of a dump over a UNIX socket.

One dump, one connection, driven by the thread that calls `receive`. Facts of the protocol: CRIU's
criu/page-xfer.c (4.2 and newer): a 32-byte header (command, padding, pages, address, destination)
followed by the pages.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from snapshot.images import PAGE, PagemapEntry

OPEN2, PARENT, ADD = 4, 5, 6
CLOSE, FORCE_CLOSE = 0x1023, 0x1024
PRESENT = 4
LARGEST_PIECE = 4 * 2**20
KINDS = {1: "task", 2: "shmem"}

_HEADER = struct.Struct("<I4xQQQ")

Sink = Callable[[str, int, int, memoryview], None]
"""Takes (kind, id, address, pages); the pages are overwritten once it has returned."""


class PageProtocolError(Exception):
    """CRIU hung up or sent what this version does not understand. The dump has failed."""


@dataclass(slots=True)
class Received:
    """What came: per (kind, id) the runs of pages in order, and the bytes of pages altogether."""

    maps: dict[tuple[str, int], list[PagemapEntry]] = field(default_factory=dict)
    bytes: int = 0


def receive(connection: socket.socket, sink: Sink) -> Received:
    """Serve one dump until CRIU closes it, and answer that all is well.

    The tree is held meanwhile. If `sink` raises, CRIU gets no answer: the dump fails and the tree
    goes on. Raises `PageProtocolError`, and what `sink` raises.
    """
    received = Received()
    buffer = memoryview(bytearray(LARGEST_PIECE))
    while True:
        command, pages, address, destination = _HEADER.unpack(_exactly(connection, _HEADER.size))
        operation = command & 0xFFFF
        if command in (CLOSE, FORCE_CLOSE):
            connection.sendall(struct.pack("<i", 0))
            return received
        if operation == OPEN2:
            received.maps[_name(destination)] = []
            connection.sendall(b"\0")
        elif operation == PARENT:
            connection.sendall(struct.pack("<i", 0))
        elif operation == ADD:
            name = _name(destination)
            received.maps[name].append(PagemapEntry(address, pages, command >> 16))
            if (command >> 16) & PRESENT:
                for start, piece in _pieces(connection, buffer, address, pages):
                    sink(*name, start, piece)
                received.bytes += pages * PAGE
        else:
            raise PageProtocolError(f"unknown page-server command {command:#x}")


def discard(kind: str, id: int, address: int, pages: memoryview) -> None:
    """A sink for dumps that are only made to be undone."""


def _pieces(
    connection: socket.socket, buffer: memoryview, address: int, pages: int
) -> Iterator[tuple[int, memoryview]]:
    end = address + pages * PAGE
    while address < end:
        piece = buffer[: min(end - address, LARGEST_PIECE)]
        _fill(connection, piece)
        yield address, piece
        address += len(piece)


def _name(destination: int) -> tuple[str, int]:
    kind = KINDS.get(destination & 0xFF)
    if kind is None:
        raise PageProtocolError(f"unknown kind of memory {destination & 0xFF}")
    return kind, destination >> 8


def _exactly(connection: socket.socket, size: int) -> bytes:
    buffer = bytearray(size)
    _fill(connection, memoryview(buffer))
    return bytes(buffer)


def _fill(connection: socket.socket, view: memoryview) -> None:
    while view:
        count = connection.recv_into(view)
        if count == 0:
            raise PageProtocolError("CRIU hung up in the middle of the pages")
        view = view[count:]
