"""Taking the GPU state of a tree into host memory: of every program or of none.

look -> lock all -> checkpoint all -> (dump, store, commit) -> keep. Leaving before `keep` restores
and unlocks all in reverse, from whichever state each has reached.
"""

from __future__ import annotations

import asyncio
import logging
from types import TracebackType
from typing import Self

from snapshot import proc
from snapshot.gpu import devices, model, putting_back
from snapshot.gpu.driver import MOVE_SECONDS, Driver, GpuError
from snapshot.gpu.host_memory import available_bytes
from snapshot.gpu.model import GpuRecord, Survey
from snapshot.model import Blocker, Process, SandboxSpec

_log = logging.getLogger(__name__)

_HOLDS = "it holds {} open without computing on the GPU"
_END_IT = (
    "End it. A child that was only forked keeps its parent's GPU open: let it be started anew "
    "(multiprocessing: spawn)."
)


class Taking:
    """One freeze. Use as `async with`; does nothing at all for a sandbox without a real GPU."""

    def __init__(
        self,
        spec: SandboxSpec,
        process: Process,
        libraries: str = "",
        *,
        move_seconds: float = MOVE_SECONDS,
    ) -> None:
        self._spec = spec
        self._process = process
        self._minors = devices.gpus_of(spec)
        self._driver = Driver(libraries, move_seconds=move_seconds)
        self._programs: tuple[Process, ...] = ()
        self._touched: list[Process] = []
        self.record: GpuRecord | None = None

    @property
    def in_charge(self) -> bool:
        """True if the sandbox has real GPUs, so that their devices are looked after here."""
        return bool(self._minors)

    async def look(self) -> tuple[Blocker, ...]:
        """Find the programs with GPU state; what keeps it from being taken. Touches nothing, and
        asks the driver only if somebody holds one of its devices."""
        if not self._minors or not await asyncio.to_thread(self._somebody_holds):
            return ()
        try:
            survey = await self._driver.survey(self._minors)
            blockers = await self._sort(survey)
        except GpuError as error:
            return (Blocker(self._process.pid, "GPU", error.message.rstrip("."), error.remedy),)
        return blockers or self._judge(survey)

    def _somebody_holds(self) -> bool:
        return any(devices.held_by(member.pid) for member in proc.members(self._process))

    async def _sort(self, survey: Survey) -> tuple[Blocker, ...]:
        """Tell programs with CUDA from those that only have a device open."""
        using = {use.pid for use in survey.uses}
        programs, blockers = [], []
        for member in await asyncio.to_thread(proc.members, self._process):
            held = devices.held_by(member.pid)
            if not held and member.pid not in using:
                continue
            if await self._driver.has_cuda(member.pid):
                programs.append(member)
            elif held:
                what = _HOLDS.format(", ".join(held))
                name = putting_back.short_name(member)
                blockers.append(Blocker(member.pid, name, what, _END_IT))
        self._programs = tuple(programs)
        return tuple(blockers)

    def _judge(self, survey: Survey) -> tuple[Blocker, ...]:
        """Is there room, and can this driver do it? Sets the record."""
        if not self._programs:
            return ()
        found = model.record(survey, [(p.pid, devices.inner_pid(p.pid)) for p in self._programs])
        needed = sum(gpu.used_bytes for gpu in found.gpus)
        refusal = model.split_refusal(survey) or model.host_memory_refusal(
            needed, available_bytes(self._process.pid)
        )
        if refusal:
            return (Blocker(self._process.pid, "GPU", refusal.message, refusal.remedy),)
        self.record = found
        return ()

    async def take(self) -> None:
        """Move the GPU state of every program to host memory. Raises `GpuError`; what was taken
        until then is put back when the context is left."""
        if not self._programs:
            return
        putting_back.write_note(self._spec)
        for program in self._programs:
            self._touched.append(program)
            await self._driver.lock(program.pid)
        for program in self._programs:
            await self._driver.checkpoint(program.pid)
        for member in await asyncio.to_thread(proc.members, self._process):
            if held := devices.held_by(member.pid):
                raise GpuError(
                    f"{putting_back.short_name(member)} still holds {', '.join(held)} after the driver "
                    "took its GPU memory.",
                    remedy=_END_IT,
                )

    def keep(self) -> None:
        """The snapshot counts: nothing is to be put back."""
        self._touched.clear()
        putting_back.drop_note(self._spec)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if self._touched:
                await self._undo(error)
        finally:
            await self._driver.__aexit__(kind, error, trace)

    async def _undo(self, reason: BaseException | None) -> None:
        """Put everything back, however often the caller is cancelled meanwhile."""
        undoing = asyncio.ensure_future(putting_back.put_back(self._driver, self._touched))
        cancelled = False
        while not undoing.done():
            try:
                await asyncio.shield(undoing)
            except asyncio.CancelledError:
                cancelled = True
        lost = undoing.result()
        if lost:
            _log.error("GPU state is lost after the undo of a freeze: %s", " ".join(lost))
        else:
            putting_back.drop_note(self._spec)
        if cancelled:
            raise asyncio.CancelledError
        if lost and isinstance(reason, Exception):
            raise GpuError(
                f"{reason} GPU state could not be put back: {' '.join(lost)}",
                remedy="Restart these programs (in a notebook: restart the kernel).",
            ) from reason
