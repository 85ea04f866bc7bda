"""Connections to outside end with an ordinary error, and everything can be reached again afterwards:
after a suspend that is undone, and after a freeze and thaw."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from snapshot.freezer import FreezeFailedError, LocalFreezer
from snapshot.model import NetworkSpec
from tests.builders.sandboxes import Box, sandboxes, until
from tests.fakes.repositories import StoreDiesAtTheCommit

pytestmark = pytest.mark.criu

SIOCSIFFLAGS, SIOCSIFADDR, SIOCSIFNETMASK = 0x8914, 0x8916, 0x891C

PROGRAM = """
import socket, sys, threading, time

def tell(text):
    print(text, flush=True)

def ends(action):
    try:
        while action():
            pass
        return "end of stream"
    except OSError as error:
        return type(error).__name__

def connect(address):
    while True:
        try:
            connection = socket.create_connection(address)
            if connection.recv(5, socket.MSG_WAITALL) == b"hello":
                return connection
        except OSError:
            pass
        time.sleep(0.02)

def keep(name, address, action):
    while True:
        connection = connect(address)
        tell(f"{name} connected")
        tell(f"{name} ended: {ends(lambda: action(connection))}")
        connection.close()

def answer(visitor):
    question = visitor.recv(100)
    visitor.sendall(question)
    return question

def serve(visitor):
    tell(f"visitor ended: {ends(lambda: answer(visitor))}")

def listen():
    listener = socket.create_server(("0.0.0.0", 8888))
    tell("listening")
    while True:
        visitor, _ = listener.accept()
        visitor.sendall(b"welcome")
        threading.Thread(target=serve, args=(visitor,), daemon=True).start()

threading.Thread(target=listen, daemon=True).start()
for number, address in enumerate(ADDRESSES):
    reads = lambda connection: connection.recv(100)
    writes = lambda connection: connection.sendall(b"x" * 100_000) or True
    for name, action in ((f"reader-{number}", reads), (f"writer-{number}", writes)):
        threading.Thread(target=keep, args=(name, address, action), daemon=True).start()
while True:
    time.sleep(1000)
"""

ORDINARY = {"end of stream", "ConnectionResetError", "ConnectionAbortedError", "BrokenPipeError"}


@contextmanager
def far_end(address: str) -> Iterator[int]:
    """A server of the world outside: says hello, and then neither reads nor writes nor closes."""
    with socket.create_server((address, 0)) as listener:
        held: list[socket.socket] = []

        def serve() -> None:
            while True:
                try:
                    client, _ = listener.accept()
                    client.sendall(b"hello")
                except OSError:
                    return
                held.append(client)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(10)
            for client in held:
                client.close()


@contextmanager
def address_of_another_machine() -> Iterator[str]:
    """An address (of those set aside for documentation) that answers here and that no sandbox takes
    for its own: what leads there leaves the sandbox. It is an alias of the loopback device."""
    address, name = f"198.51.100.{os.getpid() % 250 + 1}", b"lo:outside"

    def request(number: int, value: bytes) -> None:
        fcntl.ioctl(sock, number, name.ljust(16, b"\0") + value.ljust(24, b"\0"))

    def as_address(text: str) -> bytes:
        return struct.pack("=HH4s", socket.AF_INET, 0, socket.inet_aton(text))

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        request(SIOCSIFADDR, as_address(address))
        try:
            request(SIOCSIFNETMASK, as_address("255.255.255.255"))
            yield address
        finally:
            request(SIOCSIFFLAGS, bytes(2))  # an alias that is down is gone


class World:
    """The box, and a visitor from outside."""

    def __init__(self, box: Box) -> None:
        self.box = box
        self._visitor: socket.socket | None = None

    @property
    def visitor(self) -> socket.socket:
        assert self._visitor is not None
        return self._visitor

    async def visit(self) -> None:
        """Connect, and visit the server inside from outside."""
        link = await self.box.connect()
        self._visitor = socket.create_connection(("127.0.0.1", link.host_port), timeout=20)
        assert self.ask(b"", 7) == b"welcome"
        assert self.ask(b"question", 8) == b"question"

    def ask(self, question: bytes, length: int) -> bytes:
        self.visitor.sendall(question)
        return self.visitor.recv(length, socket.MSG_WAITALL)

    def ended(self) -> bool:
        """How the visitor learns that it is over."""
        try:
            return self.visitor.recv(1) == b""
        except ConnectionResetError:
            return True
        finally:
            self.visitor.close()

    async def all_connected(self, times: int) -> None:
        """Every connection to outside was made so many times."""
        await until(lambda: self.box.output().count(" connected") >= 4 * times, f"{times} times")

    def endings(self) -> dict[str, str]:
        """What each connection of the program met last."""
        lines = [line.split(" ended: ") for line in self.box.output().splitlines()]
        return {parts[0]: parts[1] for parts in lines if len(parts) == 2}


@asynccontextmanager
async def world(folder: Path) -> AsyncIterator[World]:
    with (
        address_of_another_machine() as outward,
        far_end("127.0.0.1") as near_port,
        far_end(outward) as far_port,
    ):
        async with sandboxes(folder / "b") as box:
            addresses = [("127.0.0.1", near_port), (outward, far_port)]
            program = f"ADDRESSES = {addresses!r}\n{PROGRAM}"
            network = NetworkSpec(reachable_ports=(near_port,))
            await box.start("/usr/bin/python3", "-c", program, network=network)
            await box.says("listening")
            made = World(box)
            await made.visit()
            yield made


async def test_outside_ends_with_an_ordinary_error_and_can_be_reached_again(
    open_folder: Path,
) -> None:
    async with world(open_folder) as it:
        await it.all_connected(1)
        failing = LocalFreezer(it.box.tools, StoreDiesAtTheCommit(it.box.repository))
        with pytest.raises(FreezeFailedError, match="store does not answer"):
            await it.box.freeze(failing)
        assert it.ended()
        await it.visit()
        await it.all_connected(2)
        undone = it.endings()

        stored = await it.box.freeze()
        assert it.ended()
        await it.box.thaw(stored)
        await it.visit()
        await it.all_connected(3)
        thawed = it.endings()
        it.visitor.close()
    for endings in (undone, thawed):
        assert set(endings) == {"reader-0", "writer-0", "reader-1", "writer-1", "visitor"}
        assert set(endings.values()) <= ORDINARY
    assert "Traceback" not in it.box.output()
