"""One session, suspended and resumed twenty times: nothing of it grows, here or in the store."""

from __future__ import annotations

import gc
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from snapshot import proc
from snapshot.prune import collect
from tests.builders.sandboxes import Box, sandboxes, until

pytestmark = [pytest.mark.criu, pytest.mark.timeout(240)]

CYCLES = 20
SETTLED = 6
"""Cycles until whatever is made once has been made."""

STORE_FACTOR = 1.5
"""Packs of earlier snapshots are kept as long as a good part of them is still needed."""

MEMORY_SLACK_KIB = 4096
OUR_SLACK_KIB = 48 * 1024

PROGRAM = """
import ctypes, os, pty, socket, subprocess, threading, time
from multiprocessing import shared_memory
home = os.path.expanduser("~")
libc = ctypes.CDLL(None)
near, far = socket.socketpair()
listener = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(listener.getsockname())
server, _ = listener.accept()
log = open(f"{home}/log", "w")
watcher = libc.inotify_init1(0o4000)
libc.inotify_add_watch(watcher, f"{home}/log".encode(), 2)
libc.inotify_add_watch(watcher, home.encode(), 0x100)
gone = open(f"{home}/gone", "w+")
gone.write("g" * 100_000)
gone.flush()
os.unlink(f"{home}/gone")
terminal, far_end = pty.openpty()
shell = subprocess.Popen(["/bin/sh"], stdin=far_end, stdout=far_end, stderr=far_end,
                         start_new_session=True)
shared = shared_memory.SharedMemory(create=True, size=500_000)
memory = bytearray(os.urandom(3_000_000))
threading.Thread(target=time.sleep, args=(100_000,), daemon=True).start()
turn = 0
while True:
    turn += 1
    client.sendall(b"x")
    assert server.recv(1) == b"x"
    print(f"turn {turn}", flush=True)
    time.sleep(0.02)
"""


@dataclass(frozen=True, slots=True)
class Census:
    """What there is. Lists, so that a failure shows what is too much."""

    files: tuple[str, ...]
    inner_mounts: int
    our_mounts: int
    our_descriptors: tuple[str, ...]
    our_threads: int
    our_children: tuple[str, ...]
    members: tuple[str, ...]
    descriptors: tuple[int, ...]
    mappings: tuple[int, ...]
    filters: tuple[str, ...]
    objects_beside_packs: int

    @staticmethod
    def of(box: Box) -> Census:
        """Taken while the tree runs."""
        gc.collect()  # what earlier tests left in cycles is not ours, and goes when it likes
        members = proc.members(box.process)
        return Census(
            files=_files(box),
            inner_mounts=_lines(box.process.pid, "mountinfo"),
            our_mounts=_lines(os.getpid(), "mountinfo"),
            our_descriptors=_targets(os.getpid()),
            our_threads=len(os.listdir("/proc/self/task")),
            our_children=tuple(sorted(map(proc.command, _living_children()))),
            members=tuple(sorted(proc.command(member.pid) for member in members)),
            descriptors=tuple(sorted(len(_targets(member.pid)) for member in members)),
            mappings=tuple(sorted(_lines(member.pid, "maps") for member in members)),
            filters=tuple(sorted(_field(member.pid, "Seccomp_filters") for member in members)),
            objects_beside_packs=len(_names(box, "")) - len(_names(box, "packs/")),
        )


def _files(box: Box) -> tuple[str, ...]:
    """Everything in the sandbox's folder and home; what is named by cycle, without its number."""
    found = []
    for top in (box.spec.directory, box.home):
        for folder, _, names in os.walk(top):
            place = "/pins/N" if "/pins/" in folder else folder.removeprefix(str(box.folder))
            found += [place + "/" + ("N" if "/pins/" in folder else name) for name in names]
    return tuple(sorted(found))


def _lines(pid: int, name: str) -> int:
    return len(proc.read_text(f"/proc/{pid}/{name}").splitlines())


def _targets(pid: int) -> tuple[str, ...]:
    """What a process's descriptors are, without numbers."""
    found = []
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            found.append(re.sub("[0-9]+", "N", os.readlink(f"/proc/{pid}/fd/{name}")))
        except OSError:
            continue
    return tuple(sorted(found))


def _living_children() -> list[int]:
    return [
        pid
        for pid in proc.children(os.getpid())
        if (found := proc.stat(pid)) and found.state not in proc.GONE_STATES
    ]


def _field(pid: int, name: str) -> str:
    for line in proc.read_text(f"/proc/{pid}/status").splitlines():
        if line.startswith(f"{name}:"):
            return line.split(":")[1].strip()
    return ""


def collect_all_but_the_newest(box: Box) -> int:
    """What the collector leaves of the store, in bytes."""
    manifests = sorted(_names(box, "manifests/"))
    for run in range(2):
        now = time.time() + box.sequence + run
        collect(box.repository, now=now, grace=0.0, going=manifests[:-1])
    return sum(entry.size for entry in box.repository.store.list(""))


def _names(box: Box, prefix: str) -> list[str]:
    return [entry.key for entry in box.repository.store.list(prefix)]


def _memory_kib(box: Box) -> int:
    """Of the whole tree: what is resident and its own."""
    return sum(
        int(_field(member.pid, name).split()[0])
        for member in proc.members(box.process)
        for name in ("RssAnon", "VmSwap", "VmPTE")
    )


def _our_memory_kib() -> int:
    gc.collect()
    return int(_field(os.getpid(), "RssAnon").split()[0])


async def cycle(box: Box) -> None:
    """Suspend, resume, and see that it goes on."""
    stored = await box.freeze()
    await box.thaw(stored)
    await box.connect()
    seen = box.output().count("turn")
    await until(lambda: box.output().count("turn") > seen + 1, "it goes on")


async def test_twenty_cycles_leave_no_growth(open_folder: Path) -> None:
    async with sandboxes(open_folder / "b") as box:
        await box.start("/usr/bin/python3", "-c", PROGRAM)
        await box.says("turn 3")
        for _ in range(SETTLED):
            await cycle(box)
        await box.filled()
        stored = collect_all_but_the_newest(box)
        before, memory, ours = Census.of(box), _memory_kib(box), _our_memory_kib()
        for _ in range(CYCLES - SETTLED):
            await cycle(box)
        await box.filled()
        stored_now = collect_all_but_the_newest(box)
        after = Census.of(box)
        for name in Census.__slots__:
            assert getattr(after, name) == getattr(before, name), name
        assert stored_now <= STORE_FACTOR * stored
        assert _memory_kib(box) <= memory + MEMORY_SLACK_KIB
        assert _our_memory_kib() <= ours + OUR_SLACK_KIB
        assert "Traceback" not in box.output()
