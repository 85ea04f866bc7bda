"""Collects what only the supervisor can see: CPU time of the tree, and what would block a freeze."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from scheduler_bridge.model.phases import Phase
from snapshot.errors import SnapshotError
from snapshot.inspection.verdict import Verdict
from snapshot.model import Blocker
from spawner.badge import UNKNOWN, Outlook, possible, refused
from spawner.supervisor.context import Context
from spawner.supervisor.signals import Signals, compose, describe

_log = logging.getLogger(__name__)

INSPECT_SECONDS = 60.0
"""A look costs about 0.04 s of CPU time with 2,000 descriptors, less than a thousandth of a core."""

FIRST_INSPECT_SECONDS = 5.0


class CpuMeter:
    """CPU seconds that never run backwards, although processes end and take their share along.

    `read` gives the sum over living processes, None if it cannot be told now."""

    def __init__(self, read: Callable[[], float | None]) -> None:
        self._read = read
        self._last: float | None = None
        self._total = 0.0

    def total(self) -> float | None:
        """What was used up to now; None while nothing is known."""
        current = self._read()
        if current is None:
            return None
        self._total += current if self._last is None else max(current - self._last, 0.0)
        self._last = current
        return self._total


class Sampler:
    """Gives the signals of one heartbeat."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._meter = CpuMeter(self._cpu)
        self._verdict: Verdict | None = None

    def _cpu(self) -> float | None:
        process = self._context.process
        return None if process is None else self._context.machine.cpu_seconds(process)

    def sample(self) -> Signals:
        """What is known now."""
        context = self._context
        return compose(
            context.now(),
            context.ear.heard,
            cpu_seconds=self._meter.total(),
            blockers=self._blockers(),
            verdict=self._verdict,
        )

    def outlook(self) -> Outlook:
        """Whether the session could be suspended, in words."""
        blockers, verdict = self._blockers(), self._verdict
        if blockers:
            return refused(tuple(describe(each) for each in blockers))
        if blockers is None or verdict is None:
            return UNKNOWN
        return possible(verdict.bytes, verdict.seconds, verdict.outside)

    def _blockers(self) -> tuple[Blocker, ...] | None:
        """None while unknown. What forbids every suspend here needs no look."""
        if reason := self._context.order.not_freezable_because:
            return (Blocker(0, "", reason),)
        return self._context.blockers

    async def run(self) -> None:
        """Inspect about once a minute, until cancelled."""
        pause = FIRST_INSPECT_SECONDS
        while True:
            await asyncio.sleep(pause)
            if self._context.board.status.phase == Phase.RUNNING:
                await self._inspect()
                pause = INSPECT_SECONDS

    async def _inspect(self) -> None:
        context = self._context
        if context.process is None or context.order.kind != "session":
            return
        try:
            self._verdict = await context.machine.examine(context.process)
            context.blockers = self._verdict.blockers
        except (OSError, SnapshotError) as error:
            _log.warning("could not inspect the tree: %s", error)
            self._verdict = context.blockers = None
