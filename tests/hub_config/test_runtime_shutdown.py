"""Ctrl-C loses no session: through the scheduler, and by signal when it is gone."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from hub_config import state
from hub_config.paths import StateFolder
from hub_config.settings import LocalSettings, Ports
from hub_config.shutdown import Leave, supervisor_record, suspend_all, suspend_through
from scheduler_bridge.inprocess import InProcessScheduler
from scheduler_bridge.model.phases import Desired, Kind, Phase
from scheduler_bridge.model.workload import Report, SnapshotRef, WorkloadSpec
from snapshot.model import Process
from spawner.supervisor.status import Status, write_status

ENDS_ON_SIGTERM = "import signal; signal.sigwait({signal.SIGTERM})"
BLOCKED_FIRST = "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM}); print(1, flush=True);"


async def running_session(scheduler: InProcessScheduler, user: str) -> tuple[str, str, str]:
    """A session on a GPU; returns workload, lease and credential."""
    spec = WorkloadSpec(Kind.SESSION, name=user, user=user, gpus=1)
    workload = await scheduler.submit(spec, key=f"session:hub/{user}/")
    grant = await scheduler.take(workload.id)
    lease = grant.lease.id
    await scheduler.move(lease, grant.credential, Phase.RUNNING, cause="answers")
    return workload.id, lease, grant.credential


async def supervise(scheduler: InProcessScheduler, lease: str, credential: str) -> None:
    """A supervisor that does as it is told."""
    while True:
        report = Report(1, Phase.RUNNING)
        answer = await scheduler.heartbeat(lease, credential, report, wait=0.05)
        if answer.desired is Desired.SUSPENDED:
            break
        await asyncio.sleep(0.01)
    await scheduler.move(lease, credential, Phase.SUSPENDING, cause="desired")
    snapshot = SnapshotRef("manifest", 1, 1)
    await scheduler.move(lease, credential, Phase.SUSPENDED, cause="commit", snapshot=snapshot)


@asynccontextmanager
async def scheduler_with(gpus: int = 2) -> AsyncIterator[InProcessScheduler]:
    scheduler = InProcessScheduler(gpus=gpus)
    try:
        yield scheduler
    finally:
        await scheduler.aclose()


async def test_every_running_session_is_suspended_and_said() -> None:
    said: list[str] = []
    async with scheduler_with() as scheduler:
        alice = await running_session(scheduler, "alice")
        bob = await running_session(scheduler, "bob")
        supervisors = [asyncio.create_task(supervise(scheduler, *s[1:])) for s in (alice, bob)]
        leave = await suspend_through(scheduler, said.append, wait_seconds=20)
        await asyncio.gather(*supervisors)
        assert leave == Leave(suspended=2)
        assert (await scheduler.get(alice[0])).phase is Phase.SUSPENDED
    assert said[0].startswith("Suspending 2 session(s)")
    assert any(line.startswith("alice/default: suspended after") for line in said)


async def test_a_session_that_is_not_suspended_in_time_is_named_and_goes_on() -> None:
    said: list[str] = []
    async with scheduler_with() as scheduler:
        workload, _, _ = await running_session(scheduler, "alice")
        leave = await suspend_through(scheduler, said.append, wait_seconds=0.3)
        assert leave.left_running == ("alice/default",)
        assert (await scheduler.get(workload)).phase is Phase.RUNNING
    assert said[-2] == "alice/default was not suspended in time (running)"
    assert said[-1] == "alice/default: running on, and found again by `hubernate up`."


async def test_without_sessions_nothing_is_said() -> None:
    said: list[str] = []
    async with scheduler_with() as scheduler:
        assert await suspend_through(scheduler, said.append, wait_seconds=5) == Leave()
    assert said == []


async def test_jobs_are_left_running_and_mentioned() -> None:
    said: list[str] = []
    async with scheduler_with() as scheduler:
        spec = WorkloadSpec(Kind.JOB, name="train", user="bob", gpus=1, command=("train",))
        job = await scheduler.submit(spec, key="job:1")
        assert await suspend_through(scheduler, said.append, wait_seconds=5) == Leave()
        assert (await scheduler.get(job.id)).desired is Desired.RUNNING
    assert said == ["1 job(s) go on and are found again by `hubernate up`."]


async def test_with_the_scheduler_gone_supervisors_are_told_directly(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path, tmp_path)
    state.create(folder)
    supervisor = await asyncio.create_subprocess_exec(
        sys.executable, "-c", BLOCKED_FIRST + ENDS_ON_SIGTERM, stdout=asyncio.subprocess.PIPE
    )
    assert supervisor.stdout is not None
    await supervisor.stdout.readline()
    write_supervisor(folder, "w1", supervisor.pid, host_port=4001)
    settings = LocalSettings(str(folder.root), str(folder.downloads), Ports(1))
    said: list[str] = []
    leave = await suspend_all(settings, "token", said.append, wait_seconds=20)
    assert leave == Leave(suspended=1)
    assert await supervisor.wait() == 0
    assert "supervisors are told" in said[0]


async def test_a_reused_pid_is_never_signalled(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path, tmp_path)
    state.create(folder)
    stranger = await asyncio.create_subprocess_exec(sys.executable, "-c", "input()", stdin=-1)
    try:
        write_supervisor(folder, "w1", stranger.pid, host_port=4001, started=12345)
        settings = LocalSettings(str(folder.root), str(folder.downloads), Ports(1))
        leave = await suspend_all(settings, "token", lambda _: None, wait_seconds=5)
        assert leave == Leave()
        assert stranger.returncode is None
    finally:
        stranger.kill()
        await stranger.wait()


@pytest.mark.parametrize("pid", [2**22 + 1])
def test_a_gone_supervisor_is_no_supervisor(pid: int) -> None:
    assert supervisor_record(pid, 1) is None


def write_supervisor(
    folder: StateFolder, workload: str, pid: int, *, host_port: int, started: int | None = None
) -> None:
    """What a supervisor with this PID would have written."""
    ticks = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    assert psutil.pid_exists(pid)
    directory = folder.run / workload
    directory.mkdir()
    process = Process(pid, ticks if started is None else started)
    write_status(directory, Status(workload, "running", supervisor=process, host_port=host_port))
