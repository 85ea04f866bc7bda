"""What a job has written, piece by piece from the scheduler: the same for its owner and for root."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import BinaryIO, Final

import typer

from hub_config.commands.names import display_name
from scheduler_bridge.model.phases import TERMINAL, Phase
from scheduler_bridge.model.workload import Output, Workload
from scheduler_bridge.plugin import SchedulerPlugin

FOLLOW_SECONDS: Final = 0.2


async def show_logs(scheduler: SchedulerPlugin, workload: Workload, *, follow: bool) -> None:
    """Print the output so far; with `follow`, go on until the job has ended."""
    tail = Tail(scheduler, workload.id)
    printed = await tail.copy_new(sys.stdout.buffer)
    while follow and workload.phase not in TERMINAL:
        workload = await scheduler.wait(
            workload.id, version=workload.version, timeout=FOLLOW_SECONDS
        )
        printed = await tail.copy_new(sys.stdout.buffer) or printed
    if not printed:
        typer.echo(_nothing_yet(workload), err=True)


def _nothing_yet(workload: Workload) -> str:
    name = display_name(workload)
    if workload.phase is Phase.QUEUED:
        return f"{name} has not started: {workload.wait_reason or 'it is in the queue.'}"
    return f"{name} has written nothing; it is {workload.phase}."


@dataclass(slots=True)
class Tail:
    """Output that grows, and begins anew when a job is started again."""

    scheduler: SchedulerPlugin
    workload_id: str
    _seen: Output = field(default_factory=Output)

    async def copy_new(self, target: BinaryIO) -> bool:
        """Write what was added since the last call. Whether there was anything."""
        copied = False
        while True:
            self._seen = await self.scheduler.output(
                self.workload_id, position=self._seen.position, serial=self._seen.serial
            )
            if not self._seen.data:
                break
            target.write(self._seen.data)
            copied = True
        target.flush()
        return copied
