"""Wakes those who wait for something to change. Knows nothing of workloads."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable


class Bells:
    """Named bells. A ring wakes all that wait at that moment; nothing is remembered."""

    def __init__(self) -> None:
        self._waiting: dict[Hashable, set[asyncio.Future[None]]] = {}
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether `close` was called: nobody should wait any more."""
        return self._closed

    async def wait(self, name: Hashable, seconds: float) -> bool:
        """Whether the bell rang within that time. Returns at once when closed."""
        if self._closed or seconds <= 0:
            return False
        future = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(name, set()).add(future)
        try:
            async with asyncio.timeout(seconds):
                await future
        except TimeoutError:
            return False
        finally:
            waiting = self._waiting.get(name, set())
            waiting.discard(future)
            if not waiting:
                self._waiting.pop(name, None)
        return not self._closed

    def ring(self, name: Hashable) -> None:
        """Wake all that wait for it now."""
        for future in self._waiting.get(name, set()):
            if not future.done():
                future.set_result(None)

    def close(self) -> None:
        """Wake everybody, for good."""
        self._closed = True
        for name in list(self._waiting):
            self.ring(name)
