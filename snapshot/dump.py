"""One run of `criu dump`: pages come over a socket, the tree is held until we say how it ends.

CRIU's post-dump hook is a script that talks to us over two pipes which it opens through
/proc/OUR_PID/fd. While it waits for our verdict, CRIU holds the tree. The end of the pipe (we died,
or gave up) is a veto, and the tree goes on as it was.

CRIU is told to leave the tree running in any case, and a commit ends the held tree by our own hand.
Told to end it, CRIU would take what is queued in terminals and leave them in another mode, as soon
as it has dumped them: after a veto the tree would go on without its terminals' data.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from pydantic import TypeAdapter

from snapshot import criu, pageserver, proc, programs, skeleton, sockets
from snapshot.gpu import putting_back
from snapshot.model import Process, SandboxSpec, Tools
from snapshot.plan import Mount
from snapshot.scratch import Scratch

HOOK_FILE = "hook"
CRIU_FILE = "criu.json"
END_SECONDS = 30.0

_PROCESS = TypeAdapter(Process)

_HOOK = """#!/bin/sh
[ "$CRTOOLS_SCRIPT_ACTION" = post-dump ] || exit 0
exec 3</proc/{pid}/fd/{verdict} 4>/proc/{pid}/fd/{news} || exit 1
echo held >&4
exec 4>&-
read -r answer <&3
exit 1
"""


class DumpError(Exception):
    """The dump failed or CRIU died; the tree goes on. The message is a sentence for people."""


class Dump:
    """Use as `async with`: leaving it without `commit` vetoes, and waits for CRIU to have ended."""

    def __init__(
        self, tools: Tools, spec: SandboxSpec, process: Process, mounts: Sequence[Mount]
    ) -> None:
        self._tools = tools
        self._spec = spec
        self._process = process
        self._mounts = mounts
        self._verdict_out, self._verdict_in = os.pipe()
        self._news_out, self._news_in = os.pipe()
        self._pages, self._pages_there = socket.socketpair()
        self._criu: asyncio.subprocess.Process | None = None
        self._ended: asyncio.Future[int] | None = None

    @property
    def log(self) -> Path:
        """Where CRIU's log lies: in the sandbox's folder, kept for people."""
        return Path(self._spec.directory, criu.DUMP_LOG)

    async def start(self, images: Scratch) -> None:
        """Start CRIU. The tree is frozen shortly after."""
        hook = self._write_hook()
        argv = criu.dump_arguments(
            self._tools,
            self._process,
            images.path,
            self._mounts,
            hook=hook,
            log=self.log,
            page_socket=self._pages_there.fileno(),
        )
        self._criu = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            env=skeleton.criu_environment(self._spec),
            pass_fds=(self._pages_there.fileno(), images.descriptor),
            start_new_session=True,
        )
        self._pages_there.close()
        noted = _note_criu(self._spec, self._criu.pid)
        self._ended = asyncio.ensure_future(_until_ended(self._criu, noted))

    def _forget_criu(self) -> None:
        Path(self._spec.directory, CRIU_FILE).unlink(missing_ok=True)

    def _write_hook(self) -> Path:
        path = Path(self._spec.directory, HOOK_FILE)
        text = _HOOK.format(pid=os.getpid(), verdict=self._verdict_out, news=self._news_in)
        path.write_text(text)
        path.chmod(0o700)
        return path

    async def until_held(self, sink: pageserver.Sink, seconds: float) -> pageserver.Received:
        """Receive all pages and return once CRIU holds the dumped tree for our verdict.

        Raises `DumpError`, `TimeoutError`, and what `sink` raises.
        """
        async with asyncio.timeout(seconds):
            receiving = asyncio.to_thread(pageserver.receive, self._pages, sink)
            try:
                received = await receiving
            except (pageserver.PageProtocolError, OSError) as error:
                await self._raise_why(error)
                raise
            held = asyncio.ensure_future(_until_readable(self._news_out))
            try:
                await self.while_held(held)
            finally:
                held.cancel()
        sockets.end_repair(self._process)
        return received

    async def while_held(self, work: asyncio.Future[Any]) -> None:
        """Wait for `work` (not cancelling it). Raises `DumpError` if CRIU ends before it."""
        ended = asyncio.ensure_future(self._wait())
        try:
            await asyncio.wait({work, ended}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                await self._raise_why(None)
        finally:
            ended.cancel()

    async def _raise_why(self, error: Exception | None) -> None:
        status = await self._end()
        sockets.end_repair(self._process)
        said = await asyncio.to_thread(criu.read_log, self.log)
        raise DumpError("CRIU was killed." if status < 0 else criu.explain(said)) from error

    async def commit(self) -> None:
        """End the held tree, then CRIU. No instruction of the tree is executed any more.

        CRIU is killed because it would go on to remove the second names that it gave to unlinked
        files, which the snapshot needs.
        """
        for member in proc.members(self._process):
            programs.send_signal(member, signal.SIGKILL)
        await self._kill_criu()

    async def _kill_criu(self) -> int:
        assert self._criu is not None  # noqa: S101 - set by start()
        with contextlib.suppress(ProcessLookupError):
            self._criu.send_signal(signal.SIGKILL)
        return await self._wait()

    async def _wait(self) -> int:
        assert self._ended is not None  # noqa: S101 - set by start()
        return await asyncio.shield(self._ended)

    async def _end(self) -> int:
        """CRIU's exit status, past a deadline by killing it (a negative status then)."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_SECONDS):
                return await self._wait()
        return await self._kill_criu()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        # CRIU first learns that nobody will say yes; what it may still open is closed at the end.
        os.close(self._verdict_in)
        with contextlib.suppress(OSError):
            self._pages.shutdown(socket.SHUT_RDWR)
        try:
            if self._criu is not None:
                await asyncio.shield(self._end())
                self._forget_criu()
        finally:
            for descriptor in (self._verdict_out, self._news_out, self._news_in):
                os.close(descriptor)
            self._pages.close()
            self._pages_there.close()


async def _until_readable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(descriptor, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(descriptor)


async def _until_ended(child: asyncio.subprocess.Process, noted: Process) -> int:
    """CRIU's exit status, once nothing of it is left: what it had forked when it was killed holds our
    pipe and socket, and would be waited for."""
    status = await child.wait()
    await asyncio.to_thread(programs.end_group, noted)
    return status


def _note_criu(spec: SandboxSpec, pid: int) -> Process:
    """Remember CRIU, for a later supervisor's `mend`."""
    process = proc.identify(pid) or Process(pid, 0)
    Path(spec.directory, CRIU_FILE).write_bytes(_PROCESS.dump_json(process))
    return process


async def mend(
    tools: Tools,
    spec: SandboxSpec,
    process: Process,
    mounts: Sequence[Mount] = (),
    *,
    gpu_libraries: str = "",
) -> None:
    """Undo a freeze whose supervisor died: its dump, then what it took off the GPUs.

    Nothing happens if none was under way. Raises `GpuError` for GPU state that does not come back.
    `tools` and `mounts` play no part: no second dump is needed to undo the first.
    """
    await _mend_dump(spec, process)
    await putting_back.mend(spec, process, gpu_libraries)


async def _mend_dump(spec: SandboxSpec, process: Process) -> None:
    """Left alone, CRIU reads the end of our pipe as a veto and lets the tree go on; one that does
    not end is killed."""
    record = Path(spec.directory, CRIU_FILE)
    try:
        earlier = _PROCESS.validate_json(proc.read_text(str(record)))
    except ValueError:
        return
    if not await programs.wait_until_ended(earlier, END_SECONDS):
        programs.send_signal(earlier, signal.SIGKILL)
        await programs.wait_until_ended(earlier, END_SECONDS)
    await asyncio.to_thread(programs.end_group, earlier)
    sockets.end_repair(process)
    os.unlink(record)
