"""What a supervisor tells about whether its session can be suspended."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from scheduler_bridge.model.phases import Phase
from tests.builders.supervisor import stage, until
from tests.fakes.machine import MachineWithOpenGpuHandle, WorkingMachine

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="a supervisor gives files to users")


async def test_a_running_session_is_looked_at_and_its_suspend_has_a_price(tmp_path: Path) -> None:
    async with stage(tmp_path, WorkingMachine()) as s:
        await s.begin()
        await s.reaches(Phase.RUNNING)
        told = await until(lambda: s.workload.signals.get("suspend_bytes") and s.workload.signals)
        assert (told["freezable"], told["blockers"]) == (True, ())
        assert (told["suspend_bytes"], told["suspend_seconds"]) == (5_000_000, 1.8)
        assert told["closing_connections"] == 2


async def test_what_is_in_the_way_is_told_without_anybody_asking(tmp_path: Path) -> None:
    async with stage(tmp_path, MachineWithOpenGpuHandle()) as s:
        await s.begin()
        await s.reaches(Phase.RUNNING)
        await until(lambda: s.workload.signals.get("freezable") is False)
        (blocker,) = s.workload.signals["blockers"]
        assert blocker == "trainer (process 7): uses an InfiniBand queue. Stop it."


async def test_a_machine_that_cannot_freeze_says_so_at_once(tmp_path: Path) -> None:
    async with stage(tmp_path, WorkingMachine()) as s:
        await s.begin(not_freezable_because="CRIU does not work on this machine.")
        await s.reaches(Phase.RUNNING)
        await until(lambda: s.workload.signals.get("freezable") is False)
        assert s.workload.signals["blockers"] == ("CRIU does not work on this machine.",)
