"""Giving a restored tree its GPU state back.

`look` and `check` before CRIU is started: the right GPUs and driver, enough free memory on each.
`bring_back` after it, before the network is connected; if that fails, the tree has to be ended, and
the snapshot is as it was.
"""

from __future__ import annotations

from snapshot import proc
from snapshot.gpu import devices, model, putting_back
from snapshot.gpu.driver import MOVE_SECONDS, Driver, GpuError
from snapshot.gpu.model import GpuRecord, Survey
from snapshot.model import Process, SandboxSpec


class BringingBack:
    """One thaw. `record` None: no program had GPU state, and nothing happens at all."""

    def __init__(
        self,
        record: GpuRecord | None,
        spec: SandboxSpec,
        libraries: str = "",
        *,
        move_seconds: float = MOVE_SECONDS,
    ) -> None:
        self._record = record
        self._spec = spec
        self._libraries = libraries
        self._move_seconds = move_seconds
        self._pairs: tuple[tuple[str, str], ...] = ()
        self._here: Survey | None = None

    async def look(self) -> dict[str, str]:
        """Ask the driver about the lease's GPUs; the facts of `model.constraints` that machines are
        compared by. Raises `GpuError` if it does not answer."""
        if self._record is None:
            return {}
        minors = devices.gpus_of(self._spec)
        if not minors:
            message = f"The session computed on {len(self._record.gpus)} GPU(s), and now has none."
            raise GpuError(message, remedy="Resume it with as many GPUs as before.")
        async with Driver(self._libraries) as driver:
            self._here = await driver.survey(minors)
        return model.facts(self._here)

    def check(self) -> None:
        """Raises `GpuError` if the GPUs seen cannot take the state back now; nothing was touched."""
        if self._record is None or self._here is None:
            putting_back.drop_note(self._spec)
            return
        if refusal := model.why_not_here(self._record, self._here):
            raise GpuError(refusal.message, remedy=refusal.remedy)
        self._pairs = model.pairs(self._record, self._here)
        putting_back.write_note(self._spec, self._pairs)

    async def bring_back(self, process: Process) -> None:
        """Restore and unlock every program that had GPU state. Raises `GpuError`: end the tree."""
        if self._record is None:
            return
        members = {devices.inner_pid(member.pid): member for member in proc.members(process)}
        missing = [pid for pid in self._record.pids if pid not in members]
        if missing:
            raise GpuError("Programs with GPU state are missing in the restored session.")
        programs = [members[pid] for pid in self._record.pids]
        async with Driver(self._libraries, move_seconds=self._move_seconds) as driver:
            lost = await putting_back.put_back(driver, programs, self._pairs)
        if lost:
            raise GpuError(f"GPU state did not come back: {' '.join(lost)}")
        putting_back.drop_note(self._spec)
