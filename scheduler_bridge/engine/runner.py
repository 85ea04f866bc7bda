"""Owns the scheduler's tasks: plans when woken or due, looks after leases, calls the Hub."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from typing import Final

from scheduler_bridge.engine.hub_gateway import HubGateway
from scheduler_bridge.engine.scheduler import Scheduler
from scheduler_bridge.engine.steward import Steward

_log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 2.0
"""How often processes are looked at when nothing else happens."""

BURST_SECONDS: Final = 0.01
"""Changes that come together cost one planning pass."""


class Runner:
    """Start it inside the event loop that serves; `stop` ends every task. A step that fails is
    logged and done again at its next time: one bad workload must not end the others' service.
    `observe` is told how long each planning pass took, in seconds; `refresh` renews what is known of
    the machine, every `refresh_seconds`."""

    def __init__(
        self,
        scheduler: Scheduler,
        *,
        steward: Steward | None = None,
        gateway: HubGateway | None = None,
        observe: Callable[[float], object] = lambda _seconds: None,
        refresh: Callable[[], Awaitable[None]] | None = None,
        refresh_seconds: float = 300.0,
    ) -> None:
        self._scheduler = scheduler
        self._steward = steward
        self._gateway = gateway
        self._observe = observe
        self._refresh, self._refresh_seconds = refresh, refresh_seconds
        self._plan_now = asyncio.Event()
        self._look_now = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self.failing = ""

    def start(self) -> None:
        """Take over from the scheduler's planning at once."""
        self._scheduler.wake = self._plan_now.set
        self._scheduler.books.changed.append(lambda _events: self._look_now.set())
        self._plan_now.set()
        self._look_now.set()
        self._tasks.append(asyncio.create_task(self._plan(), name="plan"))
        if self._steward is not None:
            self._tasks.append(asyncio.create_task(self._look(self._steward), name="steward"))
        if self._gateway is not None:
            self._tasks.append(asyncio.create_task(self._call_hub(self._gateway), name="hub"))
        if self._refresh is not None:
            again = asyncio.create_task(self._keep_fresh(self._refresh), name="facts")
            self._tasks.append(again)

    async def stop(self) -> None:
        """End every task. What they had not done is seen again at the next start."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    def dead_task(self) -> str:
        """The name of a task that has ended although it must not, or nothing."""
        return next((task.get_name() for task in self._tasks if task.done()), "")

    async def _plan(self) -> None:
        while True:
            await _until(self._plan_now, self._seconds_to(self._scheduler.next_due()))
            await asyncio.sleep(BURST_SECONDS)
            self._plan_now.clear()
            await self._guard(self._tick)

    async def _tick(self) -> None:
        began = time.perf_counter()
        self._scheduler.tick()
        self._observe(time.perf_counter() - began)
        if self._scheduler.unfinished:
            self._plan_now.set()

    async def _look(self, steward: Steward) -> None:
        while True:
            await _until(self._look_now, LOOK_SECONDS * random.uniform(0.8, 1.2))  # noqa: S311 (jitter)
            self._look_now.clear()
            await self._guard(steward.step)

    async def _call_hub(self, gateway: HubGateway) -> None:
        while True:
            due = self._seconds_to(gateway.next_due())
            await asyncio.sleep(min(max(due, 0.5), LOOK_SECONDS))
            await self._guard(gateway.step)

    async def _keep_fresh(self, refresh: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(self._refresh_seconds)
            await self._guard(refresh)

    def _seconds_to(self, due: float | None) -> float:
        if due is None:
            return 60.0
        return min(max(due - self._scheduler.books.clock.now(), 0.05), 60.0)

    async def _guard(self, step: Callable[[], Awaitable[None]]) -> None:
        try:
            await step()
        except Exception as error:
            self.failing = f"{type(error).__name__}: {error}"
            _log.exception("a step failed; it is done again later")
            await asyncio.sleep(1.0)
        else:
            self.failing = ""


async def _until(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
