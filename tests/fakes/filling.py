"""A machine that brings a session back before its memory."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from snapshot.model import Filling, Progress, SandboxSpec, Thawed
from tests.fakes.machine import WorkingMachine


class MemoryThatStopsComing:
    """`progress` stays as it was set, until somebody calls `complete`."""

    def __init__(self) -> None:
        self.progress = Progress()
        self._all_there = asyncio.Event()

    def complete(self) -> None:
        """Everything is in place."""
        self._all_there.set()

    def keep(self) -> None:
        pass

    async def until_filled(self) -> None:
        await self._all_there.wait()

    def close(self) -> None:
        pass


class MachineWithSlowMemory(WorkingMachine):
    """What it brings back runs at once and lacks `memory`."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = MemoryThatStopsComing()

    async def thaw(self, manifest: str, spec: SandboxSpec) -> Thawed:
        filling: Filling = self.memory
        return replace(await super().thaw(manifest, spec), filling=filling)
