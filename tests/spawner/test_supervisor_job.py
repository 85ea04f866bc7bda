"""The life of a job under its supervisor."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from scheduler_bridge.model.phases import Desired, Kind, Phase
from scheduler_bridge.model.workload import Priority, WorkloadSpec
from spawner.supervisor.status import Outcome
from spawner.supervisor.wishes import Action
from tests.builders.supervisor import Stage, stage
from tests.fakes.machine import MachineWithoutNamespaces, WorkingMachine

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="a supervisor gives files to users")


async def _submit_urgent(stage: Stage) -> None:
    """Work for which the planner takes the only GPU away."""
    spec = WorkloadSpec(
        Kind.JOB, "urgent", "alice", gpus=1, command=("true",), priority=Priority.URGENT
    )
    await stage.scheduler.submit(spec, key="urgent")


@pytest.mark.parametrize(
    ("code", "phase"), [(0, Phase.SUCCEEDED), (3, Phase.FAILED), (None, Phase.FAILED)]
)
async def test_a_job_ends_as_its_command_does(
    tmp_path: Path, code: int | None, phase: Phase
) -> None:
    async with stage(tmp_path, WorkingMachine(), kind=Kind.JOB) as s:
        await s.begin()
        workload = await s.reaches(Phase.RUNNING)
        assert workload.log_path.endswith("run/output.log")
        s.machine.exit(code)
        assert await s.outcome() is Outcome.EXITED
        assert s.workload.phase is phase
        assert s.workload.exit_code == code
        assert s.status.exit_code == code


async def test_a_preempted_job_gets_its_grace_and_is_queued_again(tmp_path: Path) -> None:
    async with stage(tmp_path, WorkingMachine(), kind=Kind.JOB) as s:
        await s.begin()
        await s.reaches(Phase.RUNNING)
        await _submit_urgent(s)
        assert await s.outcome() is Outcome.PREEMPTED
        assert s.scheduler.moves == ["running", "preempting", "queued"]
        assert s.machine.only_tree().log[-2:] == ["terminated with 2 s", "terminated with 0 s"]
        assert s.workload.phase is Phase.QUEUED


async def test_a_job_that_finishes_within_its_grace_has_succeeded(tmp_path: Path) -> None:
    async with stage(tmp_path, WorkingMachine(), kind=Kind.JOB) as s:
        await s.begin()
        await s.reaches(Phase.RUNNING)
        s.machine.only_tree().exit_code = 0
        await _submit_urgent(s)
        assert await s.outcome() is Outcome.EXITED
        assert s.workload.phase is Phase.SUCCEEDED


async def test_a_cancelled_job_is_cancelled(tmp_path: Path) -> None:
    async with stage(tmp_path, WorkingMachine(), kind=Kind.JOB) as s:
        await s.begin()
        await s.reaches(Phase.RUNNING)
        await s.scheduler.desire(s.id, Desired.STOPPED, actor="alice", reason="a mistake")
        assert await s.outcome() is Outcome.STOPPED
        assert s.workload.phase is Phase.CANCELLED


async def test_sigterm_to_the_supervisor_preempts(tmp_path: Path) -> None:
    async with stage(tmp_path, WorkingMachine(), kind=Kind.JOB) as s:
        await s.begin()
        await s.reaches(Phase.RUNNING)
        s.wishes.ask(Action.SUSPEND, reason="SIGTERM", actor="signal")
        assert await s.outcome() is Outcome.PREEMPTED


async def test_a_job_survives_its_supervisor_and_the_scheduler(tmp_path: Path) -> None:
    async with stage(tmp_path, WorkingMachine(), kind=Kind.JOB) as s:
        await s.begin()
        await s.reaches(Phase.RUNNING)
        s.scheduler.is_away = True
        await s.kill()
        s.scheduler.is_away = False
        await s.begin("adopt")
        s.machine.exit(0)
        assert await s.outcome() is Outcome.EXITED
        assert s.workload.phase is Phase.SUCCEEDED


async def test_a_job_that_ended_unwatched_keeps_its_exit_code(tmp_path: Path) -> None:
    async with stage(tmp_path, WorkingMachine(), kind=Kind.JOB) as s:
        await s.begin()
        await s.reaches(Phase.RUNNING)
        await s.kill()
        s.machine.exit(7)
        await s.begin("adopt")
        assert await s.outcome() is Outcome.EXITED
        assert s.workload.phase is Phase.FAILED
        assert s.workload.exit_code == 7


async def test_a_job_whose_sandbox_does_not_start_has_failed(tmp_path: Path) -> None:
    async with stage(tmp_path, MachineWithoutNamespaces(), kind=Kind.JOB) as s:
        await s.begin()
        assert await s.outcome() is Outcome.FAILED
        assert s.workload.phase is Phase.FAILED
        assert s.workload.remedy == "Run as root."


async def test_a_command_begins_with_its_network(tmp_path: Path) -> None:
    async with stage(tmp_path, WorkingMachine(), kind=Kind.JOB) as s:
        await s.begin()
        await s.reaches(Phase.RUNNING)
        assert s.machine.only_tree().log == ["held", "connected", "begun"]
