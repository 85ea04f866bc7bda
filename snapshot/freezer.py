"""The contract `Freezer`: put a tree to sleep in a store, and bring it back.

`LocalFreezer` works on this machine, in the caller's process, which must be root and a child
subreaper (restored trees become its children).
"""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from snapshot import proctree
from snapshot.checkpoint import Checkpoint, Steps
from snapshot.dump import mend
from snapshot.filling import marker
from snapshot.model import Blocker, Process, SandboxSpec, SnapshotKey, Stored, Thawed, Tools
from snapshot.ports import Disconnect, OnStep, Repository
from snapshot.refusals import (
    CannotFreezeError,
    CannotThawError,
    FreezeFailedError,
    SnapshotRefusedError,
)
from snapshot.restore import LazySource, Restore

__all__ = [
    "CannotFreezeError",
    "CannotThawError",
    "FreezeFailedError",
    "Freezer",
    "LazySource",
    "LocalFreezer",
    "SnapshotRefusedError",
]


class Freezer(Protocol):
    """Freezes and thaws the trees of sandboxes."""

    async def inspect(self, process: Process) -> tuple[Blocker, ...]:
        """What keeps the tree from being frozen, as far as can be seen from outside. Looks only."""
        ...

    async def freeze(
        self,
        spec: SandboxSpec,
        process: Process,
        key: SnapshotKey,
        facts: dict[str, Any],
        *,
        disconnect: Disconnect,
        on_step: OnStep,
    ) -> Stored:
        """Store the tree and end it. When this returns, the snapshot exists and the tree is gone.

        `disconnect` is awaited once, after the inspection. Raises `CannotFreezeError`: nothing was
        touched; `FreezeFailedError`: the tree goes on as it was, and the caller connects it again.
        Cancelling undoes it the same way, unless the commit is done.
        """
        ...

    async def thaw(self, spec: SandboxSpec, manifest_key: str, *, on_step: OnStep) -> Thawed:
        """Bring a stored tree back; the caller connects its network. The snapshot stays.

        Raises `SnapshotRefusedError` (not authentic), `CannotThawError` (nothing is left running).
        """
        ...

    async def mend(self, spec: SandboxSpec, process: Process) -> None:
        """Put right what a freeze left behind whose caller died in the middle. May be called on
        any living tree before it is connected."""
        ...


class LocalFreezer:
    """The Freezer of this machine, with CRIU. `gpu_libraries` is a folder in which NVIDIA's
    libraries are looked for first. With `lazy`, memory comes after the tree runs again."""

    def __init__(
        self,
        tools: Tools,
        repository: Repository,
        *,
        gpu_libraries: str = "",
        lazy: LazySource | None = None,
    ) -> None:
        self._tools = tools
        self._repository = repository
        self._lazy = lazy
        self._gpu_libraries = gpu_libraries

    async def inspect(self, process: Process) -> tuple[Blocker, ...]:
        return await asyncio.to_thread(proctree.inspect, process)

    async def freeze(
        self,
        spec: SandboxSpec,
        process: Process,
        key: SnapshotKey,
        facts: dict[str, Any],
        *,
        disconnect: Disconnect,
        on_step: OnStep,
    ) -> Stored:
        if marker.is_set(spec.directory):
            # CRIU would dump what is there, say that all is well, and lose the rest.
            raise FreezeFailedError("The session's memory is still arriving.", remedy="Try later.")
        steps = Steps(on_step)
        checkpoint = Checkpoint(
            self._tools, self._repository, spec, process, key, steps, self._gpu_libraries
        )
        return await checkpoint.run(facts, disconnect)

    async def thaw(self, spec: SandboxSpec, manifest_key: str, *, on_step: OnStep) -> Thawed:
        restore = Restore(
            self._tools,
            self._repository,
            spec,
            Steps(on_step),
            gpu_libraries=self._gpu_libraries,
            lazy=self._lazy,
        )
        return await restore.run(manifest_key)

    async def mend(self, spec: SandboxSpec, process: Process) -> None:
        await mend(self._tools, spec, process, gpu_libraries=self._gpu_libraries)
