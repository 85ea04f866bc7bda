"""Renews the lease, tells signals, learns what is desired."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from scheduler_bridge.errors import SchedulerError, Unavailable
from scheduler_bridge.model.phases import Phase
from scheduler_bridge.model.workload import Instruction, Report
from scheduler_bridge.plugin import SchedulerPlugin
from spawner.supervisor.courier import Courier
from spawner.supervisor.fencing import Fence
from spawner.supervisor.wishes import Wishes

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Rhythm:
    """Seconds. `poll`: how long the scheduler may keep an answer back; `pause`: the least time
    between two heartbeats while it answers at once; `retry`: after no answer."""

    poll: float = 3.0
    pause: float = 1.0
    retry: float = 2.0
    answer_by: float = 20.0


REFUSALS_UNTIL_LOST = 2
"""One refused heartbeat may be a move that overtook it; the next one is not."""


class Heartbeat:
    """One loop per lease. `report` gives what to send. After `expect_release` refusals are normal:
    the last move gives the lease back."""

    def __init__(
        self,
        scheduler: SchedulerPlugin,
        lease_id: str,
        credential: str,
        *,
        report: Callable[[], Report],
        wishes: Wishes,
        fence: Fence,
        courier: Courier,
        rhythm: Rhythm | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._lease_id = lease_id
        self._credential = credential
        self._report = report
        self._wishes = wishes
        self._fence = fence
        self._courier = courier
        self._rhythm = rhythm or Rhythm()
        self._refused = 0
        self._releasing = False
        self._is_unheard = False

    def expect_release(self) -> None:
        """The lease is about to be given back."""
        self._releasing = True

    async def run(self) -> None:
        """Beat until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            answered = await self._beat()
            took = loop.time() - began
            least = self._rhythm.pause if answered else self._rhythm.retry
            await asyncio.sleep(max(least - took, 0.0) + random.uniform(0.0, 0.1 * least))  # noqa: S311 (jitter)

    async def _beat(self) -> bool:
        try:
            async with asyncio.timeout(self._rhythm.answer_by):
                instruction = await self._send()
        except (Unavailable, TimeoutError) as error:
            if not self._is_unheard:
                _log.warning("no heartbeat: %s", error or "no answer in time")
            self._is_unheard = True
            return False
        except SchedulerError as error:
            self._refuse(error)
            return False
        self._take(instruction)
        return True

    async def _send(self) -> Instruction:
        report = self._report()
        # While it comes up there is news all the time, and nothing to wait for.
        poll = self._rhythm.poll if report.phase is Phase.RUNNING else 0.0
        return await self._scheduler.heartbeat(self._lease_id, self._credential, report, wait=poll)

    def _refuse(self, error: SchedulerError) -> None:
        if self._releasing:
            return
        self._refused += 1
        _log.error("the scheduler refuses the heartbeat: %s", error)
        if self._refused >= REFUSALS_UNTIL_LOST:
            self._lose(error.message)

    def _take(self, instruction: Instruction) -> None:
        if self._is_unheard:
            _log.info("the scheduler answers again")
        self._is_unheard = False
        self._courier.nudge()
        if instruction.revoked:
            if not self._releasing:
                self._lose(instruction.reason or "the scheduler revoked the lease")
            return
        self._refused = 0
        self._fence.renewed()
        self._wishes.hear(instruction.desired, instruction.reason, instruction.actor)

    def _lose(self, reason: str) -> None:
        self._fence.close()
        self._wishes.lose_lease(reason)


def handle_of(supervisor: Any, sandbox: Any, directory: str) -> dict[str, Any]:
    """`Report.handle`: what proves the sandbox gone when this supervisor cannot be asked."""
    handle: dict[str, Any] = {"directory": directory}
    for name, process in (("supervisor", supervisor), ("sandbox", sandbox)):
        if process is not None:
            handle[name] = {"pid": process.pid, "started": process.started}
    return handle
