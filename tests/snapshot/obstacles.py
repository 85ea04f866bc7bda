"""Programs that hold what CRIU cannot save, and ways to hand them things from outside."""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from snapshot.checkpoint import Checkpoint, Steps
from snapshot.model import SnapshotKey, Stored
from snapshot.refusals import CannotThawError, FreezeFailedError
from tests.builders.sandboxes import Box, until

PYTHON = "/usr/bin/python3"
UNKNOWN = 230_000
"""An account and a group that no sandbox of the tests knows."""

_BEFORE = """
import ctypes, errno, fcntl, mmap, os, select, signal, socket, struct, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
home = os.path.expanduser("~")

def must(result, what):
    if result < 0:
        print("unavailable:", what, os.strerror(ctypes.get_errno()), flush=True)
        time.sleep(999)
    return result

def call(*arguments):
    return must(libc.syscall(*arguments), f"system call {arguments[0]}")
"""
_AFTER = """
turn = 0
while True:
    turn += 1
    print(f"turn {turn}", flush=True)
    time.sleep(0.05)
"""

TAKES = """
near = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
near.connect(f"{home}/give.sock")
_, taken, _, _ = socket.recv_fds(near, 1, 4)
near.close()
"""
"""Holds what `giving` hands over."""

SAVED = """
keep = [os.eventfd(3), os.memfd_create("plain"), os.memfd_create("sealed", os.MFD_ALLOW_SEALING)]
os.write(keep[1], b"x" * 100_000)
mapped = mmap.mmap(keep[1], 100_000)
fcntl.fcntl(keep[2], 1033, 0xF)
keep.append(call(283, 1, 0))  # timerfd
mask = (ctypes.c_ulong * 1)(1 << 9)
keep.append(must(libc.signalfd(-1, mask, 0), "signalfd"))
watch = must(libc.inotify_init(), "inotify")
for place in (home, "/usr/lib", "/dev/shm"):
    must(libc.inotify_add_watch(watch, place.encode(), 0xFFF), "watch")
events = select.epoll()
out, into = os.pipe()
events.register(out)
keep.append(os.pidfd_open(os.getpid()))
ended = os.fork()
if ended == 0:
    os._exit(0)
keep.append(os.pidfd_open(ended))
os.waitpid(ended, 0)
if os.fork() == 0:
    os._exit(0)  # a zombie from here on
segment = must(libc.shmget(0, 8192, 0o1600), "shmget")
netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
packets = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
packets[0].send(b"x")
flying = socket.socketpair()
socket.send_fds(flying[0], [b"x"], [keep[1], out])
half, other = socket.socketpair()
other.close()
lost = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
gone = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
gone.bind("/tmp/gone")
lost.connect("/tmp/gone")
gone.close()
pending = socket.socket(socket.AF_UNIX)
pending.bind("/tmp/pending")
pending.listen()
calls = socket.socket(socket.AF_UNIX)
calls.connect("/tmp/pending")
context = ctypes.c_ulong(0)
call(206, 8, ctypes.byref(context))  # asynchronous file access of the old kind
keep.append(os.open("/etc/passwd", os.O_PATH))
os.mkdir("/tmp/d")
keep.append(os.open("/tmp/d", os.O_RDONLY))
os.rmdir("/tmp/d")
os.mkfifo("/tmp/fifo")
keep.append(os.open("/tmp/fifo", os.O_RDWR))
locked = open(f"{home}/lock", "w")
fcntl.flock(locked, fcntl.LOCK_EX)
keep.append(os.open("/proc/self/ns/net", os.O_RDONLY))
sparse = open("/tmp/sparse", "w+b")
os.unlink("/tmp/sparse")
os.ftruncate(sparse.fileno(), 2 << 30)
deleted = open(f"{home}/deleted", "w+b")
os.unlink(f"{home}/deleted")
foreign = open("/usr/bin/env", "rb")
devices = [open(f"/dev/{name}", "rb") for name in ("null", "zero", "full", "urandom")]
"""
"""Everything that looks odd and is saved all the same."""


def program(text: str) -> tuple[str, ...]:
    """The argument vector of a program that does this, and then counts turns."""
    return (PYTHON, "-c", _BEFORE + text + _AFTER)


async def start(box: Box, text: str, **changes: Any) -> str:
    """Start it and wait until it counts. Returns why this kernel cannot do it, empty if it can."""
    await box.start(*program(text), **changes)
    await until(
        lambda: "turn 2\n" in box.output() or "unavailable" in box.output(),
        f"the program holds it:\n{box.output()[-800:]}",
    )
    return next((line for line in box.output().splitlines() if "unavailable" in line), "")


@contextmanager
def giving(box: Box, descriptor: int) -> Iterator[None]:
    """Hand a descriptor to a program that `TAKES` it. Both copies are closed at the end."""
    path = box.home / "give.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        path.chmod(0o666)
        listener.listen()

        def serve() -> None:
            caller, _ = listener.accept()
            with caller:
                socket.send_fds(caller, [b"x"], [descriptor])

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield
        finally:
            os.close(descriptor)


class Blind(Checkpoint):
    """A freeze that looks at nothing beforehand: CRIU itself has to find out."""

    async def _inspect(self, gpu: Any) -> None:
        return


async def freeze_blindly(box: Box) -> Stored:
    """A freeze without inspection."""
    box.sequence += 1
    key = SnapshotKey("alice", box.spec.directory.name, 1, box.sequence)
    steps = Steps(lambda name, seconds: None)
    checkpoint = Blind(box.tools, box.repository, box.spec, box.process, key, steps)
    return await checkpoint.run({}, box.disconnect)


async def what_criu_says(box: Box) -> str:
    """Let CRIU try a freeze and a thaw, and return its refusal; empty if it brought the tree back."""
    try:
        stored = await freeze_blindly(box)
        await box.thaw(stored)
        await box.filled()
    except (FreezeFailedError, CannotThawError) as error:
        return str(error)
    return ""


async def inject(box: Box, text: str) -> None:
    """Run a program in the sandbox without its system-call filter, as another runtime might."""
    written = box.home / "injected"
    detach = (
        "import os\n"
        "if os.fork(): os._exit(0)\n"
        "os.setsid()\n"
        f"out = os.open('/home/alice/{written.name}', os.O_WRONLY | os.O_CREAT, 0o666)\n"
        "null = os.open('/dev/null', os.O_RDONLY)\n"
        "os.dup2(null, 0); os.dup2(out, 1); os.dup2(out, 2)\n"
        "os.closerange(3, 99)\n"
        f"os.setuid({box.spec.identity.uid})\n"
    )
    enter = ["nsenter", "-t", str(box.process.pid), "-U", "-p", "-m", "-n", "-i"]
    enter += ["-S", "0", "-G", str(box.spec.identity.gid)]
    argv = [*enter, PYTHON, "-c", detach + _BEFORE + text + _AFTER]
    subprocess.run(argv, check=True, capture_output=True)  # noqa: ASYNC221 - some milliseconds
    await until(
        lambda: written.exists() and "turn 2\n" in written.read_text(), "the injected program runs"
    )


def userfaultfd() -> int:
    """A handler of memory faults."""
    descriptor = _call(323, os.O_CLOEXEC | os.O_NONBLOCK)
    fcntl.ioctl(descriptor, 0xC018AA3F, bytearray(struct.pack("QQQ", 0xAA, 0, 0)))
    return descriptor


def performance_counter() -> int:
    """Of the CPU clock."""
    wanted = ctypes.create_string_buffer(struct.pack("IIQ", 1, 128, 0), 128)
    return _call(298, wanted, 0, -1, -1, 0)


def bpf_program() -> int:
    """One that returns 0."""
    code = ctypes.create_string_buffer(
        struct.pack("<BBhi", 0xB7, 0, 0, 0) + struct.pack("<BBhi", 0x95, 0, 0, 0), 16
    )
    licence = ctypes.create_string_buffer(b"GPL")
    order = struct.pack("<IIQQ", 1, 2, ctypes.addressof(code), ctypes.addressof(licence))
    return _call(321, 5, ctypes.create_string_buffer(order, 120), 120)


def pseudo_terminal() -> int:
    """The slave of one of the host's; the master is closed."""
    master, slave = os.openpty()
    os.close(master)
    return slave


def socket_end(kind: socket.SocketKind) -> tuple[socket.socket, int]:
    """A pair: the end that stays outside, and a descriptor of the other."""
    near, far = socket.socketpair(socket.AF_UNIX, kind)
    return near, far.detach()


def _call(number: int, *arguments: Any) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    result = int(libc.syscall(number, *arguments))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def with_groups(box: Box, *groups: int) -> None:
    """Make the box's account a member."""
    box.spec = replace(box.spec, identity=replace(box.spec.identity, groups=groups))
