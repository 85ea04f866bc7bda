"""Real userfaultfds without CRIU: a program that made one, and a `Filler` that fills it.

with faulting(tmp_path, "storm", seed=3) as tree:
    tree.reaches("half")
    tree.go()
    tree.ends()
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from snapshot.cache import PackCache
from snapshot.filling import wire
from snapshot.filling.filler import Filler, FillOrder, Links
from snapshot.filling.journal import Journal
from snapshot.filling.territory import Layout, layout
from snapshot.images import PAGE
from snapshot.stores.base import Store
from tests.builders.snapshots import key, repository, save
from tests.fakes.stores import StoreInMemory
from tests.snapshot import faulting as program

SECONDS = 30.0
GAP = 37
"""After so many pages comes one run's end, so that a layout has many segments."""


@dataclass
class Program:
    """The program (see `tests.snapshot.faulting`), its userfaultfd, and where its memory is."""

    child: subprocess.Popen[str]
    sock: socket.socket
    descriptor: int
    start: int
    pages: int

    def reaches(self, word: str) -> None:
        """Wait until the program says where it is."""
        said = self.sock.recv(64).decode()
        assert said == word, f"it said {said!r}: {self.errors()}"

    def send_on(self) -> None:
        self.sock.sendall(b"g")

    def ends(self) -> None:
        """It was content with what it read."""
        self.send_on()
        assert self.child.wait(SECONDS) == 0, self.errors()

    def errors(self) -> str:
        """What it was not content with."""
        self.child.kill()
        assert self.child.stderr is not None
        return self.child.stderr.read()

    def runs(self) -> list[tuple[int, int]]:
        """Address and pages of each run."""
        return [
            (self.start + n * PAGE, min(GAP, self.pages - n)) for n in range(0, self.pages, GAP)
        ]

    def content(self) -> bytes:
        """Of all of its pages."""
        return b"".join(map(program.content, range(self.pages)))


@contextmanager
def running(story: str, *, seed: int = 1, pages: int = 2000) -> Iterator[Program]:
    """The program, waiting to be sent on. Whoever gets its descriptor closes it."""
    near, far = socket.socketpair()
    command = [sys.executable, program.__file__, story, str(seed), str(pages)]
    child = subprocess.Popen(command, stdin=far, stderr=subprocess.PIPE, text=True)
    far.close()
    near.settimeout(SECONDS)
    data, (descriptor,), _, _ = socket.recv_fds(near, 4096, 1)
    try:
        yield Program(child, near, descriptor, json.loads(data)["start"], pages)
    finally:
        child.kill()
        child.wait()
        assert child.stderr is not None
        child.stderr.close()
        near.close()


@dataclass
class Holder:
    """Somebody who holds what the filler tells: number to descriptor. Ends with the filler."""

    sock: socket.socket
    held: dict[int, int] = field(default_factory=dict)
    heard: list[wire.Message] = field(default_factory=list)
    forks: int = 0
    news: threading.Condition = field(default_factory=threading.Condition)

    def listen(self) -> None:
        while (received := wire.receive(self.sock)) is not None:
            message, descriptors = received
            with self.news:
                self.heard.append(message)
                self.news.notify_all()
            if message["is"] == "filled":
                self.let_go()
            elif descriptors:
                self.held[message["number"]] = descriptors[0]
                self.forks += 1
            elif message["is"] in ("ended", "drop") and message["number"] in self.held:
                os.close(self.held.pop(message["number"]))  # number 0 is the test's own

    def hears(self, wanted: Callable[[wire.Message], bool]) -> None:
        """Wait until the newest message is such."""
        with self.news:
            self.news.wait_for(lambda: self.heard and wanted(self.heard[-1]), SECONDS)
            assert wanted(self.heard[-1]), self.heard[-1]

    def let_go(self) -> None:
        while self.held:
            os.close(self.held.popitem()[1])


@dataclass
class Faulting:
    """The program and its filler. `layout` is what comes; `filled` is what `Filler.run` returned."""

    program: Program
    layout: Layout
    supervisor: Holder
    guard: Holder
    filler: Filler
    _links: Links
    filled: list[bool] = field(default_factory=list)
    _filling: threading.Thread = field(init=False)
    _has_returned: threading.Event = field(default_factory=threading.Event)
    _asked: int = 0

    def __post_init__(self) -> None:
        self._filling = threading.Thread(target=self._fill, daemon=True)

    def start(self) -> list[threading.Thread]:
        """Let everybody begin. Returns the holders' threads."""
        threads = [
            threading.Thread(target=each.listen, daemon=True)
            for each in (self.supervisor, self.guard)
        ]
        for thread in (*threads, self._filling):
            thread.start()
        return threads

    def go(self) -> None:
        """All mappings are there: everything may be brought."""
        wire.send(self.supervisor.sock, {"is": "go"})
        with os.fdopen(os.pidfd_open(self.program.child.pid), "rb", buffering=0) as tree:
            wire.send(self.supervisor.sock, {"is": "tree"}, [tree.fileno()])
        wire.send(self.supervisor.sock, {"is": "kept"})

    def until_filled(self) -> None:
        """Everything is in place."""
        self._filling.join(SECONDS)
        assert self.filled == [True], f"{self.filler.remaining} pages have not come"

    def until_asked_for(self, blocks: int) -> None:
        """That many more blocks have been asked for than when this was called last."""
        self._asked += blocks
        deadline = time.monotonic() + SECONDS
        while len(self.filler.needed()) < self._asked:
            assert time.monotonic() < deadline, "nobody asks"
            time.sleep(0.001)

    def ends_unfilled(self) -> None:
        """The filler ends, because the program has."""
        assert self._has_returned.wait(SECONDS)
        assert self.filled == [False]

    def ends(self) -> None:
        """The program was content with what it read, and everything has come."""
        self.program.reaches("done")
        self.until_filled()
        self.program.ends()

    def _fill(self) -> None:
        """What the filler's program does: when all is there nobody holds anything any more."""
        self.filled.append(self.filler.run())
        self._has_returned.set()
        for thread in threading.enumerate():
            if thread.name in ("_answer", "_bring_all"):
                thread.join(SECONDS)
        for held in self.filler._held.values():
            if held.descriptor >= 0:
                os.close(held.descriptor)
        os.close(self.program.descriptor)
        self._links.tell({"is": "filled"})
        self._links.tell_guard({"is": "filled"})


@contextmanager
def faulting(
    folder: Path,
    story: str,
    *,
    seed: int = 1,
    pages: int = 2000,
    wrap: Callable[[Store], Store] = lambda store: store,
    cache: PackCache | None = None,
) -> Iterator[Faulting]:
    """The program, waiting to be sent on, and its filler, which answers faults. `wrap` makes the
    store that the filler reads from; `cache` has everything at first."""
    supervisor, guard, journal = wire.pair(), wire.pair(), Journal.create()
    with running(story, seed=seed, pages=pages) as child:
        where = layout([("task", 1, child.runs())])
        store = StoreInMemory()
        memory = {("task", 1): [(child.start, child.content())]}
        manifest = save(repository(store, folder, cache=cache), key(), memory).manifest
        snapshot = repository(wrap(store), folder, cache=cache).open(manifest)
        links = Links(supervisor[1], guard[1])
        filler = Filler(FillOrder(where, folder), snapshot, journal, links)
        tree = Faulting(child, where, Holder(supervisor[0]), Holder(guard[0]), filler, links)
        wire.send(supervisor[0], {"is": "hold", "number": 0, "task": 1}, [child.descriptor])
        threads = tree.start()
        try:
            yield tree
        finally:
            child.child.kill()
            supervisor[0].shutdown(socket.SHUT_RDWR)  # the filler looks at the tree only
            tree._filling.join(SECONDS)
            assert tree.filled, "the filler does not end with its tree"
            for sock in (supervisor[1], guard[1]):
                sock.close()
            for thread, holder in zip(threads, (tree.supervisor, tree.guard), strict=True):
                thread.join(SECONDS)
                holder.let_go()
                holder.sock.close()
    journal.close()
