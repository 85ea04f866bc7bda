"""One session's round, as its user lives through it: whatever fails is tried again, for a while."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from time import monotonic
from typing import Final, TypeVar

import httpx
from tornado.httpclient import HTTPError
from tornado.websocket import WebSocketClosedError, WebSocketError

from hub_config.demo.browserless import Researcher, StoryError
from scheduler_bridge.client import SchedulerClient
from scheduler_bridge.errors import SchedulerError
from scheduler_bridge.model.phases import TERMINAL, Kind, Phase
from scheduler_bridge.model.workload import Workload
from tests.chaos import content
from tests.chaos.account import Account
from tests.chaos.faults import Faults
from tests.chaos.plan import Fault, Move, Play, Step, Strike

PROFILE: Final = "gpu-1"
PATIENCE: Final = 240.0
"""Seconds within which a move has succeeded, after whatever has gone wrong."""
PRESS_EVERY: Final = 20.0
HOLDERS: Final = frozenset({Fault.SUPERVISOR, Fault.FILLER, Fault.GUARD, Fault.HOLDERS})
TRANSIENT: Final = (
    StoryError,
    SchedulerError,
    httpx.HTTPError,
    HTTPError,
    WebSocketClosedError,
    WebSocketError,
    TimeoutError,
    OSError,
)
"""What a user meets when something is away; the next attempt may not."""

SOURCE: Final = Path(content.__file__).read_text()

Value = TypeVar("Value")


class Lost(Exception):
    """A session is not what it has to be."""


class Player:
    """Plays one `Play`. Says what it does on standard output."""

    def __init__(
        self, user: Researcher, scheduler: SchedulerClient, faults: Faults, run_folder: Path
    ) -> None:
        self._user, self._scheduler = user, scheduler
        self._faults, self._run_folder = faults, run_folder
        self._kernel = ""
        self._id = ""
        self._account = Account(content.Memory("", 0))
        self._strikes: set[asyncio.Task[None]] = set()
        self._begun = monotonic()

    async def play(self, play: Play, name: str) -> None:
        """All of it. Raises `Lost`."""
        self._begun = monotonic()
        await self._open(play, name)
        try:
            for step in play.steps:
                if step.move is Move.SUSPEND or not step.strikes:
                    await self._settle_strikes()
                await self._step(step)
        finally:
            await self._settle_strikes()
        await self._check()

    async def end(self) -> None:
        """End the session, from whatever state it is in."""
        await self._until(self._is_ended, "it ends", every=0.5)

    def say(self, text: str) -> None:
        print(f"  {monotonic() - self._begun:6.1f} s {self._user.name}: {text}", flush=True)

    async def _open(self, play: Play, name: str) -> None:
        memory = f"{name}/{play.user}"
        self._account = Account(content.Memory(memory, play.size))
        await self._user.open({"profile": PROFILE}, timeout=180)
        self._kernel = await self._user.new_kernel()
        self._id = (await self._workload()).id
        cell = f"{SOURCE}\nmemory = Memory({memory!r}, {play.size})"
        async with self._user.kernel(self._kernel) as kernel:
            await kernel.run(cell, timeout=120)

    async def _step(self, step: Step) -> None:
        moves = {Move.COMPUTE: self._compute, Move.SUSPEND: self._suspend, Move.RESUME: self._check}
        for strike in step.strikes:
            task = asyncio.create_task(self._strike(strike))
            self._strikes.add(task)
            if strike.fault in HOLDERS:
                self._account.may_go_back = True
        await moves[step.move]()
        self.say(f"{step.move}: done")

    async def _strike(self, strike: Strike) -> None:
        self.say(await self._faults.strike(strike, self._run_folder / self._id))

    async def _settle_strikes(self) -> None:
        await asyncio.gather(*self._strikes)
        self._strikes.clear()

    async def _compute(self) -> None:
        to = self._account.ask_next()
        await self._ask(f"memory.advance({to})")

    async def _check(self) -> None:
        await self._ask("pass")

    async def _ask(self, code: str) -> None:
        """Run a cell, in a session that is resumed where that is needed; judge its memory."""

        async def answered() -> str:
            await self._reach()
            async with self._user.kernel(self._kernel) as kernel:
                return await kernel.run(f"{code}\nprint(memory.said())", timeout=60)

        said = await self._until(answered, f"the kernel answers to {code}")
        if wrong := self._account.judge(said.splitlines()[-1]):
            raise Lost(f"{self._user.name}'s memory: {wrong}")

    async def _reach(self) -> None:
        workload = await self._workload()
        if workload.phase in (Phase.SUSPENDED, Phase.QUEUED):
            self.say(f"resume ({workload.phase}; {workload.last_error or 'no error'})")
            await self._user.act("resume")
        await self._user.until_ready(timeout=60)

    async def _suspend(self) -> None:
        await self._check()  # what is stored is known exactly
        pressed = 0.0

        async def suspended() -> bool:
            nonlocal pressed
            workload = await self._workload()
            if workload.phase is Phase.SUSPENDED:
                return True
            if workload.phase is Phase.RUNNING and monotonic() - pressed > PRESS_EVERY:
                pressed = monotonic()
                self.say(f"suspend ({workload.last_error or 'no error'})")
                await self._user.act("suspend")
            return False

        await self._until(suspended, "it is suspended", every=0.2)
        self._account.commit()

    async def _is_ended(self) -> bool:
        found = await self._scheduler.list(kind=Kind.SESSION, user=self._user.name)
        if not found:
            return True
        await self._user.act("discard" if found[0].phase is Phase.SUSPENDED else "stop")
        return False

    async def _workload(self) -> Workload:
        found = await self._scheduler.list(kind=Kind.SESSION, user=self._user.name)
        if found:
            return found[0]
        if self._id and (ended := await self._scheduler.get(self._id)).phase in TERMINAL:
            raise Lost(f"{self._user.name}'s session is {ended.phase}: {ended.last_error}")
        raise StoryError("the scheduler knows no session")

    async def _until(
        self, attempt: Callable[[], Awaitable[Value]], what: str, *, every: float = 1.0
    ) -> Value:
        """Its first value that counts as true. Raises `Lost` when there is none for too long."""
        end, last = monotonic() + PATIENCE, "it was waited for"
        while monotonic() < end:
            try:
                if value := await attempt():
                    return value
            except TRANSIENT as error:
                if (text := f"{type(error).__name__}: {error}"[:200]) != last:
                    last = text
                    self.say(f"{what}: not yet: {last}")
            await asyncio.sleep(every)
        raise Lost(f"{self._user.name}, not within {PATIENCE:g} s: {what} ({last})")
