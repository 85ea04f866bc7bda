"""Schedulers that fail in one way each."""

from __future__ import annotations

from typing import Any

from scheduler_bridge.errors import Unavailable
from scheduler_bridge.inprocess import InProcessScheduler
from scheduler_bridge.model.workload import Instruction, Report, Workload


class SchedulerThatGoesAway(InProcessScheduler):
    """Answers no supervisor while `is_away`. `moves` lists the targets that were accepted."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.is_away = False
        self.moves: list[str] = []

    async def heartbeat(
        self, lease_id: str, credential: str, report: Report, *, wait: float = 0.0
    ) -> Instruction:
        if self.is_away:
            raise Unavailable("nobody answers")
        return await super().heartbeat(lease_id, credential, report, wait=wait)

    async def move(self, *arguments: Any, **options: Any) -> Workload:
        if self.is_away:
            raise Unavailable("nobody answers")
        workload = await super().move(*arguments, **options)
        self.moves.append(arguments[2].value)
        return workload
