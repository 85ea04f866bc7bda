"""The current status, kept in `status.json` and told to whoever watches."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from spawner.supervisor.status import Status, write_status


class Board:
    """Holds one `Status`. Every change is on disk before `update` returns."""

    def __init__(self, directory: Path, status: Status) -> None:
        self._directory = directory
        self._status = status
        self._changed = asyncio.Condition()
        self._version = 0
        self._notices: set[asyncio.Task[None]] = set()
        write_status(directory, status)

    @property
    def status(self) -> Status:
        """The status now."""
        return self._status

    def update(self, **changes: Any) -> Status:
        """Replace fields of the status, write it, wake the watchers."""
        self._status = dataclasses.replace(self._status, **changes)
        write_status(self._directory, self._status)
        self._version += 1
        task = asyncio.get_running_loop().create_task(self._notify())
        self._notices.add(task)
        task.add_done_callback(self._notices.discard)
        return self._status

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def watch(self) -> AsyncIterator[Status]:
        """The status now, then after each change; ends after one with an outcome."""
        seen = -1
        while True:
            async with self._changed:
                while self._version == seen:
                    await self._changed.wait()
                seen, status = self._version, self._status
            yield status
            if status.outcome is not None:
                return
