"""How each fault is done to a running installation."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from random import Random
from typing import Final

from hub_config.demo.stage import Stage
from snapshot import proc
from snapshot.filling import guard
from spawner.supervisor.status import read_status
from tests.chaos.plan import Fault, Strike

APPEARS: Final = 15.0
"""Seconds to wait for a victim that comes and goes by itself."""
LOOKS_EVERY: Final = 0.002
AWAY: Final = 4.0
"""Seconds for which the disk stays full and the store slow."""
CACHE_BYTES: Final = 3 * 2**30
"""Of the node cache's own disk: what it keeps free for others, and more than all sessions."""
SLOW, QUICK = 0.2, 0.05

Victims = Callable[[], Iterable[int]]


def supervisors(folder: Path) -> list[int]:
    """Who looks after the session now."""
    status = read_status(folder)
    if status is None or status.supervisor is None or proc.has_ended(status.supervisor):
        return []
    return [status.supervisor.pid]


def crius(folder: Path) -> list[int]:
    """The CRIU that dumps or restores for the session, but not what it has forked: that is left
    half-built."""
    found = {pid for pid, words in _named("/criu") if any(str(folder) in word for word in words)}
    return [pid for pid in found if (stat := proc.stat(pid)) and stat.parent not in found]


def fillers(folder: Path) -> list[int]:
    """Who fills the session's memory: its log says so."""
    log = str(folder / "filler.log")
    return [pid for pid in proc.all_pids() if log in _descriptors(pid)]


def guards(folder: Path) -> list[int]:
    """The session's last holder, or that of a supervisor that is gone."""
    start = guard.argv()[-1]
    mine = supervisors(folder)
    found = [pid for pid, words in _named(start) if words[-1:] == [start]]
    return [pid for pid in found if (stat := proc.stat(pid)) and stat.parent in (*mine, 1)]


def _named(part: str) -> list[tuple[int, list[str]]]:
    found = []
    for pid in proc.all_pids():
        words = proc.read_text(f"/proc/{pid}/cmdline").split("\0")[:-1]
        if any(part in word for word in words):
            found.append((pid, words))
    return found


def _descriptors(pid: int) -> set[str]:
    found = set()
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                found.add(os.readlink(f"/proc/{pid}/fd/{name}"))
    return found


def kill(pids: Iterable[int]) -> list[int]:
    """SIGKILL; those that were there."""
    hit = []
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            hit.append(pid)
    return hit


class Faults:
    """The faults of one installation. Whatever they do ends by itself, and before `mend` returns."""

    def __init__(self, stage: Stage, random: Random) -> None:
        self._stage = stage
        self._cache = stage.state / "cache"
        self._random = random
        self._slowed: set[int] = set()

    async def strike(self, strike: Strike, folder: Path) -> str:
        """Do it to the session of that folder; what came of it, in words."""
        match strike.fault:
            case Fault.SUPERVISOR:
                return await self._kill_some(strike, supervisors, folder)
            case Fault.CRIU:
                return await self._kill_some(strike, crius, folder)
            case Fault.FILLER:
                return await self._kill_some(strike, fillers, folder)
            case Fault.GUARD:
                return await self._kill_some(strike, guards, folder)
            case Fault.HOLDERS:
                return await self._kill_holders(strike, folder)
        await asyncio.sleep(strike.delay)
        match strike.fault:
            case Fault.SCHEDULER:
                return self._kill_program("scheduler")
            case Fault.STORE:
                return self._kill_program("store")
            case Fault.SLOW_STORE:
                return await self._slow("store")
            case Fault.CACHE_GONE:
                return await asyncio.to_thread(self._empty)
            case Fault.CACHE_DAMAGED:
                return await asyncio.to_thread(self._damage)
            case Fault.CACHE_FULL:
                return await self._fill_up()

    async def _kill_some(
        self, strike: Strike, victims: Callable[[Path], list[int]], folder: Path
    ) -> str:
        if not await _appears(lambda: victims(folder)):
            return f"{strike.fault}: there was none"
        await asyncio.sleep(strike.delay)
        return f"{strike.fault}: {kill(victims(folder))}"

    async def _kill_holders(self, strike: Strike, folder: Path) -> str:
        if not await _appears(lambda: fillers(folder)):
            return f"{strike.fault}: there was no filler"
        await asyncio.sleep(strike.delay)
        return f"{strike.fault}: {kill([*fillers(folder), *supervisors(folder)])}"

    def _kill_program(self, name: str) -> str:
        pid = self._stage.child(name)
        return f"{name} killed: {kill([pid])}"

    async def _slow(self, name: str) -> str:
        pid = self._stage.child(name)
        end = asyncio.get_running_loop().time() + AWAY
        try:
            while asyncio.get_running_loop().time() < end:
                os.kill(pid, signal.SIGSTOP)
                await asyncio.sleep(SLOW)
                os.kill(pid, signal.SIGCONT)
                await asyncio.sleep(QUICK)
        except ProcessLookupError:
            return f"{name} was slow until it was killed"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        return f"{name} was slow for {AWAY:g} s"

    def _empty(self) -> str:
        names = os.listdir(self._cache)
        for name in names:
            path = self._cache / name
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        return f"node cache deleted: {len(names)} files"

    def _damage(self) -> str:
        packs = sorted(p for p in self._cache.iterdir() if p.is_file() and p.name[0] != ".")
        if not packs:
            return "a cached pack damaged: there was none"
        pack = self._random.choice(packs)
        with contextlib.suppress(FileNotFoundError), pack.open("r+b") as handle:
            at = self._random.randrange(max(1, pack.stat().st_size))
            handle.seek(at)
            byte = handle.read(1) or b"\0"
            handle.seek(at)
            handle.write(bytes([byte[0] ^ 0x40]))
        return f"a cached pack damaged: {pack.name}"

    async def _fill_up(self) -> str:
        resize(self._cache, 1)
        try:
            await asyncio.sleep(AWAY)
        finally:
            resize(self._cache, CACHE_BYTES)
        return f"the node cache's disk was full for {AWAY:g} s"


@contextlib.contextmanager
def own_disk(cache: Path) -> Iterator[None]:
    """Give the node cache a disk of its own, in this mount namespace."""
    cache.mkdir(mode=0o700, parents=True)
    options = f"mode=0700,size={CACHE_BYTES}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "chaos", str(cache)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(cache)], check=True)


def resize(cache: Path, size: int) -> None:
    """Make that disk larger, or as small as what is on it allows."""
    used = sum(each.stat().st_size for each in cache.rglob("*") if each.is_file())
    pages = (max(size, used) + 2**20 - 1) // 2**20
    # what comes between the two lines makes the second one fail: then it is less full than full
    subprocess.run(["mount", "-o", f"remount,size={pages}m", str(cache)], check=False)


async def _appears(victims: Victims) -> bool:
    end = asyncio.get_running_loop().time() + APPEARS
    while asyncio.get_running_loop().time() < end:
        if victims():
            return True
        await asyncio.sleep(LOOKS_EVERY)
    return False
