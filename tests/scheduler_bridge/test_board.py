"""Columns that are kept from pass to pass say what new ones would, whatever has happened between."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_bridge.agent.inventory import virtual_gpus
from scheduler_bridge.engine import cycle
from scheduler_bridge.engine.board import Board
from scheduler_bridge.engine.digest import digest
from scheduler_bridge.engine.settings import ManualClock
from scheduler_bridge.errors import SchedulerError
from scheduler_bridge.inprocess import InProcessScheduler
from scheduler_bridge.model.phases import Desired, Kind, Phase
from scheduler_bridge.model.workload import Grant, Idleness, Node, Priority
from scheduler_bridge.policy.values import FleetState
from tests.builders.scheduler import job, session, snapshot

STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "session",
                "job",
                "paid",
                "take",
                "run",
                "idle",
                "busy",
                "yield",
                "end",
                "wait",
                "stop",
            ]
        ),
        st.integers(0, 9),
    ),
    max_size=25,
)


def machines() -> tuple[Node, ...]:
    return tuple(
        Node(name, virtual_gpus(2, Path("/dev"), node=name, mark=name)) for name in ("a", "b")
    )


CAPACITY = {"no_free_gpus", "scattered", "reserved", "promised"}
"""Which of these it is called depends on who was looked at before it in the same pass."""


class Play:
    """Does things to a scheduler; what is not possible just now does not happen."""

    def __init__(self) -> None:
        self.plugin = InProcessScheduler(nodes=machines(), clock=ManualClock())
        numbers = count()
        # What came at the same moment is ordered by id: two plays of the same steps need the same ones.
        self.plugin.engine.books.ids = lambda prefix: f"{prefix}-{next(numbers):06}"
        self.grants: dict[str, Grant] = {}
        self.made = 0

    async def do(self, what: str, number: int) -> None:
        try:
            await getattr(self, f"_{what}")(number)
        except SchedulerError:
            return

    async def _submit(self, spec: Any) -> None:
        self.made += 1
        await self.plugin.submit(spec, key=f"k{self.made}")

    async def _session(self, n: int) -> None:
        await self._submit(session(gpus=n % 3))

    async def _job(self, n: int) -> None:
        await self._submit(job(gpus=1 + n % 2, priority=Priority(n % 4)))

    async def _paid(self, n: int) -> None:
        await self._submit(job(gpus=1 + n % 2, min_runtime_seconds=100.0 * (1 + n)))

    async def _one(self, n: int, *phases: Phase) -> str:
        found = [w.id for w in await self.plugin.list() if w.phase in phases]
        if not found:
            raise SchedulerError("nobody")
        return found[n % len(found)]

    async def _take(self, n: int) -> None:
        name = await self._one(n, Phase.STARTING, Phase.RESUMING)
        self.grants[name] = await self.plugin.take(name)

    async def _move(self, name: str, target: Phase, **more: Any) -> None:
        if name not in self.grants:
            raise SchedulerError("not taken")
        lease = self.grants[name].lease.id
        credential = self.grants[name].credential
        await self.plugin.move(lease, credential, target, cause="test", **more)

    async def _run(self, n: int) -> None:
        await self._move(await self._one(n, Phase.STARTING, Phase.RESUMING), Phase.RUNNING)

    async def _idle(self, n: int) -> None:
        now = self.plugin.clock.now()
        await self.plugin.set_idleness(await self._one(n, Phase.RUNNING), Idleness(since=now))

    async def _busy(self, n: int) -> None:
        await self.plugin.set_idleness(await self._one(n, Phase.RUNNING), Idleness())

    async def _yield(self, n: int) -> None:
        name = await self._one(n, Phase.RUNNING)
        workload = await self.plugin.get(name)
        if workload.desired is not Desired.SUSPENDED:
            return
        if workload.spec.kind is Kind.JOB:
            await self._move(name, Phase.PREEMPTING)
            await self._move(name, Phase.QUEUED)
        else:
            await self._move(name, Phase.SUSPENDING)
            await self._move(name, Phase.SUSPENDED, snapshot=snapshot(workload.epoch))

    async def _end(self, n: int) -> None:
        name = await self._one(n, Phase.RUNNING)
        kind = (await self.plugin.get(name)).spec.kind
        await self._move(name, Phase.SUCCEEDED if kind is Kind.JOB else Phase.STOPPED)

    async def _stop(self, n: int) -> None:
        name = await self._one(n, Phase.QUEUED, Phase.RUNNING, Phase.STARTING, Phase.SUSPENDED)
        await self.plugin.desire(name, Desired.STOPPED, actor="test", reason="test")

    async def _wait(self, n: int) -> None:
        self.plugin.advance(60.0 * (n + 1))


def seen(board: Board) -> dict[str, Any]:
    """What the planner reads, without the numbers of rows."""
    columns, work = board.columns, board.columns.work
    return {
        "free": list(columns.free),
        "waiting": columns.queue.items,
        "running": {work.ids[row]: (item, work.takes[row]) for row, item in work.running.items()},
        "entries": sorted(
            (work.ids[row], int(pool), int(gpus))
            for row, pool, gpus in zip(
                work.entry_row, work.entry_pool, work.entry_gpus, strict=True
            )
            if gpus
        ),
        "held": board.devices.holders,
        "promised": columns.promised,
    }


def digest_of(board: Board, now: float) -> str:
    """As somebody works it out who sees everything for the first time."""
    columns, devices = board.columns, board.devices
    fleet = FleetState(columns.pools.nodes, devices.holders, devices.marks)
    running = columns.work.running.values()
    return digest(fleet, columns.queue.items.values(), running, board.rules, now)


@given(STEPS)
@settings(max_examples=30, deadline=None)
async def test_kept_columns_are_what_new_ones_would_be(steps: list[tuple[str, int]]) -> None:
    play = Play()
    engine = play.plugin.engine
    for what, number in steps:
        await play.do(what, number)
        now = play.plugin.clock.now()
        kept = engine._board
        kept.refresh(now)
        fresh = Board(engine.books, engine.settings, engine._failed_suspends)
        fresh.refresh(now)
        assert seen(kept) == seen(fresh)
        assert kept.inputs(now) == fresh.inputs(now) == digest_of(kept, now)
    await play.plugin.aclose()


@given(STEPS)
@settings(max_examples=25, deadline=None)
async def test_where_many_wait_the_same_is_decided_and_told_when_asked(
    steps: list[tuple[str, int]],
) -> None:
    """The short way of a long queue, beside the one that explains everything."""
    plays = [Play(), Play()]
    with pytest.MonkeyPatch.context() as patched:
        for what, number in steps:
            for play, limit in zip(plays, (1000, -1), strict=True):
                patched.setattr(cycle, "EXPLAINED_AT_ONCE", limit)
                await play.do(what, number)
            phases = [[w.phase for w in await play.plugin.list()] for play in plays]
            assert phases[0] == phases[1]
        short, shown = plays[1].plugin, plays[0].plugin
        for few, many in zip(await short.list(), await shown.list(), strict=True):
            if few.phase is Phase.QUEUED:
                asked, told = await short.why(few.id), await shown.why(many.id)
                assert asked.reason == told.reason or {asked.reason, told.reason} <= CAPACITY
    for play in plays:
        await play.plugin.aclose()
