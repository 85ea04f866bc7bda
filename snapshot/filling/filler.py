"""The filler of one resume: reads events, answers faults, brings everything, and says how far it is.

One thread (`run`) waits on all descriptors; the threads of `feed` read and copy. What it is told and
tells goes over one socket to the supervisor; a supervisor that was replaced finds it at
`filler.sock` in the sandbox's folder and gets everything that is held.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from snapshot import proc
from snapshot.filling import guard, wire
from snapshot.filling.family import Family, apply
from snapshot.filling.feed import Feed
from snapshot.filling.journal import Journal, TornError
from snapshot.filling.territory import Layout, Space, Territory
from snapshot.filling.uffd import Event
from snapshot.images import PAGE
from snapshot.reader import Snapshot

_log = logging.getLogger(__name__)

SOCKET_FILE = "filler.sock"
TELL_SECONDS = 0.25
FIRST_FORKED = 1_000_000
"""Numbers below are the supervisor's, for the tasks that CRIU restored."""


@dataclass(frozen=True, slots=True)
class FillOrder:
    """What a filler is to do. `directory` is the sandbox's folder; `working_set` are blocks of pages
    (numbers in the layout) in the order in which an earlier resume needed them."""

    layout: Layout
    directory: Path
    working_set: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Held:
    """One address space as the holders know it: the task that CRIU restored (-1: a fork), and its
    userfaultfd (-1: it has ended)."""

    number: int
    task: int
    descriptor: int


@dataclass(slots=True)
class Links:
    """Whom the filler talks to: a supervisor, while there is one, and the guard."""

    supervisor: socket.socket | None
    guard: socket.socket
    lock: threading.Lock = field(default_factory=threading.Lock)

    def tell(self, message: wire.Message, *descriptors: int, flags: int = 0) -> None:
        """Tell the supervisor. One that is gone, or has stopped listening, hears nothing."""
        if self.supervisor is not None:
            try:
                wire.send(self.supervisor, message, descriptors, flags)
            except OSError as error:
                _log.debug("the supervisor does not hear: %s", error)

    def tell_guard(self, message: wire.Message, *descriptors: int) -> None:
        try:
            wire.send(self.guard, message, descriptors)
        except OSError as error:  # the supervisor has dismissed it, or finds another one
            _log.info("the guard is gone: %s", error)


class Filler:
    """One resume."""

    def __init__(
        self, order: FillOrder, snapshot: Snapshot, journal: Journal, links: Links
    ) -> None:
        self._order, self._journal, self._links = order, journal, links
        self._families = {space.id: Family(space, journal, self) for space in order.layout.spaces}
        self._held: dict[int, Held] = {}
        self._watched: dict[int, tuple[int, Family]] = {}
        self._feed = Feed(snapshot, order.layout, self)
        self._poll = select.epoll()
        self._tree, self._criu, self._pid_file = -1, 0, ""
        self._is_kept = False
        self._bound = 0
        self._next = FIRST_FORKED
        self._told_at = self._began = 0.0

    @property
    def remaining(self) -> int:
        """Pages that are yet to come."""
        return sum(family.remaining for family in self._families.values())

    def hold(self, held: Held) -> None:
        """A task's userfaultfd."""
        family = self._family(held.task)
        self._held[held.number] = held
        family.add(held.number, held.descriptor, Territory(family.space))
        self._watch(held.number, held.descriptor, family)

    def take_over(self, held: list[Held]) -> None:
        """Continue where a filler ended. Raises `TornError`."""
        if self._journal.is_torn:
            raise TornError("the last filler ended while it read events")
        self._held = {each.number: each for each in held}
        found: dict[int, tuple[Family, Territory]] = {}
        for each in held:
            if each.task >= 0:
                family = self._family(each.task)
                found[each.number] = family, Territory(family.space)
        for number, message in self._journal:
            family, territory = found[number]
            if message.event == Event.FORK:
                found[message.b] = family, territory.fork()
                self._next = max(self._next, message.b + 1)
            else:
                apply(territory, message)
        for number, (family, territory) in found.items():
            if (descriptor := self._held[number].descriptor) >= 0:
                family.add(number, descriptor, territory)
                self._watch(number, descriptor, family)
                family.answer_again(number)

    def run(self) -> bool:
        """Fill until everything is in place (True), or the tree or everybody else is gone. Not
        before the tree is kept, or nobody would hold it meanwhile. Raises `TornError` when an
        event was lost.

        Until it is told to go, only faults are answered: mappings of a tree that is being restored
        are not all ready yet."""
        listener = self._listen()
        self._poll.register(listener.fileno(), select.EPOLLIN)
        self._listen_to_supervisor()
        self._feed.start(self._order.working_set)
        try:
            while not self._is_filled():
                self._journal.check()
                for descriptor, _ in self._poll.poll(TELL_SECONDS):
                    if not self._serve(descriptor, listener):
                        return False
                self._tell_progress()
            self._journal.check()
            return self._tree_has_memory()
        finally:
            self._feed.close()
            listener.close()
            self._remove_socket()

    def needed(self) -> list[int]:
        """The blocks that were asked for, in that order."""
        return self._feed.needed()

    def seconds(self) -> float:
        """Since it was told to go."""
        return time.monotonic() - self._began

    def wanted(self, page: int) -> None:
        self._feed.want(page)

    def forked(self, family: Family, descriptor: int) -> int:
        number, self._next = self._next, self._next + 1
        message = {"is": "held", "number": number, "task": -1}
        with self._links.lock:
            self._links.tell_guard({"is": "hold", "number": number}, descriptor)
            self._links.tell(message, descriptor)
            self._held[number] = Held(number, -1, descriptor)
        self._watch(number, descriptor, family)
        return number

    def ended(self, number: int, descriptor: int) -> None:
        self._watched.pop(descriptor, None)
        self._poll.unregister(descriptor)
        with self._links.lock:
            self._held[number] = Held(number, self._held[number].task, -1)
            self._links.tell({"is": "ended", "number": number})
            self._links.tell_guard({"is": "drop", "number": number})

    def _serve(self, descriptor: int, listener: socket.socket) -> bool:
        """Serve one descriptor that is ready. False: there is nothing left to do."""
        supervisor = self._links.supervisor
        if descriptor == self._tree:
            return False
        if descriptor == listener.fileno():
            self._accept(listener)
        elif supervisor is not None and descriptor == supervisor.fileno():
            return self._obey(supervisor)
        elif (watched := self._watched.get(descriptor)) is not None:
            number, family = watched
            family.drain(number)
        return True

    def _obey(self, supervisor: socket.socket) -> bool:
        """One message of the supervisor. Its end is no reason to stop once it has written down which
        tree it is. Before, nobody would ever find that tree: it is ended before we let go of it, also
        by us, because the guard may have been killed too."""
        received = wire.receive(supervisor)
        if received is None:
            self._part(supervisor)
            if not self._is_kept:
                tree = [self._tree] if self._tree >= 0 else None
                guard.end(tree or guard.roots(self._criu, self._pid_file))
            return self._is_kept
        message, descriptors = received
        match message["is"]:
            case "hold":
                self.hold(Held(message["number"], message["task"], descriptors[0]))
            case "go":
                self._refuse_gaps()
                self._began = time.monotonic()
                for family in self._families.values():
                    family.is_settled = True
                self._feed.go()
            case "restoring":
                self._criu, self._pid_file = message["pid"], message["pid_file"]
            case "tree":
                self._tree = descriptors[0]
                self._poll.register(self._tree, select.EPOLLIN)
            case "kept":
                self._is_kept = True
            case "guard":
                self._meet_guard(descriptors[0])
            case "stop":
                return False
        return True

    def _refuse_gaps(self) -> None:
        """A task whose memory we cannot reach would read zeros: the tree has to be ended."""
        missing = self._families.keys() - {held.task for held in self._held.values()}
        if missing:
            with self._journal.reading():
                raise TornError(f"CRIU gave no userfaultfd of {sorted(missing)}")

    def _meet_guard(self, descriptor: int) -> None:
        """The guard has a successor, who may not know the newest forks."""
        with self._links.lock:
            self._links.guard.close()
            self._links.guard = socket.socket(fileno=descriptor)
            for held in self._held.values():
                if held.descriptor >= 0:
                    self._links.tell_guard({"is": "hold", "number": held.number}, held.descriptor)

    def _part(self, supervisor: socket.socket) -> None:
        with self._links.lock:
            self._links.supervisor = None
            self._poll.unregister(supervisor.fileno())
            supervisor.close()

    def _accept(self, listener: socket.socket) -> None:
        """A new supervisor: it gets what the old one held."""
        if self._links.supervisor is not None:
            self._part(self._links.supervisor)
        connection, _ = listener.accept()
        with self._links.lock:
            self._links.supervisor = connection
            shared = (self._journal.descriptor, self._links.guard.fileno(), self._tree)
            self._links.tell({"is": "all", "held": len(self._held)}, *shared)
            for held in self._held.values():
                message = {"is": "held", "number": held.number, "task": held.task}
                self._links.tell(message, *([held.descriptor] if held.descriptor >= 0 else []))
        self._listen_to_supervisor()

    def _listen_to_supervisor(self) -> None:
        if self._links.supervisor is not None:
            self._poll.register(self._links.supervisor.fileno(), select.EPOLLIN)

    def left(self, space: Space, first: int, pages: int) -> list[tuple[int, int]]:
        return self._families[space.id].left(first, pages)

    def take(self, data: memoryview, target: int) -> None:
        page, pages = target // PAGE, len(data) // PAGE
        for family in self._families.values():
            low = max(page, family.space.base)
            high = min(page + pages, family.space.stop)
            if low < high:
                family.fill(data[(low - page) * PAGE : (high - page) * PAGE], low)

    def take_zeros(self, page: int, pages: int) -> None:
        for family in self._families.values():
            if family.space.base <= page < family.space.stop:
                family.fill_zeros(page, pages)

    def _family(self, task: int) -> Family:
        """The family of a task; one that has nothing to come still asks for zero pages."""
        if task not in self._families:
            empty = Space("task", task, self._order.layout.pages, 0, ())
            self._families[task] = Family(empty, self._journal, self)
        return self._families[task]

    def _watch(self, number: int, descriptor: int, family: Family) -> None:
        self._watched[descriptor] = number, family
        self._poll.register(descriptor, select.EPOLLIN)

    def _listen(self) -> socket.socket:
        path = self._order.directory / SOCKET_FILE
        path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        old = os.umask(0o177)
        try:
            listener.bind(str(path))
        finally:
            os.umask(old)
        self._bound = path.stat().st_ino
        listener.listen(1)
        return listener

    def _remove_socket(self) -> None:
        """Unless another restore in this folder has its own there by now."""
        path = self._order.directory / SOCKET_FILE
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_ino == self._bound:
                path.unlink()

    def _is_filled(self) -> bool:
        return self._is_kept and self.remaining == 0

    def _tree_has_memory(self) -> bool:
        """What ends has no memory left to fill either, and is not called filled: the tree's first
        process loses its own before all others do, and before it can be seen to have ended."""
        status = Path(f"/proc/self/fdinfo/{self._tree}").read_text()
        pid = next(line.split()[1] for line in status.splitlines() if line.startswith("Pid:"))
        return proc.read_text(f"/proc/{pid}/statm").split()[:1] not in ([], ["0"])

    def _tell_progress(self) -> None:
        now = time.monotonic()
        if now - self._told_at < TELL_SECONDS:
            return
        self._told_at = now
        news = {
            "is": "progress",
            "remaining": self.remaining,
            "total": self._order.layout.lazy_pages,
            "trouble": self._feed.trouble,
        }
        with self._links.lock:
            self._links.tell(news, flags=socket.MSG_DONTWAIT)
