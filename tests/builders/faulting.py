"""A real userfaultfd without CRIU: a program that made one, and a `Filler` that fills it.

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

    child: subprocess.Popen[str]
    sock: socket.socket
    descriptor: int
    start: int
    pages: int
    layout: Layout
    supervisor: Holder
    guard: Holder
    filler: Filler
    _links: Links
    _filling: threading.Thread = field(init=False)
    _asked: int = 0
    filled: list[bool] = field(default_factory=list)

    def reaches(self, word: str) -> None:
        """Wait until the program says where it is."""
        said = self.sock.recv(64).decode()
        assert said == word, f"it said {said!r}: {self._errors()}"

    def send_on(self) -> None:
        self.sock.sendall(b"g")

    def go(self) -> None:
        """All mappings are there: everything may be brought."""
        wire.send(self.supervisor.sock, {"is": "go"})
        with os.fdopen(os.pidfd_open(self.child.pid), "rb", buffering=0) as tree:
            wire.send(self.supervisor.sock, {"is": "tree"}, [tree.fileno()])

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
        self._filling.join(SECONDS)
        assert self.filled == [False]

    def ends(self) -> None:
        """The program was content with what it read, and everything has come."""
        self.reaches("done")
        self.until_filled()
        self.send_on()
        assert self.child.wait(SECONDS) == 0, self._errors()

    def fill(self) -> None:
        """What the filler's program does: when all is there nobody holds anything any more."""
        self.filled.append(self.filler.run())
        for thread in threading.enumerate():
            if thread.name in ("_answer", "_bring_rest"):
                thread.join(SECONDS)
        for held in self.filler._held.values():
            if held.descriptor >= 0:
                os.close(held.descriptor)
        os.close(self.descriptor)
        self._links.tell({"is": "filled"})
        self._links.tell_guard({"is": "filled"})

    def _errors(self) -> str:
        self.child.kill()
        assert self.child.stderr is not None
        return self.child.stderr.read()


def _content(pages: int) -> bytes:
    return b"".join(map(program.content, range(pages)))


def _runs(start: int, pages: int) -> list[tuple[int, int]]:
    return [(start + n * PAGE, min(GAP, pages - n)) for n in range(0, pages, GAP)]


@contextmanager
def faulting(
    folder: Path,
    story: str,
    *,
    seed: int = 1,
    pages: int = 2000,
    wrap: Callable[[Store], Store] = lambda store: store,
) -> Iterator[Faulting]:
    """The program, waiting to be sent on, and its filler, which answers faults. `wrap` makes the
    store that the filler reads from."""
    near, far = socket.socketpair()
    command = [sys.executable, program.__file__, story, str(seed), str(pages)]
    child = subprocess.Popen(command, stdin=far, stderr=subprocess.PIPE, text=True)
    far.close()
    near.settimeout(SECONDS)
    data, (descriptor,), _, _ = socket.recv_fds(near, 4096, 1)
    start = json.loads(data)["start"]
    where = layout([("task", 1, _runs(start, pages))])
    store = StoreInMemory()
    manifest = save(repository(store, folder), key(), {("task", 1): [(start, _content(pages))]})
    snapshot = repository(wrap(store), folder).open(manifest.manifest)
    supervisor, guard = wire.pair(), wire.pair()
    journal = Journal.create()
    links = Links(supervisor[1], guard[1])
    filler = Filler(FillOrder(where, folder), snapshot, journal, links)
    holders = Holder(supervisor[0]), Holder(guard[0])
    tree = Faulting(child, near, descriptor, start, pages, where, *holders, filler, links)
    wire.send(supervisor[0], {"is": "hold", "number": 0, "task": 1}, [descriptor])
    threads = [threading.Thread(target=holder.listen, daemon=True) for holder in holders]
    tree._filling = threading.Thread(target=tree.fill, daemon=True)
    threads.append(tree._filling)
    for thread in threads:
        thread.start()
    try:
        yield tree
    finally:
        child.kill()
        child.wait()
        assert child.stderr is not None
        child.stderr.close()
        supervisor[0].shutdown(socket.SHUT_RDWR)  # no more of it: the filler looks at the tree
        threads[-1].join(SECONDS)
        assert tree.filled, "the filler does not end with its tree"
        for sock in (supervisor[1], guard[1]):
            sock.close()
        for thread, holder in zip(threads, holders, strict=False):
            thread.join(SECONDS)
            holder.let_go()
            holder.sock.close()
        near.close()
        journal.close()
