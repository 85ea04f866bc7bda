"""A Jupyter session under its supervisor: frozen by CRIU, stored, brought back."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from scheduler_bridge.engine.scheduler import Scheduler
from scheduler_bridge.model.phases import Desired, Phase
from scheduler_bridge.model.workload import Workload
from snapshot import cgroups, proc
from snapshot.model import Process
from spawner.launch_job import book_of
from spawner.local_order import (
    Placed,
    Task,
    clean_environment,
    session_order,
    start_supervisor,
    workload_directory,
)
from spawner.site import LocalSite
from spawner.supervisor import client
from spawner.supervisor.local_machine import LocalHost
from spawner.supervisor.status import Outcome, Status, read_status
from spawner.warm import WarmSupervisors
from tests.builders.jupyter import TOKEN, Server
from tests.builders.scheduler import served, session
from tests.builders.site import local_site, needs_sandbox
from tests.builders.supervisor import until

pytestmark = [needs_sandbox, pytest.mark.criu, pytest.mark.timeout(180)]


class Bench:
    """One session of alice on a site of its own, with a scheduler over HTTP."""

    def __init__(self, site: LocalSite, scheduler: Scheduler) -> None:
        self.site = site
        self.scheduler = scheduler
        self.id = ""
        self.supervisor: Process | None = None
        self.memory_bytes = 0

    async def submit(self) -> None:
        """Ask for a place."""
        self.id = self.scheduler.submit(session(gpus=0), key="s", actor="test").id
        await self.reaches(Phase.STARTING)

    @property
    def directory(self) -> Path:
        return workload_directory(self.site, self.id)

    @property
    def status(self) -> Status:
        """What the supervisor wrote last."""
        return read_status(self.directory) or Status(self.id, "")

    @property
    def workload(self) -> Workload:
        """As the scheduler sees it."""
        return self.scheduler.get(self.id)

    @property
    def server(self) -> Server:
        """The session's server, as reached from outside."""
        return Server(self.status.host_port)

    async def launch(self, mode: str = "start", warm: WarmSupervisors | None = None) -> None:
        """Start a supervisor as the spawner does."""
        grant = self.scheduler.take(self.id, actor="test")
        book, workload = book_of(self.site), self.workload
        order = session_order(
            self.site,
            Placed(workload.spec, grant.lease, grant.credential),
            book.account(workload.spec.user),
            inner_root=book.inner_root(self.id),
            task=Task(
                argv=(
                    f"{self.site.environment_directory}/bin/python",
                    *("-m", "jupyter_server", "--ServerApp.ip=0.0.0.0", "--ServerApp.port=8888"),
                    *("--KernelManager.transport=ipc", f"--IdentityProvider.token={TOKEN}"),
                    "--ServerApp.jpserver_extensions={'spawner.extension': True}",
                ),
                environment={"UV_USE_IO_URING": "0"},
                mode=mode,
                snapshot=workload.snapshot.key if mode == "resume" and workload.snapshot else "",
                memory_bytes=self.memory_bytes,
            ),
        )
        self.supervisor = await asyncio.to_thread(
            start_supervisor, order, python=self.site.python, warm=warm
        )

    async def is_up(self) -> None:
        """Wait until this supervisor says that the session runs."""
        await until(lambda: self.status.supervisor == self.supervisor, 60)
        await self.comes_to(lambda: self.status.phase == Phase.RUNNING and self.status.host_port)

    async def is_suspended(self) -> None:
        """Wait for the end of the supervisor, in a commit."""
        await self.comes_to(lambda: self.status.outcome)
        assert self.status.outcome is Outcome.SUSPENDED, self.log

    async def comes_to(self, condition: Any) -> Any:
        """Wait for a condition, showing the log if it does not come."""
        try:
            return await until(condition, 90)
        except TimeoutError:
            pytest.fail(self.log)

    async def reaches(self, phase: Phase) -> None:
        await until(lambda: self.workload.phase is phase, 60)

    def want(self, desired: Desired) -> None:
        self.scheduler.desire(self.id, desired, actor="test", reason="a test")

    @property
    def log(self) -> str:
        return (self.directory / "supervisor.log").read_text()


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with served(gpus=1) as (scheduler, url):
        with local_site(url) as site:
            made = Bench(site, scheduler)
            await made.submit()
            yield made


async def test_a_supervisor_that_waited_resumes_the_session(bench: Bench) -> None:
    warm = WarmSupervisors(
        (bench.site.python, "-m", "spawner.supervisor", "--background", "--wait"),
        clean_environment(),
        delay=0.0,
    )
    try:
        await bench.launch()
        await bench.is_up()
        kernel = await bench.server.start_kernel()
        await bench.server.execute(kernel, "x = 41")
        bench.want(Desired.SUSPENDED)
        await bench.is_suspended()
        warm.refill()
        waiting = await until(lambda: warm.waiting, 30)
        bench.want(Desired.RUNNING)
        await bench.reaches(Phase.RESUMING)
        await bench.launch("resume", warm)
        assert waiting.poll() == 0, "it was used, and left the work to its child"
        await bench.is_up()
        assert (await bench.server.execute(kernel, "print(x + 1)")).strip() == "42"
    finally:
        warm.close()


async def test_the_same_kernel_is_there_after_a_suspend(bench: Bench) -> None:
    await bench.launch()
    await bench.is_up()
    kernel = await bench.server.start_kernel()
    await bench.server.execute(kernel, "x = list(range(100_000))")
    await until(lambda: bench.workload.signals.get("kernels"), 30)
    told = await until(lambda: "freezable" in bench.workload.signals and bench.workload.signals, 30)
    assert told["freezable"], told["blockers"]
    assert told["suspend_bytes"] > 2**20

    bench.want(Desired.SUSPENDED)
    await bench.is_suspended()
    await bench.reaches(Phase.SUSPENDED)
    sandbox = bench.status.sandbox
    assert sandbox is not None and proc.has_ended(sandbox)

    bench.want(Desired.RUNNING)
    await bench.reaches(Phase.RESUMING)
    await bench.launch("resume")
    await bench.is_up()
    assert [k["id"] for k in await bench.server.call("GET", "api/kernels")] == [kernel]
    assert (await bench.server.execute(kernel, "print(sum(x))")).strip() == "4999950000"
    told = await bench.server.call("GET", "hubernate/status")
    assert told["epoch"] == bench.workload.epoch
    # What is said from inside is about the time after the resume.
    fresh = await until(lambda: bench.workload.signals.get("kernels"), 30)
    assert fresh[0]["since"] >= told["resumed_at"] - 1
    assert bench.workload.signals["connections"] == 0

    bench.want(Desired.STOPPED)
    await bench.comes_to(lambda: bench.status.outcome is Outcome.STOPPED)


async def test_a_session_has_the_memory_of_its_profile_and_no_more(bench: Bench) -> None:
    if reason := cgroups.why_not():
        pytest.skip(reason)
    bench.memory_bytes = 2**29
    await bench.launch()
    await bench.is_up()
    kernel = await bench.server.start_kernel()
    await bench.server.execute(kernel, "import os; x = 7")
    await client.ask(bench.directory, "suspend")
    await bench.is_suspended()
    await bench.reaches(Phase.SUSPENDED)
    await bench.comes_to(lambda: cgroups.joined(bench.directory) == ())

    bench.want(Desired.RUNNING)
    await bench.reaches(Phase.RESUMING)
    await bench.launch("resume")
    await bench.is_up()
    child = "pid = os.fork()\nif not pid: bytearray(b'x') * 2**30; os._exit(0)\n"
    told = await bench.server.execute(kernel, child + "print(os.waitpid(pid, 0)[1], x)")
    assert told.split() == [str(int(signal.SIGKILL)), "7"]


async def test_suspend_by_sigterm_with_nobody_to_tell(bench: Bench) -> None:
    """The scheduler's port leads nowhere from the start."""
    bench.site = _without_scheduler(bench.site)
    await bench.launch()
    await bench.is_up()
    assert bench.supervisor is not None
    os.kill(bench.supervisor.pid, signal.SIGTERM)
    await bench.is_suspended()
    assert bench.status.snapshot
    assert bench.status.snapshot_constraints["architecture"] == platform.machine()
    assert bench.status.facts["scheduler_told"] is False


def _without_scheduler(site: LocalSite) -> LocalSite:
    from dataclasses import replace

    return replace(site, scheduler_url="http://127.0.0.1:9")


async def test_a_lost_connection_comes_back(bench: Bench) -> None:
    await bench.launch()
    await bench.is_up()
    link = json.loads((bench.directory / "network.json").read_text())["process"]
    os.kill(link["pid"], signal.SIGKILL)
    await until(lambda: proc.has_ended(Process(**link)))
    before = (bench.directory / "network.json").stat().st_mtime_ns
    await bench.comes_to(lambda: (bench.directory / "network.json").stat().st_mtime_ns != before)
    await bench.comes_to(lambda: "answers on port" in bench.log)
    assert await bench.server.call("GET", "api/kernels") == []


async def test_a_killed_supervisor_is_replaced(bench: Bench) -> None:
    await bench.launch()
    await bench.is_up()
    kernel = await bench.server.start_kernel()
    await bench.server.execute(kernel, "x = 5")
    assert bench.supervisor is not None
    os.kill(bench.supervisor.pid, signal.SIGKILL)
    await until(lambda: bench.supervisor and proc.has_ended(bench.supervisor))

    await bench.launch("adopt")
    await bench.is_up()
    assert (await bench.server.execute(kernel, "print(x)")).strip() == "5"
    await client.ask(bench.directory, "suspend")
    await bench.is_suspended()


async def test_a_supervisor_killed_while_it_suspends_loses_nothing(bench: Bench) -> None:
    """Killed as soon as CRIU writes its log: before the commit."""
    await bench.launch()
    await bench.is_up()
    kernel = await bench.server.start_kernel()
    await bench.server.execute(kernel, "x = bytearray(300_000_000)")
    await client.ask(bench.directory, "suspend")
    await bench.comes_to(lambda: (bench.directory / "dump.log").exists())
    assert bench.supervisor is not None
    os.kill(bench.supervisor.pid, signal.SIGKILL)
    await until(lambda: bench.supervisor and proc.has_ended(bench.supervisor))
    assert bench.status.outcome is None

    # The tree goes on. Whether it is suspended at once depends on what the scheduler heard last.
    await bench.launch("adopt")
    await until(lambda: bench.status.supervisor == bench.supervisor, 60)
    await bench.comes_to(lambda: bench.status.host_port or bench.status.outcome)
    if bench.status.outcome is None:
        await client.ask(bench.directory, "suspend")
    await bench.is_suspended()
    await bench.reaches(Phase.SUSPENDED)
    bench.want(Desired.RUNNING)
    await bench.reaches(Phase.RESUMING)
    await bench.launch("resume")
    await bench.is_up()
    assert (await bench.server.execute(kernel, "print(len(x))")).strip() == "300000000"


async def test_a_tampered_snapshot_is_refused_and_kept(bench: Bench) -> None:
    await bench.launch()
    await bench.is_up()
    bench.want(Desired.SUSPENDED)
    await bench.is_suspended()
    await bench.reaches(Phase.SUSPENDED)
    manifest = Path(bench.site.store.location) / bench.status.snapshot
    content = bytearray(manifest.read_bytes())
    content[len(content) // 2] ^= 1
    manifest.write_bytes(content)

    bench.want(Desired.RUNNING)
    await bench.reaches(Phase.RESUMING)
    await bench.launch("resume")
    await bench.comes_to(lambda: bench.status.outcome is Outcome.FAILED)
    await bench.reaches(Phase.SUSPENDED)
    assert "fresh" in bench.status.remedy
    assert manifest.exists()
    assert json.loads((bench.directory / "status.json").read_text())["outcome"] == "failed"


def states_of(sandbox: Process) -> set[str]:
    """The states of all processes of a sandbox."""
    return {found.state for p in proc.members(sandbox) if (found := proc.stat(p.pid))}


async def test_a_real_tree_is_halted_and_goes_on(bench: Bench) -> None:
    """The lease has no GPU, so that the fence is closed by hand: by a lost lease it would be too."""
    await bench.launch()
    await bench.is_up()
    sandbox = bench.status.sandbox
    assert sandbox is not None
    machine = LocalHost(bench.site.tools)
    halted = machine.halt(sandbox)
    await until(lambda: states_of(sandbox) == {"T"})
    assert set(halted) == set(proc.members(sandbox))
    before = machine.cpu_seconds(sandbox)
    machine.go_on(halted)
    assert await bench.server.call("GET", "api/kernels") == []
    assert before is not None and (machine.cpu_seconds(sandbox) or 0) >= before > 0
