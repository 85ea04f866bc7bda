"""Supervisor, filler and guard hold the same memory: each of them may be killed at any moment."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from snapshot import proc
from snapshot.filling import guard, marker, wire
from snapshot.filling.escrow import _FINISHED, Escrow
from snapshot.filling.filler import SOCKET_FILE
from snapshot.filling.journal import Journal
from snapshot.filling.program import Beginning
from snapshot.filling.uffd import Event, Message
from snapshot.images import Pagemap, PagemapEntry, pagemap_name, write_pagemap
from snapshot.model import StoreSettings
from snapshot.refusals import FillingLostError
from snapshot.repository import open_repository
from tests.builders.faulting import Program, running
from tests.builders.filling import fillers, guards, kill
from tests.builders.sandboxes import until
from tests.builders.snapshots import key, save

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="userfaultfds here need root")
LAZY = 6


@dataclass
class Resume:
    """A program without its memory, and everybody who brings it."""

    program: Program
    escrow: Escrow
    folder: Path
    criu: socket.socket
    serving: asyncio.Task[None]

    @property
    def packs(self) -> Path:
        return self.folder / "store" / "packs"

    async def reaches(self, word: str) -> None:
        await asyncio.to_thread(self.program.reaches, word)

    def holds(self) -> None:
        """CRIU hands its userfaultfd over."""
        self.criu.sendall(struct.pack("<i", 1))
        socket.send_fds(self.criu, [b"\0"], [self.program.descriptor])
        os.close(self.program.descriptor)

    async def finishes(self) -> None:
        """CRIU says that all mappings are there."""
        self.criu.sendall(struct.pack("<I", _FINISHED))
        await self.serving

    def runs(self) -> None:
        found = proc.identify(self.program.child.pid)
        assert found is not None
        self.escrow.runs(found)
        self.escrow.keep()

    async def ends(self) -> None:
        """All is there, and the program content with it."""
        async with asyncio.timeout(30):
            await self.escrow.until_filled()
        await asyncio.to_thread(self.program.ends)

    async def until_ready(self) -> None:
        """A filler knows what there is to bring."""
        await until(lambda: (self.folder / SOCKET_FILE).exists() and fillers(), "a filler listens")


@asynccontextmanager
async def resume(folder: Path, story: str, *, pages: int = 2000) -> AsyncIterator[Resume]:
    settings = StoreSettings(
        "directory", str(folder / "store"), keys_directory=str(folder / "keys")
    )
    with running(story, pages=pages) as program:
        entries = tuple(PagemapEntry(address, n, LAZY) for address, n in program.runs())
        files = {pagemap_name("task", 1): write_pagemap(Pagemap(1, entries))}
        memory = {("task", 1): [(program.start, program.content())]}
        stored = save(open_repository(settings), key(), memory, files)
        escrow = Escrow.begin(Beginning(settings, stored.manifest, str(folder)))
        listener = socket.create_server(str(folder / "criu"), family=socket.AF_UNIX)
        serving = asyncio.ensure_future(asyncio.to_thread(escrow.serve_criu, listener))
        criu = socket.socket(socket.AF_UNIX)
        criu.connect(str(folder / "criu"))
        try:
            yield Resume(program, escrow, folder, criu, serving)
        finally:
            criu.close()
            listener.close()
            await serving
            program.child.kill()
            await escrow.abandon()
            assert fillers() == guards() == []


async def test_everything_is_brought_and_nobody_stays(tmp_path: Path) -> None:
    before = set(os.listdir("/proc/self/fd"))
    async with resume(tmp_path, "plain") as tree:
        assert marker.is_set(tmp_path)
        tree.holds()
        await tree.finishes()
        tree.runs()
        tree.program.send_on()
        await tree.reaches("done")
        await tree.ends()
        assert not marker.is_set(tmp_path)
        assert not (tmp_path / SOCKET_FILE).exists()
    assert set(os.listdir("/proc/self/fd")) <= before


@pytest.mark.parametrize(
    "when", ["at first", "before criu ends", "before it runs", "while it runs"]
)
async def test_a_filler_may_be_killed_at_any_time(tmp_path: Path, when: str) -> None:
    async with resume(tmp_path, "plain") as tree:
        if when == "at first":
            await kill(fillers())
        tree.holds()
        await tree.until_ready()
        tree.packs.rename(tmp_path / "away")
        if when == "before criu ends":
            await kill(fillers())
        await tree.finishes()
        if when == "before it runs":
            await kill(fillers())
        tree.runs()
        if when == "while it runs":
            tree.program.send_on()
            await kill(fillers())
        (tmp_path / "away").rename(tree.packs)
        if when != "while it runs":
            tree.program.send_on()
        await tree.reaches("done")
        await tree.ends()


async def test_a_successor_knows_what_the_tree_did_to_its_memory(tmp_path: Path) -> None:
    """Storms before and after; whoever knows less puts pages where they do not belong."""
    async with resume(tmp_path, "storm") as tree:
        tree.holds()
        tree.program.send_on()
        await tree.reaches("half")
        for _ in range(2):
            await tree.until_ready()
            await kill(fillers())
        await tree.finishes()
        tree.runs()
        tree.program.send_on()
        await tree.reaches("done")
        await tree.ends()


async def test_a_successor_knows_the_children(tmp_path: Path) -> None:
    async with resume(tmp_path, "sleepers") as tree:
        tree.holds()
        tree.program.send_on()
        await tree.reaches("half")
        tree.program.send_on()
        await tree.reaches("forked")
        # A filler that is killed while it hands a child on has no successor.
        await until(lambda: not tree.escrow._journal.is_torn, "the children are handed on")
        await kill(fillers())
        await tree.finishes()
        tree.runs()
        async with asyncio.timeout(30):
            await tree.escrow.until_filled()
        tree.program.send_on()
        await tree.reaches("done")
        await tree.ends()


async def test_a_supervisor_may_hold_as_many_as_there_can_be(tmp_path: Path) -> None:
    """One descriptor for each process of the session: usual is 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, hard - 1), hard))
    try:
        async with resume(tmp_path, "plain") as tree:
            assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
            tree.holds()
            await tree.finishes()
            tree.runs()
            tree.program.send_on()
            await tree.reaches("done")
            await tree.ends()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_a_guard_that_is_killed_has_a_successor_who_holds_everything(tmp_path: Path) -> None:
    """Then everybody else is lost, and the tree is ended as the first guard would have done."""
    async with resume(tmp_path, "sleepers") as tree:
        tree.holds()
        tree.program.send_on()
        await tree.reaches("half")
        tree.program.send_on()
        await tree.reaches("forked")
        await kill(guards())
        await until(guards, "another guard")
        tree.packs.rename(tmp_path / "away")
        await tree.finishes()
        tree.runs()
        # The successor of the filler, too, talks to the new guard.
        await kill(fillers())
        await until(fillers, "another filler")
        everybody_ends(tree.escrow)
        assert await asyncio.to_thread(tree.program.child.wait, 20) == -signal.SIGKILL


def everybody_ends(escrow: Escrow) -> None:
    """As if this process and the fillers were killed: nothing is said to anybody."""
    assert escrow._filler is not None
    escrow._loop.remove_reader(escrow._guard.fileno())
    escrow._loop.remove_reader(escrow._filler.fileno())
    for pid in fillers():
        os.kill(pid, signal.SIGKILL)
    escrow._filler.close()
    escrow._filler = None
    escrow._guard.close()


async def test_a_tree_that_ended_gets_no_other_filler(tmp_path: Path) -> None:
    async with resume(tmp_path, "leaves") as tree:
        tree.holds()
        await tree.until_ready()
        tree.packs.rename(tmp_path / "away")
        await tree.finishes()
        tree.runs()
        tree.program.child.kill()
        await until(lambda: not fillers(), "the filler is gone")
        await until(lambda: tree.escrow._filler is None, "it was heard of")
        assert not tree.escrow._outcome.done()


@pytest.fixture
def tree() -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield child
    child.kill()
    child.communicate()


@dataclass
class FillerThatDiesHandingOver:
    """It says that it holds three, tells of two, and is gone. `is_torn`: of all, in a bad moment."""

    folder: Path
    tree: int
    tells: int = 2
    journal: Journal | None = None

    def serve(self) -> None:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(str(self.folder / SOCKET_FILE))
        listener.listen()
        connection, _ = listener.accept()
        journal, pair = self.journal or Journal.create(), wire.pair()
        tree = os.pidfd_open(self.tree)
        with listener, connection, pair[0], pair[1]:
            shared = journal.descriptor, pair[0].fileno(), tree
            wire.send(connection, {"is": "all", "held": 3}, shared)
            for number in range(self.tells):
                wire.send(connection, {"is": "held", "number": number, "task": number}, [tree])
        os.close(tree)
        journal.close()


async def _found(filler: FillerThatDiesHandingOver) -> Escrow:
    (filler.folder / marker.FILE).touch()
    serving = asyncio.ensure_future(asyncio.to_thread(filler.serve))
    await until((filler.folder / SOCKET_FILE).exists, "it listens")
    settings = StoreSettings("directory", "/nowhere")
    escrow = await Escrow.find(Beginning(settings, "m", str(filler.folder)))
    assert escrow is not None
    await serving
    return escrow


async def test_what_was_not_handed_over_is_lost_not_zero(
    tmp_path: Path, tree: subprocess.Popen[bytes]
) -> None:
    escrow = await _found(FillerThatDiesHandingOver(tmp_path, tree.pid))
    with pytest.raises(FillingLostError):
        await escrow.until_filled()
    await escrow.abandon()


async def test_a_child_that_nobody_told_of_is_lost_not_zero(
    tmp_path: Path, tree: subprocess.Popen[bytes]
) -> None:
    journal = Journal.create()
    with journal.reading():
        journal.add(0, Message(Event.FORK, 5, 1_000_000, 0))
    escrow = await _found(FillerThatDiesHandingOver(tmp_path, tree.pid, 3, journal))
    with pytest.raises(FillingLostError):
        await escrow.until_filled()
    await escrow.abandon()


async def test_an_event_that_may_be_lost_ends_the_filling(
    tmp_path: Path, tree: subprocess.Popen[bytes]
) -> None:
    journal = Journal.create()
    with pytest.raises(KeyError), journal.reading():
        raise KeyError
    escrow = await _found(FillerThatDiesHandingOver(tmp_path, tree.pid, 3, journal))
    with pytest.raises(FillingLostError, match="wrong moment"):
        await escrow.until_filled()
    await escrow.abandon()


async def test_a_filler_nobody_finds_is_lost_and_none_is_none(tmp_path: Path) -> None:
    beginning = Beginning(StoreSettings("directory", "/nowhere"), "m", str(tmp_path))
    assert await Escrow.find(beginning) is None
    (tmp_path / marker.FILE).touch()
    with pytest.raises(FillingLostError):
        await Escrow.find(beginning)


@dataclass
class Guard:
    """The real program, and the only end of its socket."""

    child: subprocess.Popen[bytes]
    sock: socket.socket


@pytest.fixture
def alone() -> Iterator[Guard]:
    near, far = wire.pair()
    child = subprocess.Popen(guard.argv(), stdin=far)
    far.close()
    yield Guard(child, near)
    child.kill()
    child.wait()
    near.close()


def test_a_guard_left_alone_ends_the_tree(alone: Guard, tree: subprocess.Popen[bytes]) -> None:
    with os.fdopen(os.pidfd_open(tree.pid), "rb", buffering=0) as handle:
        wire.send(alone.sock, {"is": "tree"}, [handle.fileno()])
    ignored = 1 << signal.SIGTERM - 1
    while not _ignored(alone.child.pid) & ignored:
        assert alone.child.poll() is None
    alone.child.send_signal(signal.SIGTERM)  # which is not for it
    alone.sock.close()
    assert tree.wait(20) == -signal.SIGKILL
    assert alone.child.wait(20) == 0


def _ignored(pid: int) -> int:
    lines = proc.read_text(f"/proc/{pid}/status").splitlines()
    return next(int(line.split()[1], 16) for line in lines if line.startswith("SigIgn:"))


def test_a_guard_that_is_done_leaves_the_tree_alone(
    alone: Guard, tree: subprocess.Popen[bytes]
) -> None:
    with os.fdopen(os.pidfd_open(tree.pid), "rb", buffering=0) as handle:
        wire.send(alone.sock, {"is": "tree"}, [handle.fileno()])
    wire.send(alone.sock, {"is": "done"})
    assert alone.child.wait(20) == 0
    assert tree.poll() is None


def test_a_guard_left_alone_ends_a_restore_and_what_it_made(alone: Guard, tmp_path: Path) -> None:
    """The supervisor ended before CRIU did: a launcher with a child stands for both."""
    script = "import subprocess as s; s.Popen(['sleep','999']); print('on', flush=True); input()"
    argv = [sys.executable, "-c", script]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as launcher:
        assert launcher.stdout is not None
        assert launcher.stdout.readline() == b"on\n"
        (made,) = proc.children(launcher.pid)
        message = {"is": "restoring", "pid": launcher.pid, "pid_file": str(tmp_path / "none")}
        wire.send(alone.sock, message)
        alone.sock.close()
        assert launcher.wait(20) == -signal.SIGKILL
        assert alone.child.wait(20) == 0
        assert proc.stat(made) is None or proc.stat(made).state == "Z"  # type: ignore[union-attr]


def test_a_guard_left_alone_ends_the_tree_that_a_restore_wrote_down(
    alone: Guard, tmp_path: Path, tree: subprocess.Popen[bytes]
) -> None:
    (tmp_path / "pid").write_text(f"{tree.pid}\n")
    message = {"is": "restoring", "pid": 2**22 - 1, "pid_file": str(tmp_path / "pid")}
    wire.send(alone.sock, message)
    alone.sock.close()
    assert tree.wait(20) == -signal.SIGKILL
