"""What is in the way, with real programs in real sandboxes: told beforehand, and really refused.

Each obstacle is first looked for, then CRIU is let to try without looking. What looks odd and is
saved all the same is not told.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from snapshot import proctree, programs
from snapshot.model import NetworkSpec
from tests.builders.sandboxes import Box, until
from tests.snapshot import obstacles
from tests.snapshot.obstacles import TAKES, UNKNOWN, giving, inject, start, what_criu_says

pytestmark = [pytest.mark.criu, pytest.mark.usefixtures("working_criu")]


def told(box: Box) -> list[str]:
    return [blocker.what for blocker in proctree.inspect(box.process)]


async def is_told_and_refused(box: Box, word: str) -> None:
    found = told(box)
    assert [what for what in found if word in what], f"{word!r} is not in {found}"
    assert await what_criu_says(box), "CRIU saved it: this is no obstacle"


WITHIN = {
    "secret memory": (
        "held = call(447, 0); os.ftruncate(held, 4096); memory = mmap.mmap(held, 4096)",
        "secrets",
    ),
    "landlock": (
        "rules = ctypes.create_string_buffer(struct.pack('Q', 1), 8); held = call(444, rules, 8, 0)",
        "Landlock",
    ),
    "vsock": (
        "try:\n    held = socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)\n"
        "except OSError:\n    must(-1, 'AF_VSOCK')",
        "AF_VSOCK",
    ),
    "message queue": (
        "held = must(ctypes.CDLL('librt.so.1').mq_open(b'/q', 66, 0o600, None), 'mq_open')",
        "does not belong to the session",
    ),
    "watch on proc": (
        "held = libc.inotify_init(); must(libc.inotify_add_watch(held, b'/proc', 0xFFF), 'watch')",
        "changes in /proc",
    ),
    "keys of the terminal": (
        "import pty\npid, held = pty.fork()\n"
        "if pid == 0:\n    keys = open('/dev/tty'); print('x', flush=True); time.sleep(999)\n"
        "os.read(held, 1)",
        "reads keys",
    ),
    "call not answered": (
        "server = socket.create_server(('127.0.0.1', 0))\n"
        "held = socket.create_connection(server.getsockname())",
        "has not answered",
    ),
    "sent and not taken": (
        "server = socket.socket(socket.AF_UNIX); server.bind('/tmp/s'); server.listen()\n"
        "held = socket.socket(socket.AF_UNIX); held.connect('/tmp/s'); held.send(b'hello')",
        "has not taken the call",
    ),
    "huge deleted file": (
        "held = open('/tmp/big', 'w+b'); os.unlink('/tmp/big')\n"
        "os.posix_fallocate(held.fileno(), 0, (1 << 30) + (1 << 20))",
        "larger than 1 GiB",
    ),
}


@pytest.mark.parametrize("name", WITHIN)
async def test_obstacles_that_a_program_makes_itself(box: Box, name: str) -> None:
    text, word = WITHIN[name]
    if lacking := await start(box, text):
        pytest.skip(f"this kernel cannot do it: {lacking}")
    await is_told_and_refused(box, word)


def _device(path: str) -> Callable[[], int]:
    return lambda: os.open(path, os.O_RDWR)


GIVEN: dict[str, tuple[Callable[[], int], str]] = {
    "memory faults": (obstacles.userfaultfd, "userfaultfd"),
    "profiler": (obstacles.performance_counter, "profiler"),
    "kernel program": (obstacles.bpf_program, "BPF"),
    "virtual machines": (_device("/dev/kvm"), "virtual machines"),
    "fuse": (_device("/dev/fuse"), "FUSE"),
    "file of the host": (lambda: os.open(__file__, os.O_RDONLY), "does not belong to the session"),
    "terminal of the host": (obstacles.pseudo_terminal, "does not belong to the session"),
    "program of the host": (lambda: os.pidfd_open(os.getpid()), "outside of the session"),
    "network of the host": (lambda: os.open("/proc/self/ns/net", os.O_RDONLY), "container (net)"),
}


@pytest.mark.parametrize("name", GIVEN)
async def test_obstacles_that_come_from_outside(box: Box, name: str) -> None:
    make, word = GIVEN[name]
    try:
        descriptor = make()
    except FileNotFoundError as error:
        pytest.skip(f"this machine has none: {error.filename}")
    with giving(box, descriptor):
        await start(box, TAKES)
    await is_told_and_refused(box, word)


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET])
async def test_connections_to_programs_outside(box: Box, kind: socket.SocketKind) -> None:
    path = box.home / "service.sock"
    with socket.socket(socket.AF_UNIX, kind) as service:
        service.bind(str(path))
        path.chmod(0o666)
        if kind is not socket.SOCK_DGRAM:
            service.listen()
        await start(
            box,
            f"near = socket.socket(socket.AF_UNIX, {int(kind)})\nnear.connect(f'{{home}}/service.sock')",
        )
        await is_told_and_refused(box, "outside of the session")


async def test_a_socket_that_was_handed_in(box: Box) -> None:
    stays, descriptor = obstacles.socket_end(socket.SOCK_STREAM)
    with stays:
        with giving(box, descriptor):
            await start(box, TAKES)
        await is_told_and_refused(box, "outside of the session")


IO_URING = "about = ctypes.create_string_buffer(120); ring = call(425, 4, about)\n"


@pytest.mark.parametrize(
    "text", [IO_URING, IO_URING + "memory = mmap.mmap(ring, 4096); os.close(ring)"]
)
async def test_io_uring_where_nothing_forbids_it(box: Box, text: str) -> None:
    await start(box, "")
    try:
        await inject(box, text)
    except AssertionError:
        if "unavailable" in (box.home / "injected").read_text():
            pytest.skip("this kernel has io_uring turned off")
        raise
    await is_told_and_refused(box, "io_uring")


async def test_a_container_inside(box: Box) -> None:
    """Its processes are in a PID namespace of their own, and are told all the same."""
    await start(box, "")
    await inject(
        box, "must(libc.unshare(0x30000000), 'unshare')\nif os.fork() == 0: time.sleep(999)"
    )
    await until(lambda: len(told(box)) >= 4, "both processes are seen")
    await is_told_and_refused(box, "user namespace")
    assert any("PID namespace" in what for what in told(box))


async def test_a_file_that_belongs_to_a_group_unknown_inside(box: Box) -> None:
    path = box.home / "shared.csv"
    path.write_text("x")
    os.chown(path, box.spec.identity.uid, UNKNOWN)
    path.chmod(0o660)
    await start(box, "held = open(f'{home}/shared.csv', 'r+')")
    await is_told_and_refused(box, "another account or group")


async def test_a_folder_that_was_closed_meanwhile(box: Box) -> None:
    folder = box.home / "data"
    folder.mkdir()
    (folder / "x").touch()
    os.chown(folder / "x", box.spec.identity.uid, box.spec.identity.gid)
    folder.chmod(0o755)
    await start(box, "held = open(f'{home}/data/x', 'r+')")
    assert told(box) == []
    folder.chmod(0o700)
    await is_told_and_refused(box, "/home/alice/data, which is closed")


@pytest.mark.parametrize("owner", ["another account", "the own account"])
async def test_a_library_that_was_replaced_while_it_was_in_use(box: Box, owner: str) -> None:
    """As an upgrade of the machine's packages does: the old file has no name any more."""
    is_own = owner == "the own account"
    path = box.home / "library.so"
    path.write_bytes(bytes(8192))
    os.chown(path, *((box.spec.identity.uid, box.spec.identity.gid) if is_own else (0, 0)))
    path.chmod(0o755)
    text = "file = os.open(f'{home}/library.so', os.O_RDONLY)\n"
    await start(box, text + "held = mmap.mmap(file, 8192, prot=1, flags=2); os.close(file)")
    path.unlink()
    if is_own:
        assert told(box) == []
        assert await what_criu_says(box) == ""
    else:
        await is_told_and_refused(box, "deleted or replaced")


async def test_a_file_deleted_where_nothing_can_be_created(box: Box) -> None:
    folder = box.home / "published"
    folder.mkdir()
    (folder / "x").touch()
    os.chown(folder / "x", box.spec.identity.uid, box.spec.identity.gid)
    folder.chmod(0o755)
    await start(box, "held = open(f'{home}/published/x', 'r+')")
    (folder / "x").unlink()
    await is_told_and_refused(box, "closed to other accounts")


async def test_what_looks_odd_and_is_saved_all_the_same(box: Box) -> None:
    assert await start(box, obstacles.SAVED) == ""
    assert told(box) == []
    assert await what_criu_says(box) == ""
    before = len(box.output())
    await box.says("turn", after=before)
    assert "Traceback" not in box.output()


async def test_connections_that_will_close_are_counted(box: Box) -> None:
    """One leads out, one leads in, one stays inside."""
    inner = NetworkSpec(inner_port=8888)
    with ExitStack() as stack:
        service = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        port = service.getsockname()[1]
        text = (
            "own = socket.create_server(('127.0.0.1', 8888))\n"
            "near = socket.create_connection(own.getsockname())\n"
            "far, _ = own.accept()\n"
            "print('listening', flush=True)\n"
            f"open(f'{{home}}/wait', 'x')\n"
            "while os.path.exists(f'{home}/wait'): time.sleep(0.01)\n"
            f"leads_out = socket.create_connection(('127.0.0.1', {port}))\n"
            "leads_in, _ = own.accept()\n"
        )
        network = NetworkSpec(inner_port=inner.inner_port, reachable_ports=(port,))
        await box.start(*obstacles.program(text), network=network)
        await box.says("listening")
        assert proctree.examine(box.process).outside == 0
        link = await box.connect()
        await until((box.home / "wait").exists, "the program waits")
        (box.home / "wait").unlink()
        caller = await asyncio.to_thread(socket.create_connection, ("127.0.0.1", link.host_port))
        stack.enter_context(caller)
        await box.says("turn 2\n")
        assert proctree.examine(box.process).outside == 2
        await box.disconnect()
        await until(lambda: proctree.examine(box.process).outside == 0, "both have ended")


async def test_memory_is_weighed(box: Box) -> None:
    text = "private = bytearray(os.urandom(1 << 20)) * 100\n"
    text += "open('/dev/shm/shared', 'wb').write(bytes(50 << 20))"
    await start(box, text)
    rates = proctree.Rates(fixed_seconds=1.0, bytes_per_second=1e8)
    found = proctree.examine(box.process, rates=rates)
    assert 150 << 20 <= found.bytes < 200 << 20
    assert found.seconds == pytest.approx(1.0 + found.bytes / 1e8, abs=0.1)


async def test_without_a_capability_neither_we_nor_criu_can_look(box: Box) -> None:
    await start(box, "")
    process = box.process
    look = (
        "from snapshot import proctree; from snapshot.model import Process\n"
        f"print(*proctree.inspect(Process({process.pid}, {process.started})))"
    )
    without = ["/usr/bin/setpriv", "--bounding-set", "-sys_ptrace", "--inh-caps", "-sys_ptrace"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    said = await programs.run(
        [*without, sys.executable, "-c", look], seconds=30, environment=environment
    )
    assert said.status == 0, said.errors
    assert said.output.count("Blocker(") == 1
    assert "lacks CAP_SYS_PTRACE" in said.output
    tools = box.tools
    box.tools = replace(tools, criu=(*without, *tools.criu))
    assert await what_criu_says(box)
    box.tools = tools
    assert await what_criu_says(box) == ""


async def test_two_thousand_descriptors_cost_little(box: Box) -> None:
    """The badge looks every minute: it may cost a thousandth of a core."""
    text = (
        "import resource\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))\n"
        "held = [open(f'{home}/{n}', 'w') for n in range(1000)]\n"
        "pairs = [socket.socketpair() for n in range(500)]\n"
    )
    await start(box, text)
    spent: list[float] = []
    for _ in range(5):
        begun = time.process_time()
        assert proctree.inspect(box.process) == ()
        spent.append(time.process_time() - begun)
    assert min(spent) < 0.15, spent
