"""Machines whose sandboxes are values, and which fail in one way each.

The session's server is a real little HTTP server, so that readiness is asked for real.
"""

from __future__ import annotations

import asyncio
import itertools
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from snapshot.inspection.verdict import Verdict
from snapshot.model import (
    Blocker,
    Filling,
    Process,
    Progress,
    SandboxSpec,
    SnapshotKey,
    Stored,
    Thawed,
)
from snapshot.refusals import FillingLostError
from spawner.supervisor.machine import (
    MemoryLostError,
    NotFreezableError,
    NotResumedError,
    NotStartedError,
    StoreSilentError,
)
from spawner.supervisor.status import read_status


@dataclass
class Tree:
    """One sandbox of a fake machine. `log` keeps what was done to it, in order."""

    process: Process
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    halted: bool = False
    exit_code: int | None = None
    log: list[str] = field(default_factory=list)


class WorkingMachine:
    """Everything works. `trees` by PID; `snapshots` by manifest."""

    def __init__(self) -> None:
        self.trees: dict[int, Tree] = {}
        self.snapshots: dict[str, Stored] = {}
        self.connected: set[str] = set()
        self.port = 0
        self.ignores_sigterm = False
        self.mended = False
        self.cleared = 0
        self._pids = itertools.count(4_100_000)
        self._server: asyncio.Server | None = None

    def only_tree(self) -> Tree:
        """The tree that runs, or ran last."""
        return list(self.trees.values())[-1]

    async def clear(self, spec: SandboxSpec) -> None:
        self.cleared += 1

    async def start(self, spec: SandboxSpec, *, held: bool) -> Process:
        tree = self._new_tree()
        tree.log.append("held" if held else "begun")
        return tree.process

    async def release(self, process: Process, spec: SandboxSpec) -> None:
        if "held" in self.trees[process.pid].log:
            self.trees[process.pid].log.append("begun")

    def _new_tree(self) -> Tree:
        pid = next(self._pids)
        self.trees[pid] = Tree(Process(pid, 1))
        return self.trees[pid]

    async def connect(self, process: Process, spec: SandboxSpec) -> int:
        self.trees[process.pid].log.append("connected")
        self.connected.add(str(spec.directory))
        if not spec.network.inner_port:
            return 0
        if self._server is None:
            self._server = await asyncio.start_server(_answer, "127.0.0.1", 0)
            self.port = self._server.sockets[0].getsockname()[1]
        return self.port

    async def ensure_connected(self, process: Process, spec: SandboxSpec) -> int:
        if str(spec.directory) in self.connected:
            return self.port
        return await self.connect(process, spec)

    async def reconnect(self, process: Process, spec: SandboxSpec) -> int | None:
        return None

    async def disconnect(self, spec: SandboxSpec) -> None:
        self.connected.discard(str(spec.directory))
        await self.close()

    async def close(self) -> None:
        """Stop listening, whatever became of the tree."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def ended(self, process: Process) -> None:
        await self.trees[process.pid].gone.wait()

    def is_alive(self, process: Process) -> bool:
        return process.pid in self.trees and not self.trees[process.pid].gone.is_set()

    def is_empty(self, process: Process) -> bool:
        return not self.is_alive(process)

    def halt(self, process: Process) -> tuple[Process, ...]:
        self.trees[process.pid].halted = True
        return (process,)

    def go_on(self, halted: tuple[Process, ...]) -> None:
        for process in halted:
            self.trees[process.pid].halted = False

    async def terminate(self, process: Process, grace_seconds: float) -> None:
        tree = self.trees[process.pid]
        tree.log.append(f"terminated with {grace_seconds:g} s")
        if tree.exit_code is None:
            tree.exit_code = 137 if self.ignores_sigterm or not grace_seconds else 143
        tree.gone.set()

    def exit(self, code: int) -> None:
        """The program ends by itself."""
        tree = self.only_tree()
        tree.exit_code = code
        tree.gone.set()

    def exit_code(self, spec: SandboxSpec, process: Process) -> int | None:
        tree = self.trees.get(process.pid)
        return tree.exit_code if tree else None

    def cpu_seconds(self, process: Process) -> float | None:
        return 1.5 if self.is_alive(process) else None

    async def inspect(self, process: Process) -> tuple[Blocker, ...]:
        return ()

    async def examine(self, process: Process) -> Verdict:
        return Verdict(await self.inspect(process), bytes=5_000_000, seconds=1.8, outside=2)

    async def freeze(self, process: Process, spec: SandboxSpec, key: SnapshotKey) -> Stored:
        await self.disconnect(spec)
        tree = self.trees[process.pid]
        assert not tree.halted, "a halted tree would stay halted after its resume"
        stored = self.store(key)
        tree.gone.set()
        return stored

    def store(self, key: SnapshotKey) -> Stored:
        """Commit a snapshot."""
        manifest = f"manifests/{key.owner}/{key.session}/{key.epoch:010}-{key.sequence:010}"
        stored = Stored(manifest, key, 1000, 100, 1.0, timings={"dump": 0.1})
        self.snapshots[manifest] = stored
        return stored

    async def mend(self, process: Process, spec: SandboxSpec) -> None:
        self.mended = True

    async def thaw(self, manifest: str, spec: SandboxSpec) -> Thawed:
        if manifest not in self.snapshots:
            raise NotResumedError(f"There is no snapshot {manifest}.")
        return Thawed(self._new_tree().process, notes=("history.sqlite grew",))

    async def filling(self, manifest: str, spec: SandboxSpec) -> Filling | None:
        return None

    async def find(self, key: SnapshotKey) -> Stored | None:
        return next((s for s in self.snapshots.values() if s.key == key), None)


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with closing(writer), suppress(asyncio.IncompleteReadError, ConnectionError):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
        await writer.drain()


class MachineWithoutNamespaces(WorkingMachine):
    """No sandbox starts."""

    async def start(self, spec: SandboxSpec, *, held: bool) -> Process:
        raise NotStartedError("The namespaces could not be made.", remedy="Run as root.")


class MachineWithDeafServer(WorkingMachine):
    """The session's server listens nowhere."""

    async def ensure_connected(self, process: Process, spec: SandboxSpec) -> int:
        return 9

    async def connect(self, process: Process, spec: SandboxSpec) -> int:
        return 9

    async def disconnect(self, spec: SandboxSpec) -> None:
        return


class MachineWithOpenGpuHandle(WorkingMachine):
    """Something in the tree cannot be frozen."""

    async def inspect(self, process: Process) -> tuple[Blocker, ...]:
        return (Blocker(7, "trainer", "uses an InfiniBand queue.", "Stop it."),)


class MachineWhoseStoreIsDown(WorkingMachine):
    """A freeze is undone, until `store_is_up`."""

    store_is_up = False
    attempts = 0

    async def freeze(self, process: Process, spec: SandboxSpec, key: SnapshotKey) -> Stored:
        self.attempts += 1
        if self.store_is_up:
            return await super().freeze(process, spec, key)
        await self.disconnect(spec)
        raise NotFreezableError("The store does not answer.", remedy="Start it.")


class MachineThatLosesItsSupervisorAfterTheCommit(WorkingMachine):
    """The commit happens and the freeze never returns."""

    def __init__(self) -> None:
        super().__init__()
        self.committed = asyncio.Event()

    async def freeze(self, process: Process, spec: SandboxSpec, key: SnapshotKey) -> Stored:
        await super().freeze(process, spec, key)
        self.committed.set()
        await asyncio.Event().wait()
        raise AssertionError


class MachineWhoseStoreComesBackLater(MachineThatLosesItsSupervisorAfterTheCommit):
    """The commit happened, and then the store is silent for some questions."""

    silent_answers = 1

    async def find(self, key: SnapshotKey) -> Stored | None:
        if self.silent_answers:
            self.silent_answers -= 1
            raise StoreSilentError("The store does not answer.")
        return await super().find(key)


class MachineThatCrashesAfterTheCommit(WorkingMachine):
    """The freeze commits, ends the tree, and then reports a failure."""

    async def freeze(self, process: Process, spec: SandboxSpec, key: SnapshotKey) -> Stored:
        await super().freeze(process, spec, key)
        raise NotFreezableError("The suspend failed: a bug.")


class ArrivingMemory:
    """A filling that goes on until the test says how it ends. `kept_as` is the tree that the status
    in `directory` named when it was kept."""

    def __init__(self, directory: Path) -> None:
        self.progress = Progress(1000, 4000)
        self.is_closed = False
        self.kept_as: Process | None = None
        self._directory = directory
        self._outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def arrives(self) -> None:
        self._outcome.set_result(None)

    def keep(self) -> None:
        status = read_status(self._directory)
        self.kept_as = status.sandbox if status is not None else None

    def is_lost(self) -> None:
        self._outcome.set_exception(FillingLostError("The filler ended at the wrong moment."))

    async def until_filled(self) -> None:
        await asyncio.shield(self._outcome)

    def close(self) -> None:
        self.is_closed = True


class MachineWhoseMemoryArrivesLater(WorkingMachine):
    """Trees come back before their memory does; `fillings` are those of its resumes and adoptions."""

    def __init__(self) -> None:
        super().__init__()
        self.fillings: list[ArrivingMemory] = []
        self.thawed_from: list[str] = []

    async def thaw(self, manifest: str, spec: SandboxSpec) -> Thawed:
        self.thawed_from.append(manifest)
        thawed = await super().thaw(manifest, spec)
        self.fillings.append(ArrivingMemory(spec.directory))
        return replace(thawed, filling=self.fillings[-1])

    async def freeze(self, process: Process, spec: SandboxSpec, key: SnapshotKey) -> Stored:
        assert all(filling.is_closed for filling in self.fillings), "its memory is incomplete"
        return await super().freeze(process, spec, key)

    async def filling(self, manifest: str, spec: SandboxSpec) -> Filling | None:
        if not self.fillings or self.fillings[-1].is_closed:
            return None
        self.fillings.append(ArrivingMemory(spec.directory))
        return self.fillings[-1]


class MachineThatLosesTheMemoryWithItsSupervisor(MachineWhoseMemoryArrivesLater):
    """A successor finds nobody who could go on filling, once."""

    loses = 1

    async def filling(self, manifest: str, spec: SandboxSpec) -> Filling | None:
        if self.fillings and self.loses:
            self.loses -= 1
            raise MemoryLostError("The programs that brought the session's memory are gone.")
        return await super().filling(manifest, spec)


class MachineWithATreeThatNobodyKnows(WorkingMachine):
    """An earlier supervisor was killed before it could say what it had made, each time."""

    def __init__(self) -> None:
        super().__init__()
        self._seen = 0

    async def start(self, spec: SandboxSpec, *, held: bool) -> Process:
        self._look()
        return await super().start(spec, held=held)

    async def thaw(self, manifest: str, spec: SandboxSpec) -> Thawed:
        self._look()
        return await super().thaw(manifest, spec)

    def _look(self) -> None:
        if self.cleared == self._seen:
            raise NotStartedError("The session has processes on this machine already.")
        self._seen = self.cleared
