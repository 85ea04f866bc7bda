"""`hubernate up`: from nothing to a Hub that answers, kept alive until somebody ends it."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

import psutil

from hub_config.children import Children, Program, read_records
from hub_config.housekeeping import collecting
from hub_config.installation import Prepared, existing_settings, stray_proxy
from hub_config.leftovers import end_stray_links
from hub_config.paths import StateFolder
from hub_config.problems import LocalError, UpRefused
from hub_config.programs import all_programs, base_environment
from hub_config.secrets_store import SecretFiles
from hub_config.settings import LocalSettings
from hub_config.shutdown import Leave, Tell, suspend_all
from snapshot.filling import window

log = logging.getLogger(__name__)

DOWN_SECONDS = 240.0


@dataclass(slots=True)
class Ending:
    """How this run is to end. The first signal asks for it, the second does not wait any more."""

    keep: bool = False
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    hurried: asyncio.Event = field(default_factory=asyncio.Event)

    def listen(self) -> None:
        """SIGINT and SIGTERM end the run; SIGUSR1 ends it and keeps the sessions."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self.ask)
        loop.add_signal_handler(signal.SIGUSR1, self.ask_keeping)

    def ask(self) -> None:
        """End, suspending sessions unless they are kept."""
        (self.hurried if self.asked.is_set() else self.asked).set()

    def ask_keeping(self) -> None:
        """End and leave the sessions alive."""
        self.keep = True
        self.ask()


class Runtime:
    """The running installation. Owns its children; `start`, then `end` on every path."""

    def __init__(self, prepared: Prepared, tell: Tell) -> None:
        self.settings = prepared.settings
        self._secret_files = prepared.secret_files
        self._tell = tell
        self.children = Children(self.settings.folder().children_file)
        self._housekeeping: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start or adopt every program; says what each took. Raises `NotReady`.

        The store comes before the scheduler, which comes before those who speak to it."""
        await end_stray_links(self.settings.folder().run)
        window.settle()
        store, scheduler, *others = all_programs(self.settings, self._secret_files)
        await self._start_one(store)
        await self._start_one(scheduler)
        results = await asyncio.gather(*map(self._start_one, others), return_exceptions=True)
        for failure in (result for result in results if isinstance(result, BaseException)):
            raise failure
        environment = base_environment(self.settings, os.environ)
        self._housekeeping = asyncio.create_task(collecting(self.settings, environment).run())

    async def _start_one(self, program: Program) -> None:
        begun = monotonic()
        adopted = await self.children.start(program)
        how = "found running" if adopted else "ready"
        self._tell(f"{program.name}: {how} after {monotonic() - begun:.1f} s")

    async def end(self, ending: Ending) -> Leave:
        """Suspend the sessions (unless kept or hurried), then end the programs."""
        leave = Leave()
        if self._housekeeping is not None:
            self._housekeeping.cancel()
            await asyncio.gather(self._housekeeping, return_exceptions=True)
        if not ending.keep and self.children.record("scheduler") is not None:
            leave = await self._suspend(ending)
        await self.children.end()
        end_stray_proxy(self.settings.folder())
        await end_stray_links(self.settings.folder().run)
        return leave

    async def _suspend(self, ending: Ending) -> Leave:
        token = self._secret_files.service_token("admin")
        suspending = asyncio.create_task(suspend_all(self.settings, token, self._tell))
        hurried = asyncio.create_task(ending.hurried.wait())
        try:
            await asyncio.wait({suspending, hurried}, return_when=asyncio.FIRST_COMPLETED)
            if suspending.done():
                return suspending.result()
            self._tell("Not waiting any more; what still runs is found again by `hubernate up`.")
            return Leave()
        finally:
            for task in (suspending, hurried):
                task.cancel()
            await asyncio.gather(suspending, hurried, return_exceptions=True)


def end_stray_proxy(folder: StateFolder) -> None:
    """End a proxy whose Hub died without ending it."""
    proxy = stray_proxy(folder)
    if proxy is None:
        return
    with contextlib.suppress(psutil.Error):
        proxy.terminate()
        proxy.wait(5)


@contextmanager
def only_run(folder: StateFolder) -> Iterator[None]:
    """Hold the folder's lock, with our PID in it. Raises `UpRefused` where another `up` holds it."""
    path = lock_file(folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = running_pid(folder)
            raise UpRefused(
                f"`hubernate up` already runs for {folder.root} (PID {pid}).",
                remedy="`hubernate down` ends it; HUBERNATE_STATE chooses another folder.",
            ) from None
        handle.truncate(0)
        handle.write(f"{os.getpid()}\n")
        handle.flush()
        yield


def lock_file(folder: StateFolder) -> Path:
    """Who runs this folder. The lock counts, not the file."""
    return folder.run / "up.lock"


def running_pid(folder: StateFolder) -> int | None:
    """PID of the `up` that runs this folder now, or None."""
    try:
        with lock_file(folder).open() as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return int(handle.read().strip() or 0) or None
    except (FileNotFoundError, ValueError):
        return None
    return None


async def down(folder: StateFolder, tell: Tell, *, keep: bool) -> bool:
    """End an `up` of this folder, or the programs that one left behind. False: nothing ran."""
    pid = running_pid(folder)
    if pid is not None:
        tell(f"ending `hubernate up` (PID {pid}) ...")
        os.kill(pid, signal.SIGUSR1 if keep else signal.SIGTERM)
        await _wait_for(pid)
        return True
    settings = existing_settings(folder)
    alive = [r for r in read_records(folder.children_file).values() if r.is_alive()]
    if settings is None or not alive:
        return False
    await _end_orphans(folder, settings, tell, keep=keep)
    return True


async def _wait_for(pid: int) -> None:
    try:
        process = psutil.Process(pid)
        await asyncio.to_thread(process.wait, DOWN_SECONDS)
    except psutil.NoSuchProcess:
        return
    except psutil.TimeoutExpired as error:
        raise LocalError(
            f"PID {pid} did not end within {DOWN_SECONDS:.0f} s.",
            remedy="Look at its terminal; nothing was killed.",
        ) from error


async def _end_orphans(
    folder: StateFolder, settings: LocalSettings, tell: Tell, *, keep: bool
) -> None:
    with only_run(folder):
        if not keep:
            token = SecretFiles(folder.secrets).service_token("admin")
            await suspend_all(settings, token, tell)
        await Children(folder.children_file).end()
        end_stray_proxy(folder)
        await end_stray_links(folder.run)
