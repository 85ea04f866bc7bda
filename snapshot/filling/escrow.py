"""The supervisor's side of a resume that is still filling.

It takes the userfaultfds from CRIU, keeps them, and hands a copy of each to the filler and to the
guard. A filler that ends is replaced; it goes on where the other was. If supervisor and filler are
both gone, the guard ends the tree: nothing of a tree ever reads zeros in place of its memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import struct
import subprocess
import sys
import threading
from pathlib import Path

from snapshot import programs
from snapshot.filling import guard, wire
from snapshot.filling.filler import SOCKET_FILE, Held
from snapshot.filling.journal import Journal
from snapshot.filling.program import MARKER_FILE, Beginning, Spare
from snapshot.model import Process, Progress
from snapshot.refusals import FillingLostError

_log = logging.getLogger(__name__)

CRIU_SOCKET = "lazy-pages.socket"
_FINISHED = 0x52535446
AGAIN_SECONDS = 1.0
CONNECT_SECONDS = 10.0
ABANDON_SECONDS = 10.0


class Escrow:
    """One resume. Made in the event loop's thread; `serve_criu` is for a thread of its own."""

    def __init__(self, beginning: Beginning, journal: Journal, guard_socket: socket.socket) -> None:
        self._beginning, self._journal, self._guard = beginning, journal, guard_socket
        self._held: dict[int, Held] = {}
        self._lock = threading.Lock()
        self._filler: socket.socket | None = None
        self._tree = -1
        self._children: list[threading.Thread] = []
        self._loop = asyncio.get_running_loop()
        self._outcome: asyncio.Future[None] = self._loop.create_future()
        self._outcome.add_done_callback(_look_at)
        self.progress = Progress()

    @classmethod
    def begin(cls, beginning: Beginning, spare: Spare | None = None) -> Escrow:
        """A new one, with guard and filler on their way. Raises `OSError`."""
        Path(beginning.directory, MARKER_FILE).touch(mode=0o600)
        ours, theirs = wire.pair()
        escrow = cls(beginning, Journal.create(), ours)
        escrow._children.append(_start(guard.argv(), theirs))
        escrow._employ(spare)
        return escrow

    @classmethod
    async def find(cls, beginning: Beginning) -> Escrow | None:
        """What an earlier supervisor left. None: the tree lacks nothing. Raises
        `FillingLostError`."""
        directory = Path(beginning.directory)
        if not (directory / MARKER_FILE).exists():
            return None
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            sock.connect(str(directory / SOCKET_FILE))
            sock.settimeout(CONNECT_SECONDS)
            received = await asyncio.to_thread(wire.receive, sock)
        except OSError:
            received = None
        if received is None:
            sock.close()
            if not (directory / MARKER_FILE).exists():
                return None  # it was done in this moment
            raise FillingLostError("The programs that brought the session's memory are gone.")
        _, (journal, guard_socket, tree) = received
        escrow = cls(beginning, Journal(journal), socket.socket(fileno=guard_socket))
        escrow._tree = tree
        escrow._listen(sock)
        return escrow

    async def until_filled(self) -> None:
        """Return once everything is in place. Raises `FillingLostError`. Cancelling stops only the
        waiting."""
        await asyncio.shield(self._outcome)

    def serve_criu(self, listener: socket.socket) -> None:
        """Take the userfaultfds of one `criu restore --lazy-pages` (in a thread). Returns when CRIU
        says that these are all, or hangs up."""
        connection, _ = listener.accept()
        with connection:
            while len(head := connection.recv(4, socket.MSG_WAITALL)) == 4:
                (task,) = struct.unpack("<i", head)
                if task == _FINISHED:
                    self._go()
                    return
                if task > 0:  # a zombie has no memory
                    self._hold(task, _descriptor(connection))

    def _go(self) -> None:
        with self._lock:
            if self._filler is not None:
                with contextlib.suppress(OSError):
                    wire.send(self._filler, {"is": "go"})

    def restoring(self, criu: int, pid_file: Path) -> None:
        """CRIU runs: what it makes has to end if we do."""
        message = {"is": "restoring", "pid": criu, "pid_file": str(pid_file)}
        wire.send(self._guard, message)

    def runs(self, process: Process) -> None:
        """The tree is there. Raises `ProcessLookupError` if it has ended already."""
        self._tree = os.pidfd_open(process.pid)
        for sock in (self._guard, self._filler):
            if sock is not None:
                wire.send(sock, {"is": "tree"}, [self._tree])

    def close(self) -> None:
        """Stop, because everything is in place or the tree is gone. May be repeated."""
        Path(self._beginning.directory, MARKER_FILE).unlink(missing_ok=True)
        if self._filler is not None:
            self._loop.remove_reader(self._filler.fileno())
            with contextlib.suppress(OSError):
                wire.send(self._filler, {"is": "stop"})
            self._filler.close()
            self._filler = None
        with contextlib.suppress(OSError):
            wire.send(self._guard, {"is": "done"})
        self._guard.close()
        for held in self._held.values():
            if held.descriptor >= 0:
                os.close(held.descriptor)
        self._held.clear()
        if self._tree >= 0:
            os.close(self._tree)
            self._tree = -1
        self._journal.close()
        if not self._outcome.done():
            self._outcome.cancel()

    async def abandon(self) -> None:
        """Close, and return once the programs that were started have ended."""
        self.close()
        for child in self._children:
            await asyncio.to_thread(child.join, ABANDON_SECONDS)

    def _hold(self, task: int, descriptor: int) -> None:
        with self._lock:
            held = Held(len(self._held), task, descriptor)
            self._held[held.number] = held
            message = {"is": "hold", "number": held.number, "task": task}
            wire.send(self._guard, message, [descriptor])
            if self._filler is not None:
                with contextlib.suppress(OSError):  # its successor gets all of them
                    wire.send(self._filler, message, [descriptor])

    def _employ(self, spare: Spare | None = None) -> None:
        """Have a filler: the one that waits, or a new one, which takes over what is held."""
        sock = spare.take() if spare else None
        if sock is None:
            sock, theirs = wire.pair()
            command = (sys.executable, "-P", "-m", "snapshot.filling")
            self._children.append(_start(command, theirs))
        with self._lock:
            message = {**self._beginning.to_message(), "held": len(self._held)}
            shared = [self._journal.descriptor, self._guard.fileno()]
            wire.send(sock, message, shared)
            for held in self._held.values():
                known = {"number": held.number, "task": held.task}
                wire.send(sock, known, [held.descriptor] if held.descriptor >= 0 else [])
            if self._tree >= 0:
                wire.send(sock, {"is": "go"})
                wire.send(sock, {"is": "tree"}, [self._tree])
            self._listen(sock)

    def _listen(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._filler = sock
        self._loop.add_reader(sock.fileno(), self._hear)

    def _hear(self) -> None:
        assert self._filler is not None  # noqa: S101 - there is one as long as it is listened to
        try:
            received = wire.receive(self._filler)
        except BlockingIOError:
            return
        if received is None:
            self._filler_ended()
            return
        message, descriptors = received
        match message["is"]:
            case "held":
                number, task = message["number"], message["task"]
                self._held[number] = Held(number, task, descriptors[0] if descriptors else -1)
            case "ended":
                self._forget(message["number"])
            case "progress":
                self.progress = Progress(message["remaining"], message["total"], message["trouble"])
            case "filled":
                if not self._outcome.done():
                    self._outcome.set_result(None)
                # At once: whoever touches what was never written waits as long as we hold these.
                self.close()
            case "failed":
                self.progress = Progress(self.progress.remaining, 0, message["why"])

    def _forget(self, number: int) -> None:
        held = self._held[number]
        if held.descriptor >= 0:
            os.close(held.descriptor)
        self._held[number] = Held(number, held.task, -1)

    def _filler_ended(self) -> None:
        assert self._filler is not None  # noqa: S101 - it was just read from
        self._loop.remove_reader(self._filler.fileno())
        self._filler.close()
        self._filler = None
        if self._outcome.done():
            return
        if self._journal.is_torn:
            lost = "The program that brought the session's memory ended at the wrong moment."
            self._outcome.set_exception(FillingLostError(lost))
            return
        _log.error("the filler ended; another one takes over")
        self._loop.call_later(AGAIN_SECONDS if self.progress.trouble else 0.0, self._again)

    def _again(self) -> None:
        if self._outcome.done():
            return
        try:
            self._employ()
        except OSError as error:
            _log.error("no filler could be started: %s", error)
            self._loop.call_later(AGAIN_SECONDS, self._again)


def _look_at(outcome: asyncio.Future[None]) -> None:
    """Nobody may be waiting when it is lost."""
    if not outcome.cancelled():
        outcome.exception()


def _descriptor(connection: socket.socket) -> int:
    """The userfaultfd that follows a task's number, beside one byte."""
    _, descriptors, _, _ = socket.recv_fds(connection, 1, 1, socket.MSG_CMSG_CLOEXEC)
    return descriptors[0]


def _start(command: tuple[str, ...], stdin: socket.socket) -> threading.Thread:
    """Start a program that outlives us, with a socket as its standard input. The thread returned
    ends with it."""
    with stdin:
        child = subprocess.Popen(
            command,
            stdin=stdin.fileno(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=programs.CLEAN_ENVIRONMENT,
            cwd="/",
            start_new_session=True,
        )
    # It tells by its socket that it has ended; this only keeps it from staying a zombie.
    reaper = threading.Thread(target=child.wait, name="reap", daemon=True)
    reaper.start()
    return reaper
