"""Starts, watches, adopts and ends the programs of one installation.

Each program is recorded with PID and start time, so that a later run knows its own children from
strangers that got the same PID. A program that dies is started again after a growing pause.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import os
import signal
import subprocess
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic

import psutil

from hub_config.problems import NotReady
from hub_config.settings import write_json

log = logging.getLogger(__name__)

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
STEADY_SECONDS = 60.0
"""A program that lived this long starts over with the shortest pause."""

Probe = Callable[[], Awaitable[str]]
"""Answers an empty string when the program is ready, else what is missing."""


@dataclass(frozen=True, slots=True)
class Program:
    """One program, started in `folder` (else beside its log). `inputs` are files whose content it
    reads only at start: another content means that a running one cannot be adopted. One that serves
    nothing counts as ready when it also has lived for `settle_seconds`."""

    name: str
    argv: tuple[str, ...]
    environment: Mapping[str, str]
    log_file: Path
    probe: Probe
    ready_seconds: float = 30.0
    settle_seconds: float = 0.0
    end_seconds: float = 15.0
    inputs: tuple[Path, ...] = ()
    folder: Path | None = None

    def digest(self) -> str:
        """Names this configuration of the program; holds no secret in readable form."""
        state = hashlib.sha256(json.dumps([self.argv, sorted(self.environment.items())]).encode())
        for path in self.inputs:
            state.update(path.read_bytes() if path.exists() else b"")
        return state.hexdigest()


@dataclass(frozen=True, slots=True)
class Record:
    """A started program. `started` is the kernel's start time in seconds since 1970."""

    pid: int
    started: float
    digest: str

    def is_alive(self) -> bool:
        """Whether exactly this process still runs (a zombie does not)."""
        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.started) < 0.05
            return same and process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return False


class Children:
    """The programs of one installation. Owns one watching task per program until `end`."""

    def __init__(self, record_file: Path) -> None:
        self._file = record_file
        self._records = read_records(record_file)
        self._own: dict[str, subprocess.Popen[bytes]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._programs: dict[str, Program] = {}
        self.restarts: dict[str, int] = {}

    def record(self, name: str) -> Record | None:
        """What is known of the program that runs under this name."""
        return self._records.get(name)

    async def start(self, program: Program) -> bool:
        """Adopt or start it, wait until it is ready, then keep it alive. True if it was adopted.

        Raises `NotReady`, leaving the program to be ended by `end`."""
        self._programs[program.name] = program
        adopted = await self._adopt(program)
        if not adopted:
            self._spawn(program)
        await self._wait_ready(program)
        self._tasks[program.name] = asyncio.create_task(
            self._keep_alive(program), name=f"watch {program.name}"
        )
        return adopted

    async def end(self) -> None:
        """End all programs, the last started first. May be called twice."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self._tasks.clear()
        for name in reversed(list(self._records)):
            grace = self._programs[name].end_seconds if name in self._programs else 15.0
            await self._end_one(name, grace)

    async def _adopt(self, program: Program) -> bool:
        record = self._records.get(program.name)
        if record is None or not record.is_alive():
            return False
        if record.digest == program.digest() and not await program.probe():
            return True
        log.info("%s of an earlier run is started anew with today's settings", program.name)
        await self._end_one(program.name, program.end_seconds)
        return False

    def _spawn(self, program: Program) -> None:
        descriptor = os.open(program.log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            process = subprocess.Popen(
                program.argv,
                env=dict(program.environment),
                stdin=subprocess.DEVNULL,
                stdout=descriptor,
                stderr=descriptor,
                cwd=program.folder or program.log_file.parent,
                start_new_session=True,
            )
        finally:
            os.close(descriptor)
        self._own[program.name] = process
        started = psutil.Process(process.pid).create_time()
        self._records.pop(program.name, None)
        self._records[program.name] = Record(process.pid, started, program.digest())
        self._save()

    async def _wait_ready(self, program: Program) -> None:
        begun = monotonic()
        while True:
            missing, record = await program.probe(), self._records[program.name]
            if not self._is_running(program.name, record):
                raise NotReady(
                    f"{program.name} ended while it was starting: {last_line(program.log_file)}",
                    remedy=f"Its log is {program.log_file}.",
                )
            waited = monotonic() - begun
            if not missing and waited >= program.settle_seconds:
                return
            if waited > program.ready_seconds:
                raise NotReady(
                    f"{program.name} was not ready after {program.ready_seconds:.0f} s: {missing}.",
                    remedy=f"Its log is {program.log_file}.",
                )
            await asyncio.sleep(0.1)

    def _is_running(self, name: str, record: Record) -> bool:
        own = self._own.get(name)
        return own.poll() is None if own is not None else record.is_alive()

    async def _keep_alive(self, program: Program) -> None:
        pause = FIRST_PAUSE
        while True:
            begun = monotonic()
            await self._wait_gone(program.name)
            pause = FIRST_PAUSE if monotonic() - begun > STEADY_SECONDS else pause
            self.restarts[program.name] = self.restarts.get(program.name, 0) + 1
            how = self._how_it_ended(program)
            log.warning("%s %s; it is started again in %.1f s", program.name, how, pause)
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)
            try:
                self._spawn(program)
                await self._wait_ready(program)
                log.info("%s is ready again", program.name)
            except (OSError, NotReady) as error:
                log.error("%s", error)
                await self._end_one(program.name, program.end_seconds)

    def _how_it_ended(self, program: Program) -> str:
        own = self._own.get(program.name)
        if own is None or own.returncode is None:
            return "ended"
        if own.returncode < 0:
            return f"was killed by {signal.Signals(-own.returncode).name}"
        return f"ended with status {own.returncode} ({last_line(program.log_file)})"

    async def _wait_gone(self, name: str, timeout: float | None = None) -> bool:
        """Wait for the process to end through a descriptor of it; False after `timeout` seconds."""
        record = self._records.get(name)
        if record is None or not self._is_running(name, record):
            return True
        try:
            descriptor = os.pidfd_open(record.pid)
        except ProcessLookupError:
            return True
        loop, gone = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(descriptor, gone.set)
        try:
            async with asyncio.timeout(timeout):
                await gone.wait()
        except TimeoutError:
            return False
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)
        if name in self._own:
            self._own[name].wait()
        return True

    async def _end_one(self, name: str, grace: float) -> None:
        record = self._records.get(name)
        if record is not None and self._is_running(name, record):
            for number, seconds in ((signal.SIGTERM, grace), (signal.SIGKILL, 5.0)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(record.pid, number)
                if await self._wait_gone(name, seconds):
                    break
        self._records.pop(name, None)
        self._own.pop(name, None)
        self._save()

    def _save(self) -> None:
        write_json(self._file, {name: asdict(record) for name, record in self._records.items()})


def read_records(path: Path) -> dict[str, Record]:
    """The programs that an earlier run started, in order; empty where there was none."""
    try:
        found = json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return {name: Record(**fields) for name, fields in found.items()}


def last_line(path: Path, *, width: int = 300) -> str:
    """The last line with text in a log, for a person."""
    try:
        with path.open("rb") as handle:
            handle.seek(0, os.SEEK_END)
            handle.seek(max(0, handle.tell() - 4096))
            lines = handle.read().decode(errors="replace").splitlines()
    except FileNotFoundError:
        return "it wrote no log"
    texts = [line.strip() for line in lines if line.strip()]
    return texts[-1][:width] if texts else "its log is empty"
