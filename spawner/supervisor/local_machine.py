"""The machine that the supervisor runs on, through the snapshot engine."""

from __future__ import annotations

import asyncio
import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from snapshot import network, proc, proctree, programs, sandbox
from snapshot.dump import DumpError, mend
from snapshot.errors import SnapshotError
from snapshot.inspection.verdict import Verdict
from snapshot.model import (
    Blocker,
    Filling,
    Process,
    SandboxSpec,
    SnapshotKey,
    Stored,
    StoreSettings,
    Thawed,
    Tools,
)
from snapshot.refusals import FillingLostError
from spawner.supervisor import gate
from spawner.supervisor.machine import (
    MemoryLostError,
    NotFreezableError,
    NotResumedError,
    NotStartedError,
    StoreSilentError,
)
from spawner.supervisor.order import SupervisorOrder

if TYPE_CHECKING:
    from snapshot.freezer import LocalFreezer
    from snapshot.repository import Repository
    from spawner.supervisor.prepared import Prepared

_log = logging.getLogger(__name__)

_UTIME = 11
"""Where user time is among the fields that `proc.stat` leaves; system time and the two of reaped
children follow."""

WATCH_SECONDS = 3600.0
RETRY_SECONDS = 5.0


class LocalHost:
    """Sandbox and network of this machine (the part of `Machine` that needs no freezer)."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._linking = asyncio.Lock()
        self._wants_link = False

    async def clear(self, spec: SandboxSpec) -> None:
        try:
            if count := await sandbox.clear(spec):
                _log.warning("%d processes ended that an earlier supervisor had left", count)
        except (sandbox.SandboxError, OSError) as error:
            raise NotStartedError(str(error), remedy="Restart this machine.") from error

    async def start(self, spec: SandboxSpec, *, held: bool) -> Process:
        try:
            if held:
                gate.make(spec)
                spec = replace(spec, argv=gate.gated(spec.argv))
            return await sandbox.start(spec, self._tools)
        except (sandbox.SandboxError, OSError) as error:
            remedy = f"Details are in {spec.directory}/supervisor.log."
            raise NotStartedError(str(error), remedy=remedy) from error

    async def release(self, process: Process, spec: SandboxSpec) -> None:
        ended = asyncio.ensure_future(self.ended(process))
        opening = asyncio.ensure_future(gate.open_gate(spec))
        try:
            await asyncio.wait({ended, opening}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended.cancel()
            opening.cancel()
            await asyncio.gather(ended, opening, return_exceptions=True)

    async def connect(self, process: Process, spec: SandboxSpec) -> int:
        async with self._linking:
            self._wants_link = True
            return await self._connect_or_say_why(process, spec)

    async def ensure_connected(self, process: Process, spec: SandboxSpec) -> int:
        async with self._linking:
            self._wants_link = True
            link = network.find(spec)
            if link is not None:
                return link.host_port
            return await self._connect_or_say_why(process, spec)

    async def reconnect(self, process: Process, spec: SandboxSpec) -> int | None:
        async with self._linking:
            if not self._wants_link or network.find(spec) is not None:
                return None
            return await self._connect_or_say_why(process, spec)

    async def _connect_or_say_why(self, process: Process, spec: SandboxSpec) -> int:
        try:
            return (await self._connect(process, spec)).host_port
        except (network.NetworkError, TimeoutError, OSError) as error:
            raise NotStartedError(
                f"The session's network could not be set up: {error or 'no answer in time'}",
                remedy=f"{spec.directory}/{network.LOG_FILE} may tell more.",
            ) from error

    async def _connect(self, process: Process, spec: SandboxSpec) -> network.Link:
        leads_in = spec.network.inner_port != 0
        if leads_in and spec.network.host_port == 0:
            return await network.connect(process, spec, self._tools, choose_port=True)
        try:
            return await network.connect(process, spec, self._tools)
        except network.PortTakenError:
            _log.warning("port %d is taken meanwhile; taking another", spec.network.host_port)
            free = replace(spec, network=replace(spec.network, host_port=0))
            return await network.connect(process, free, self._tools, choose_port=True)

    async def disconnect(self, spec: SandboxSpec) -> None:
        async with self._linking:
            self._wants_link = False
            link = network.find(spec)
            if link is not None:
                await link.close()

    async def ended(self, process: Process) -> None:
        while not await programs.wait_until_ended(process, WATCH_SECONDS):
            pass

    def is_alive(self, process: Process) -> bool:
        return sandbox.is_alive(process)

    def is_empty(self, process: Process) -> bool:
        return sandbox.is_empty(process)

    def halt(self, process: Process) -> tuple[Process, ...]:
        try:
            return sandbox.halt(process)
        except sandbox.SandboxError as error:
            _log.error("the tree was not halted completely: %s", error)
            return proc.members(process)

    def go_on(self, halted: tuple[Process, ...]) -> None:
        sandbox.go_on(halted)

    async def terminate(self, process: Process, grace_seconds: float) -> None:
        grace = grace_seconds
        while True:
            try:
                await sandbox.terminate(process, grace)
                return
            except sandbox.SandboxError as error:
                # The lease may only be given back by an empty sandbox: there is no giving up.
                _log.error("%s Trying again.", error)
                grace = 0.0
                await asyncio.sleep(RETRY_SECONDS)

    def exit_code(self, spec: SandboxSpec, process: Process) -> int | None:
        return sandbox.exit_code(spec)

    def cpu_seconds(self, process: Process) -> float | None:
        members = proc.members(process)
        return sum(map(_cpu_of, members)) if members else None


class LocalMachine(LocalHost):
    """The whole `Machine`: sandbox, network, and the freezer with its repository.

    The repository is opened when it is first needed: a store that is down must not keep a session
    from starting.
    """

    def __init__(self, order: SupervisorOrder, prepared: Prepared | None = None) -> None:
        super().__init__(order.tools)
        self._order, self._prepared = order, prepared
        self._opened: Repository | None = None

    async def _repository(self) -> Repository:
        if self._opened is None:
            self._opened = await asyncio.to_thread(_open, self._order.store)
        return self._opened

    async def _freezer(self) -> LocalFreezer:
        from snapshot.freezer import LocalFreezer

        return LocalFreezer(self._order.tools, await self._repository())

    async def _thawer(self) -> LocalFreezer:
        """For reading only: the store need not be asked whether it is ready to be written to."""
        from snapshot.filling.program import repository_of
        from snapshot.freezer import LazySource, LocalFreezer

        order, prepared = self._order, self._prepared
        ready, spare = (prepared.ready, prepared.spare) if prepared else (None, None)
        repository = await asyncio.to_thread(repository_of, order.store, ready)
        return LocalFreezer(order.tools, repository, lazy=LazySource(order.store, spare))

    async def inspect(self, process: Process) -> tuple[Blocker, ...]:
        return await asyncio.to_thread(proctree.inspect, process)

    async def examine(self, process: Process) -> Verdict:
        return await asyncio.to_thread(proctree.examine, process)

    async def freeze(self, process: Process, spec: SandboxSpec, key: SnapshotKey) -> Stored:
        steps: dict[str, float] = {}

        def note(name: str, seconds: float) -> None:
            _log.info("%s took %.3f s", name, seconds)
            steps[name] = seconds

        try:
            freezer = await self._freezer()
            stored = await freezer.freeze(
                spec,
                process,
                key,
                {**self._order.facts, "workload": self._order.workload_id},
                disconnect=lambda: self.disconnect(spec),
                on_step=note,
            )
            # The manifest knows only the steps before the commit.
            return replace(stored, timings=steps)
        except (SnapshotError, OSError) as error:
            message, remedy = _why(error)
            raise NotFreezableError(message, remedy=remedy) from error
        except Exception as error:
            # Whatever it is, the tree is still somebody's memory, and has to be looked after.
            _log.exception("the suspend failed unexpectedly")
            remedy = f"Details are in {spec.directory}/supervisor.log."
            raise NotFreezableError(f"The suspend failed: {error!r}.", remedy=remedy) from error

    async def mend(self, process: Process, spec: SandboxSpec) -> None:
        try:
            await mend(self._order.tools, spec, process)
        except (SnapshotError, DumpError, OSError, TimeoutError) as error:
            _log.error("what a broken suspend may have left was not mended: %s", error)

    async def thaw(self, manifest: str, spec: SandboxSpec) -> Thawed:
        try:
            freezer = await self._thawer()
            return await freezer.thaw(spec, manifest, on_step=_log_step)
        except (SnapshotError, OSError) as error:
            message, remedy = _why(error)
            raise NotResumedError(message, remedy=remedy) from error

    async def filling(self, manifest: str, spec: SandboxSpec) -> Filling | None:
        from snapshot.filling.escrow import Escrow
        from snapshot.filling.program import Beginning

        beginning = Beginning(self._order.store, manifest, str(spec.directory))
        try:
            return await Escrow.find(beginning)
        except FillingLostError as error:
            raise MemoryLostError(error.message, remedy=error.remedy) from error

    async def find(self, key: SnapshotKey) -> Stored | None:
        try:
            repository = await self._repository()
            stored = await asyncio.to_thread(repository.list, key.owner, key.session)
        except (SnapshotError, OSError) as error:
            message, remedy = _why(error)
            raise StoreSilentError(message, remedy=remedy) from error
        return next((each for each in stored if each.key == key), None)


def _open(settings: StoreSettings) -> Repository:
    """Imported here because the stores' libraries take a third of a second, which a start would
    wait for in vain."""
    from snapshot.repository import open_repository

    return open_repository(settings)


def _log_step(name: str, seconds: float) -> None:
    _log.info("%s took %.3f s", name, seconds)


def _why(error: Exception) -> tuple[str, str]:
    """Message and remedy of an error of the engine; of others only the message."""
    if isinstance(error, SnapshotError):
        return error.message, error.remedy
    return str(error), ""


def _cpu_of(process: Process) -> float:
    """User and system time of a process and of the children it has waited for."""
    try:
        text = Path(f"/proc/{process.pid}/stat").read_text(errors="replace")
    except OSError:
        return 0.0
    fields = text.rpartition(")")[2].split()
    ticks = sum(map(int, fields[_UTIME : _UTIME + 4]))
    return ticks / os.sysconf("SC_CLK_TCK")
