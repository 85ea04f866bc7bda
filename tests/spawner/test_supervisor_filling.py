"""A session that runs before all of its memory is there: what may happen to it meanwhile."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from scheduler_bridge.model.phases import Desired, Phase
from snapshot.model import Progress
from spawner.hosting import Seen
from spawner.supervisor import client
from spawner.supervisor.session import LOST_REMEDY, MOST_LOSSES
from spawner.supervisor.status import Outcome
from spawner.supervisor.wishes import Action
from tests.builders.supervisor import Stage, stage, until
from tests.fakes.machine import (
    MachineThatLosesTheMemoryWithItsSupervisor,
    MachineWhoseMemoryArrivesLater,
)

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="a supervisor gives files to users")


async def resumed(s: Stage, **changes: Any) -> None:
    """The session has been suspended and is back, without its memory."""
    await s.begin()
    await s.reaches(Phase.RUNNING)
    await s.scheduler.desire(s.id, Desired.SUSPENDED, actor="reclaimer", reason="idle")
    assert await s.outcome() is Outcome.SUSPENDED
    await s.scheduler.desire(s.id, Desired.RUNNING, actor="alice", reason="back")
    await s.begin("resume", **changes)
    await until(lambda: s.status.phase == "filling" and s.status.host_port)
    await s.reaches(Phase.FILLING)


async def test_people_come_in_while_memory_arrives(tmp_path: Path) -> None:
    async with stage(tmp_path, MachineWhoseMemoryArrivesLater()) as s:
        await resumed(s)
        assert Seen(s.status, supervisor_alive=True, sandbox_alive=True).is_ready
        assert s.status.host_port == s.machine.port
        assert s.machine.fillings[-1].kept_as == s.machine.only_tree().process
        s.machine.fillings[-1].progress = Progress(500, 4000, "the store is away")
        await until(lambda: s.status.facts.get("filling", {}).get("trouble"))
        assert s.status.facts["filling"] == {
            "remaining": 500, "total": 4000, "trouble": "the store is away",
        }  # fmt: skip
        s.machine.fillings[-1].arrives()
        await s.reaches(Phase.RUNNING)
        assert not s.status.facts["filling"]
        assert s.machine.fillings[-1].is_closed


async def test_a_suspend_waits_until_all_memory_is_there(tmp_path: Path) -> None:
    async with stage(tmp_path, MachineWhoseMemoryArrivesLater()) as s:
        await resumed(s)
        before = s.workload.snapshot
        s.wishes.ask(Action.SUSPEND, reason="now", actor="root")
        s.machine.fillings[-1].progress = Progress(1, 4000)
        await until(lambda: s.status.facts.get("filling", {}).get("remaining") == 1)
        assert s.status.phase == "filling"
        assert s.workload.snapshot == before
        s.machine.fillings[-1].arrives()
        assert await s.outcome() is Outcome.SUSPENDED
        assert s.scheduler.moves[-3:] == ["running", "suspending", "suspended"]
        assert s.workload.snapshot != before


async def test_a_stop_while_memory_arrives_keeps_the_snapshot(tmp_path: Path) -> None:
    async with stage(tmp_path, MachineWhoseMemoryArrivesLater()) as s:
        await resumed(s)
        before = s.workload.snapshot
        await client.ask(s.directory, "stop", actor="alice", reason="not this one")
        assert await s.outcome() is Outcome.STOPPED
        assert s.workload.phase is Phase.SUSPENDED
        assert s.workload.snapshot == before
        assert s.machine.is_empty(s.machine.only_tree().process)
        assert s.machine.fillings[-1].is_closed


async def test_a_suspend_that_waits_for_memory_says_so(tmp_path: Path) -> None:
    async with stage(tmp_path, MachineWhoseMemoryArrivesLater()) as s:
        await resumed(s)
        await s.scheduler.desire(s.id, Desired.SUSPENDED, actor="reclaimer", reason="idle")
        await until(lambda: "cannot be suspended yet" in s.status.error)
        assert "memory is still arriving" in s.status.error and s.status.remedy
        await s.scheduler.desire(s.id, Desired.RUNNING, actor="alice", reason="back")
        await until(lambda: not s.status.error)
        assert s.status.phase == "filling" and not s.status.remedy


@pytest.mark.parametrize("patience", [0.0, 0.3])
async def test_who_lost_the_lease_does_not_wait_for_memory_for_ever(
    tmp_path: Path, patience: float
) -> None:
    async with stage(tmp_path, MachineWhoseMemoryArrivesLater()) as s:
        await resumed(s, lease_patience_seconds=patience)
        before = s.status.snapshot
        await s.scheduler.take(s.id)
        assert await s.outcome() is Outcome.STOPPED
        assert s.status.phase == "suspended"
        assert s.status.snapshot == before
        assert s.machine.is_empty(s.machine.only_tree().process)
        assert s.machine.fillings[-1].is_closed


async def test_who_lost_the_lease_keeps_memory_that_arrives_in_time(tmp_path: Path) -> None:
    async with stage(tmp_path, MachineWhoseMemoryArrivesLater()) as s:
        await resumed(s)
        before = set(s.machine.snapshots)
        s.wishes.lose_lease("taken")
        s.machine.fillings[-1].arrives()
        assert await s.outcome() is Outcome.SUSPENDED
        assert set(s.machine.snapshots) > before


async def test_a_session_whose_memory_is_lost_is_brought_back_again(tmp_path: Path) -> None:
    async with stage(tmp_path, MachineWhoseMemoryArrivesLater()) as s:
        await resumed(s)
        first = s.machine.only_tree()
        s.machine.fillings[-1].is_lost()
        await until(lambda: s.machine.only_tree() is not first and s.status.host_port)
        assert s.machine.is_empty(first.process)
        assert s.machine.thawed_from == [s.order.snapshot] * 2  # type: ignore[union-attr]
        s.machine.fillings[-1].arrives()
        await s.reaches(Phase.RUNNING)
        assert s.status.error == ""


async def test_memory_that_is_lost_each_time_is_not_tried_for_ever(tmp_path: Path) -> None:
    async with stage(tmp_path, MachineWhoseMemoryArrivesLater()) as s:
        await resumed(s)
        before = s.workload.snapshot
        for times in range(1, MOST_LOSSES + 2):
            await until(lambda times=times: len(s.machine.fillings) == times and s.status.host_port)  # type: ignore[misc]
            s.machine.fillings[-1].is_lost()
        assert await s.outcome() is Outcome.FAILED
        assert s.workload.phase is Phase.SUSPENDED
        assert s.workload.snapshot == before
        assert len(s.machine.thawed_from) == MOST_LOSSES + 1
        assert s.status.remedy == LOST_REMEDY


async def test_memory_lost_with_the_lease_is_not_brought_back_on_it(tmp_path: Path) -> None:
    async with stage(tmp_path, MachineWhoseMemoryArrivesLater()) as s:
        await resumed(s)
        before = s.status.snapshot
        s.wishes.lose_lease("taken")
        s.machine.fillings[-1].is_lost()
        assert await s.outcome() is Outcome.STOPPED
        assert s.status.phase == "suspended"
        assert s.status.snapshot == before
        assert len(s.machine.thawed_from) == 1


async def test_a_tree_that_ends_while_memory_arrives_is_still_suspended(tmp_path: Path) -> None:
    async with stage(tmp_path, MachineWhoseMemoryArrivesLater()) as s:
        await resumed(s)
        before = s.workload.snapshot
        s.machine.exit(137)
        assert await s.outcome() is Outcome.FAILED
        assert s.workload.phase is Phase.SUSPENDED
        assert s.workload.snapshot == before
        assert "137" in s.workload.last_error
        assert s.machine.fillings[-1].is_closed


async def test_a_successor_goes_on_waiting_for_memory(tmp_path: Path) -> None:
    async with stage(tmp_path, MachineWhoseMemoryArrivesLater()) as s:
        await resumed(s)
        for _ in range(2):
            await s.kill()
            count = len(s.machine.fillings)
            await s.begin("adopt")
            await until(lambda: len(s.machine.fillings) > count)  # noqa: B023
            await until(lambda: s.status.host_port and s.status.phase == "filling")
        # the order of an adoption names no snapshot
        assert s.status.snapshot == s.workload.snapshot.key  # type: ignore[union-attr]
        s.machine.fillings[-1].arrives()
        await s.reaches(Phase.RUNNING)
        await s.scheduler.desire(s.id, Desired.SUSPENDED, actor="r", reason="idle")
        s.machine.fillings[0].close()  # what a killed supervisor held is gone with it
        for filling in s.machine.fillings:
            filling.close()
        assert await s.outcome() is Outcome.SUSPENDED


async def test_a_successor_that_finds_no_memory_brings_the_session_back(tmp_path: Path) -> None:
    async with stage(tmp_path, MachineThatLosesTheMemoryWithItsSupervisor()) as s:
        await resumed(s)
        manifest = s.status.snapshot
        first = s.machine.only_tree()
        await s.kill()
        await s.begin("adopt")
        await until(lambda: len(s.machine.thawed_from) == 2)
        assert s.machine.thawed_from == [manifest, manifest]
        assert s.machine.is_empty(first.process)
        s.machine.fillings[-1].arrives()
        await s.reaches(Phase.RUNNING)
