"""The supervisor's side of a resume that is still filling.

It takes the userfaultfds from CRIU, keeps them, and hands a copy of each to the filler and to the
guard. A filler that ends is replaced; it goes on where the other was. If supervisor and filler are
both gone, the guard ends the tree: nothing of a tree ever reads zeros in place of its memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import select
import socket
import struct
import subprocess
import sys
import threading
from pathlib import Path

from snapshot import programs
from snapshot.filling import guard, marker, wire
from snapshot.filling.filler import SOCKET_FILE, Held
from snapshot.filling.journal import Journal
from snapshot.filling.program import Beginning, Spare
from snapshot.filling.uffd import Event
from snapshot.model import Process, Progress
from snapshot.refusals import FillingLostError

_log = logging.getLogger(__name__)

CRIU_SOCKET = "lazy-pages.socket"
_FINISHED = 0x52535446
AGAIN_SECONDS = 1.0
"""Between two fillers that take over: the first one does at once, somebody waits for memory."""

CONNECT_SECONDS = 10.0
ABANDON_SECONDS = 10.0


class Escrow:
    """One resume. Made in the event loop's thread; `serve_criu` is for a thread of its own."""

    def __init__(self, beginning: Beginning, journal: Journal, guard_socket: socket.socket) -> None:
        wire.hold_many()
        self._beginning, self._journal, self._guard = beginning, journal, guard_socket
        self._held: dict[int, Held] = {}
        self._to_hear_of = 0
        self._is_whole = self._is_kept = False
        self._restoring: wire.Message = {}
        self._lock = threading.Lock()
        self._filler: socket.socket | None = None
        self._tree = -1
        self._children: list[threading.Thread] = []
        self._loop = asyncio.get_running_loop()
        self._again_at = 0.0
        self._loop.add_reader(guard_socket.fileno(), self._guard_ended)
        self._outcome: asyncio.Future[None] = self._loop.create_future()
        self._outcome.add_done_callback(_look_at)
        self.progress = Progress()

    @classmethod
    def begin(cls, beginning: Beginning, spare: Spare | None = None) -> Escrow:
        """A new one, with guard and filler on their way. Raises `OSError`."""
        marker.put(Path(beginning.directory))
        ours, theirs = wire.pair()
        escrow = cls(beginning, Journal.create(), ours)
        try:
            escrow._children.append(_start(guard.argv(), theirs))
            escrow._employ(spare)
        except OSError:
            escrow.close()
            raise
        return escrow

    @classmethod
    async def find(cls, beginning: Beginning) -> Escrow | None:
        """What an earlier supervisor left. None: the tree lacks nothing. Raises
        `FillingLostError`."""
        directory = Path(beginning.directory)
        if not marker.is_set(directory):
            return None
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.settimeout(CONNECT_SECONDS)
        received = await asyncio.to_thread(_ask, sock, directory / SOCKET_FILE)
        if received is None or received[0]["is"] != "all":
            sock.close()
            if not marker.is_set(directory):
                return None  # it was done in this moment
            raise FillingLostError("The programs that brought the session's memory are gone.")
        message, (journal, guard_socket, tree) = received
        escrow = cls(beginning, Journal(journal), socket.socket(fileno=guard_socket))
        escrow._tree, escrow._is_whole, escrow._is_kept = tree, True, True
        escrow._to_hear_of = message["held"]
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
            self._is_whole = True
            _tell(self._filler, {"is": "go"})

    def restoring(self, criu: int, pid_file: Path) -> None:
        """CRIU runs: what it makes has to end if we do."""
        with self._lock:
            self._restoring = {"is": "restoring", "pid": criu, "pid_file": str(pid_file)}
            for sock in (self._guard, self._filler):
                _tell(sock, self._restoring)

    def runs(self, process: Process) -> None:
        """The tree is there. Raises `ProcessLookupError` if it has ended already."""
        with self._lock:
            self._tree = os.pidfd_open(process.pid)
            for sock in (self._guard, self._filler):
                _tell(sock, {"is": "tree"}, self._tree)

    def keep(self) -> None:
        with self._lock:
            self._is_kept = True
            _tell(self._filler, {"is": "kept"})

    def close(self) -> None:
        """Stop, because everything is in place or the tree is gone. May be repeated."""
        marker.clear(Path(self._beginning.directory))
        if self._filler is not None:
            self._loop.remove_reader(self._filler.fileno())
            _tell(self._filler, {"is": "stop"})
            self._filler.close()
            self._filler = None
        if self._guard.fileno() >= 0:
            self._loop.remove_reader(self._guard.fileno())
        _tell(self._guard, {"is": "done"})
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
            for sock in (self._guard, self._filler):
                _tell(sock, message, descriptor)

    def _employ(self, spare: Spare | None = None) -> None:
        """Have a filler: the one that waits, or a new one, which takes over what is held."""
        sock = spare.take() if spare else None
        if sock is None:
            sock, theirs = wire.pair()
            command = (sys.executable, "-P", "-m", "snapshot.filling")
            self._children.append(_start(command, theirs))
        with self._lock:
            message = {**self._beginning.to_message(), "held": len(self._held)}
            _tell(sock, message, self._journal.descriptor, self._guard.fileno())
            for held in self._held.values():
                _tell(sock, {"number": held.number, "task": held.task}, held.descriptor)
            if self._restoring:
                _tell(sock, self._restoring)
            if self._is_whole:
                _tell(sock, {"is": "go"})
            if self._tree >= 0:
                _tell(sock, {"is": "tree"}, self._tree)
            if self._is_kept:
                _tell(sock, {"is": "kept"})
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
        except OSError as error:
            _log.error("something that the filler said was lost: %s", error)
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
        held = self._held.get(number, Held(number, -1, -1))
        if held.descriptor >= 0:
            os.close(held.descriptor)
        self._held[number] = Held(number, held.task, -1)

    def _filler_ended(self) -> None:
        assert self._filler is not None  # noqa: S101 - it was just read from
        self._loop.remove_reader(self._filler.fileno())
        self._filler.close()
        self._filler = None
        if self._outcome.done() or self._tree_has_ended():
            return
        if self._journal.is_torn or self._lacks_some():
            lost = "The program that brought the session's memory ended at the wrong moment."
            self._outcome.set_exception(FillingLostError(lost))
            return
        _log.error("the filler ended; another one takes over")
        self._loop.call_at(self._again_at, self._again)

    def _tree_has_ended(self) -> bool:
        """Then nobody wants its memory. Whoever looks after the tree sees that by itself."""
        if self._tree < 0:
            return False
        looking = select.poll()
        looking.register(self._tree, select.POLLIN)
        return bool(looking.poll(0))

    def _lacks_some(self) -> bool:
        """Whether we do not hold everything that the filler did: it ended while it handed it on."""
        forked = {each.message.b for each in self._journal if each.message.event == Event.FORK}
        return len(self._held) < self._to_hear_of or not forked <= self._held.keys()

    def _again(self) -> None:
        if self._outcome.done():
            return
        self._again_at = self._loop.time() + AGAIN_SECONDS
        try:
            self._employ()
        except OSError as error:
            _log.error("no filler could be started: %s", error)
            self._loop.call_later(AGAIN_SECONDS, self._again)

    def _guard_ended(self) -> None:
        """Another one holds the same: until then nobody ends the tree if all others are killed."""
        self._loop.remove_reader(self._guard.fileno())
        _log.error("the guard ended; another one takes over")
        ours, theirs = wire.pair()
        try:
            self._children.append(_start(guard.argv(), theirs))
        except OSError as error:
            _log.error("no guard could be started: %s", error)
            ours.close()
            self._loop.call_later(AGAIN_SECONDS, self._watch_guard)
            return
        with self._lock:
            self._guard.close()
            self._guard = ours
            if self._restoring:
                _tell(ours, self._restoring)
            for held in self._held.values():
                if held.descriptor >= 0:
                    _tell(ours, {"is": "hold", "number": held.number}, held.descriptor)
            if self._tree >= 0:
                _tell(ours, {"is": "tree"}, self._tree)
            _tell(self._filler, {"is": "guard"}, ours.fileno())
        self._loop.call_later(AGAIN_SECONDS, self._watch_guard)

    def _watch_guard(self) -> None:
        if self._guard.fileno() >= 0:
            self._loop.add_reader(self._guard.fileno(), self._guard_ended)


def _ask(sock: socket.socket, path: Path) -> tuple[wire.Message, tuple[int, ...]] | None:
    """What a filler says first to a new supervisor. None: there is none."""
    try:
        sock.connect(str(path))
        return wire.receive(sock)
    except OSError:
        return None


def _tell(sock: socket.socket | None, message: wire.Message, *descriptors: int) -> None:
    """Tell filler or guard. If it has ended, its successor is told everything."""
    if sock is not None:
        with contextlib.suppress(OSError):
            wire.send(sock, message, [each for each in descriptors if each >= 0])


def _look_at(outcome: asyncio.Future[None]) -> None:
    """Nobody may be waiting when it is lost."""
    if not outcome.cancelled():
        outcome.exception()


def _descriptor(connection: socket.socket) -> int:
    """The userfaultfd that follows a task's number, beside one byte. Raises `OSError` without it."""
    _, descriptors, _, _ = socket.recv_fds(connection, 1, 1, socket.MSG_CMSG_CLOEXEC)
    if not descriptors:
        raise OSError(errno.EPROTO, "CRIU sent no userfaultfd")
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
