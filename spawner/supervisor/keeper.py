"""Owns the background tasks of one supervisor."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

_log = logging.getLogger(__name__)

RESTART_SECONDS = 1.0


class Keeper:
    """Runs coroutine functions until closed. One that fails is logged and started again: a broken
    watcher must not take the session with it."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []

    def keep(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Own a task that runs `work` again and again."""
        self._tasks.append(asyncio.get_running_loop().create_task(_guard(name, work), name=name))

    async def close(self) -> None:
        """Cancel all and wait for them."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _guard(name: str, work: Callable[[], Awaitable[None]]) -> None:
    while True:
        try:
            await work()
        except Exception:
            _log.exception("%s failed; it is started again", name)
        await asyncio.sleep(RESTART_SECONDS)
