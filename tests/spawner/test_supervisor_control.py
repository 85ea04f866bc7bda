"""The two sockets of a supervisor: who may speak, and what is answered."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from spawner.supervisor import client, control, inner, inside
from spawner.supervisor.board import Board
from spawner.supervisor.fencing import Fence
from spawner.supervisor.sampler import CpuMeter
from spawner.supervisor.signals import (
    HOLD_LIMIT_SECONDS,
    INNER_FRESH_SECONDS,
    Heard,
    Hold,
    InnerReport,
    KernelSignal,
    KernelState,
    compose,
)
from spawner.supervisor.status import CONTROL_SOCKET, Outcome, Status
from spawner.supervisor.wishes import Action, Wishes

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="speaks for another user")


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[tuple[Board, Wishes]]:
    """A control server on a board of its own."""
    board, wishes = Board(folder, Status("w-1", "running", host_port=4)), Wishes()
    with control.bind(folder) as sock:
        task = asyncio.create_task(control.ControlServer(sock, board, wishes).run())
        try:
            yield board, wishes
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


async def speak(folder: Path, *lines: bytes) -> list[dict[str, object]]:
    """Each line's answer, on one connection."""
    reader, writer = await asyncio.open_unix_connection(str(folder / CONTROL_SOCKET))
    try:
        answers = []
        for line in lines:
            writer.write(line + b"\n")
            async with asyncio.timeout(5):
                answers.append(json.loads(await reader.readline()))
        return answers
    finally:
        writer.close()


@needs_root
async def test_status_and_wishes(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, wishes):
        assert (await client.ask(tmp_path, "status")).host_port == 4
        await client.ask(tmp_path, "suspend", actor="alice", reason="lunch")
        wish = wishes.current()
        assert wish is not None
        assert (wish.action, wish.actor, wish.reason, wish.local) == (
            Action.SUSPEND,
            "alice",
            "lunch",
            True,
        )
        await client.ask(tmp_path, "stop", actor="root")
        await client.ask(tmp_path, "suspend", actor="alice")
        assert wishes.current() is not None and wishes.current().action is Action.STOP  # type: ignore[union-attr]


@needs_root
async def test_watch_tells_every_change_to_the_end(tmp_path: Path) -> None:
    async with serving(tmp_path) as (board, _):
        seen = []
        async for status in client.watch(tmp_path):
            seen.append(status.phase)
            if status.phase == "running":
                board.update(phase="suspending")
            elif status.phase == "suspending":
                board.update(phase="suspended", outcome=Outcome.SUSPENDED)
        assert seen == ["running", "suspending", "suspended"]


async def test_watch_ends_when_the_supervisor_is_killed_before_it_has_read_everything(
    tmp_path: Path,
) -> None:
    """The kernel resets such a connection instead of closing it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(tmp_path / CONTROL_SOCKET))
        listener.listen(1)
        watching = client.watch(tmp_path)
        first = asyncio.ensure_future(anext(watching, None))
        killed, _ = await asyncio.to_thread(listener.accept)
        assert await asyncio.to_thread(killed.recv, 1, socket.MSG_PEEK)
        killed.close()
        assert await first is None


@needs_root
@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"status", "not a JSON object"),
        (b"[]", "not a JSON object"),
        (b'{"command": 5}', "not a JSON object"),
        (b'{"command": "explode"}', "unknown command"),
        (b'{"command": "yield-lease"}', "unknown command"),
    ],
)
async def test_other_lines_are_refused_and_the_connection_lives(
    tmp_path: Path, line: bytes, says: str
) -> None:
    async with serving(tmp_path) as (_, wishes):
        refused, answered = await speak(tmp_path, line, b'{"command": "status"}')
        assert refused["ok"] is False
        assert says in str(refused["error"])
        assert answered["ok"] is True
        assert wishes.current() is None


@needs_root
async def test_only_root_is_heard(tmp_path: Path) -> None:
    """Even if the socket's mode let others in."""
    os.chmod(tmp_path, 0o711)
    async with serving(tmp_path) as (_, wishes):
        os.chmod(tmp_path / CONTROL_SOCKET, 0o666)
        script = (
            "import os, socket, sys\n"
            "folder = os.open(sys.argv[1], os.O_PATH)\n"
            "os.setgid(210000); os.setuid(210000)\n"
            "s = socket.socket(socket.AF_UNIX); s.connect(f'/proc/self/fd/{folder}/control.sock')\n"
            "print(s.makefile().readline())\n"
        )
        told = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-c", script, str(tmp_path)],
            capture_output=True,
            text=True,
        )
        assert "only root" in told.stdout, told.stderr
        assert wishes.current() is None


async def test_nobody_there_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(client.NotAnsweringError):
        await client.ask(tmp_path, "status")


KERNEL = b'{"kernels": [{"id": "k", "state": "busy", "since": 1.5, "shoe_size": 44}]}'


def test_a_report_is_taken_without_what_is_new_to_us() -> None:
    report = inner.parse(KERNEL)
    assert report == InnerReport(kernels=(KernelSignal("k", "", KernelState.BUSY, 1.5),))


@pytest.mark.parametrize(
    "datagram",
    [
        b"",
        b"null",
        b"[]",
        b'{"kernels": [{"state": "idle"}]}',
        b'{"kernels": [{"id": "k", "state": "asleep"}]}',
        b'{"last_input": NaN}',
        b'{"last_input": 1e999}',
        b'{"hold": {"seconds": Infinity}}',
        b'{"kernels": "' + b"x" * inner.LARGEST_DATAGRAM + b'"}',
        b"[" * 20_000,
        json.dumps({"terminals": [{"name": str(n)} for n in range(257)]}).encode(),
    ],
)
def test_anything_else_is_no_report(datagram: bytes) -> None:
    assert inner.parse(datagram) is None


def test_old_words_are_unknown_not_idle() -> None:
    report = InnerReport(kernels=(), last_input=5.0, connections=0)
    heard = Heard().hear(report, 100.0)
    now = compose(100.0 + INNER_FRESH_SECONDS, heard, cpu_seconds=1.0, blockers=()).as_dict()
    assert (now["kernels"], now["freezable"]) == ((), True)
    later = compose(101.0 + INNER_FRESH_SECONDS, heard, cpu_seconds=None, blockers=None).as_dict()
    assert set(later) == {"sampled_at"}


@pytest.mark.parametrize(
    ("asked", "given"), [(5.0, 5.0), (1e9, HOLD_LIMIT_SECONDS), (0.0, None), (-5.0, None)]
)
def test_a_hold_is_bounded(asked: float, given: float | None) -> None:
    heard = Heard().hear(InnerReport(hold=Hold(asked)), 100.0)
    assert heard.hold_until == (None if given is None else 100.0 + given)


def test_cpu_time_never_runs_backwards() -> None:
    readings = iter([5.0, 7.0, 1.0, 2.5, None, 3.0])
    meter = CpuMeter(lambda: next(readings))
    assert [meter.total() for _ in range(6)] == [5.0, 7.0, 7.0, 8.5, None, 9.0]


@needs_root
def test_links_of_the_user_are_never_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    folder = tmp_path / "run"
    inside.prepare(folder, 210_000, 210_000)
    (folder / "inner.sock").symlink_to(victim)
    inner.bind(folder, 210_000, 210_000).close()
    assert victim.read_text() == "untouched"
    assert victim.stat().st_uid == 0


@needs_root
def test_a_run_folder_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").symlink_to(tmp_path)
    with pytest.raises(OSError, match="run"):
        inside.prepare(tmp_path / "run", 210_000, 210_000)


class Clock:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_fence_never_closes_around_a_freeze() -> None:
    clock, halted = Clock(), []
    fence = Fence(
        10.0, halt=lambda: halted.append("halt"), go_on=lambda _: halted.append("on"), clock=clock
    )
    clock.now = 11.0
    fence.check()
    assert halted == ["halt"]
    with fence.held_open():
        assert halted == ["halt", "on"]
        fence.check()
        fence.close()
        assert not fence.is_halted
    fence.check()
    assert fence.is_halted


def test_a_lease_without_gpus_needs_no_fence() -> None:
    clock, halted = Clock(), []
    fence = Fence(
        10.0,
        halt=lambda: halted.append("halt"),
        go_on=lambda _: halted.append("on"),
        clock=clock,
        needed=False,
    )
    clock.now = 1e6
    fence.check()
    assert halted == []
