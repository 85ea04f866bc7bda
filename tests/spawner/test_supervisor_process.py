"""Supervisors as processes of their own, with real sandboxes and a scheduler over HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from scheduler_bridge.clusters.emptiness import is_without_sandbox
from scheduler_bridge.engine.scheduler import Scheduler
from scheduler_bridge.model.phases import Desired, Phase
from scheduler_bridge.model.workload import Workload
from snapshot import proc
from snapshot.model import Process
from spawner.launch_job import book_of
from spawner.site import LocalSite, write_site
from spawner.supervisor.status import Outcome, Status, read_status
from tests.builders.scheduler import job, served
from tests.builders.site import local_site, needs_sandbox
from tests.builders.supervisor import until

pytestmark = [needs_sandbox, pytest.mark.criu]


class Machine:
    """One site with its scheduler; jobs are launched as the scheduler launches them."""

    def __init__(self, site: LocalSite, scheduler: Scheduler) -> None:
        self.site = site
        self.scheduler = scheduler
        self.started: list[Process] = []
        self.site_file = Path(site.run_directory).parent / "site.json"
        write_site(site, self.site_file)

    def folder(self, workload: Workload) -> Path:
        return Path(self.site.run_directory) / workload.id

    def status(self, workload: Workload) -> Status:
        """What its supervisor wrote last."""
        return read_status(self.folder(workload)) or Status(workload.id, "")

    async def launch(self, workload: Workload, **changes: Any) -> Process:
        """Run the launching program with a request like the scheduler's."""
        grant = self.scheduler.take(workload.id, actor="test")
        request = {
            "workload_id": workload.id,
            "spec": asdict(workload.spec),
            "lease": asdict(grant.lease),
            "credential": grant.credential,
            "attempt": 0,
            "adopt": False,
            **changes,
        }
        path = self.site_file.with_name("request.json")
        path.write_text(json.dumps(request))
        argv = [self.site.python, "-m", "spawner.launch_job"]
        argv += ["--site", str(self.site_file), "--request", str(path)]
        told = await asyncio.to_thread(subprocess.run, argv, stdout=subprocess.PIPE, check=True)
        process = Process(**json.loads(told.stdout))
        self.started.append(process)
        return process

    async def reaches(self, workload: Workload, *phases: Phase) -> Workload:
        """The workload as soon as the scheduler has it in one of the phases."""

        def look() -> Workload | None:
            now = self.scheduler.get(workload.id)
            return now if now.phase in phases else None

        found: Workload = await until(look, 30)
        return found


@pytest.fixture
async def machine() -> AsyncIterator[Machine]:
    async with served(gpus=1) as (scheduler, url):
        with local_site(url) as site:
            yield Machine(site, scheduler)


async def submitted(machine: Machine, script: str) -> Workload:
    """A job that runs a shell script, and has its place."""
    spec = job("bob", gpus=0, command=("sh", "-c", script))
    workload = machine.scheduler.submit(spec, key=script, actor="test")
    return await machine.reaches(workload, Phase.STARTING)


def output_of(workload: Workload) -> str:
    """What the job has written."""
    return Path(workload.log_path).read_text()


async def test_a_job_runs_as_its_user_and_tells_its_exit_code(machine: Machine) -> None:
    script = 'id -u; pwd; echo "$USER $HOME $CUDA_VISIBLE_DEVICES"; python -c "print(6*7)"; exit 5'
    workload = await submitted(machine, script)
    supervisor = await machine.launch(workload)
    workload = await machine.reaches(workload, Phase.FAILED, Phase.SUCCEEDED)
    assert workload.exit_code == 5
    account = book_of(machine.site).account("bob")
    told = output_of(workload).split("\n")
    assert told[:4] == [str(account.identity.uid), "/home/bob", "bob /home/bob ", "42"]
    await until(lambda: proc.has_ended(supervisor))
    status = machine.status(workload)
    assert (status.outcome, status.exit_code) == (Outcome.EXITED, 5)
    assert status.sandbox is not None and proc.has_ended(status.sandbox)


async def test_a_killed_supervisor_is_replaced_and_the_job_goes_on(machine: Machine) -> None:
    workload = await submitted(machine, "until [ -e ~/go ]; do sleep 0.05; done; echo went; exit 4")
    supervisor = await machine.launch(workload)
    await machine.reaches(workload, Phase.RUNNING)
    sandbox = machine.status(workload).sandbox
    os.kill(supervisor.pid, signal.SIGKILL)
    await until(lambda: proc.has_ended(supervisor))

    second = await machine.launch(workload, adopt=True)
    await until(lambda: machine.status(workload).supervisor == second)
    assert machine.status(workload).sandbox == sandbox
    (Path(book_of(machine.site).account("bob").host_home) / "go").touch()
    workload = await machine.reaches(workload, Phase.FAILED, Phase.SUCCEEDED)
    assert workload.exit_code == 4


async def test_a_supervisor_killed_before_it_had_a_sandbox_is_proven_to_have_left_none(
    machine: Machine,
) -> None:
    workload = await submitted(machine, "sleep 1000")
    supervisor = await machine.launch(workload)
    os.kill(supervisor.pid, signal.SIGKILL)
    await until(lambda: proc.has_ended(supervisor))
    folder = machine.folder(workload)
    assert machine.status(workload).sandbox is None, "it was killed early"
    await until(lambda: is_without_sandbox(folder))

    supervisor = await machine.launch(workload)
    await machine.reaches(workload, Phase.RUNNING)
    os.kill(supervisor.pid, signal.SIGKILL)
    await until(lambda: proc.has_ended(supervisor))
    sandbox = machine.status(workload).sandbox
    assert sandbox is not None and not is_without_sandbox(folder), "its sandbox lives"
    os.kill(sandbox.pid, signal.SIGKILL)
    await until(lambda: proc.has_ended(sandbox))
    await until(lambda: is_without_sandbox(folder))


async def test_cancelling_gives_grace_and_leaves_no_process(machine: Machine) -> None:
    script = "trap 'echo bye; exit 0' TERM; sleep 1000 & echo up; wait"
    workload = await submitted(machine, script)
    await machine.launch(workload)
    workload = await machine.reaches(workload, Phase.RUNNING)
    await until(lambda: "up" in output_of(workload))
    sandbox = machine.status(workload).sandbox
    machine.scheduler.desire(workload.id, Desired.STOPPED, actor="bob", reason="a mistake")
    await machine.reaches(workload, Phase.CANCELLED)
    assert sandbox is not None and proc.members(sandbox) == ()
    assert "bye" in output_of(workload)
    # The supervisor knows nothing that its log should not tell.
    log = (machine.folder(workload) / "supervisor.log").read_text()
    order = json.loads((machine.folder(workload) / "order.json").read_text())
    assert order["credential"] not in log
    lines = [line for line in log.splitlines() if not line.startswith((" ", "Traceback"))]
    assert all(workload.id in line for line in lines)


async def test_a_job_goes_on_without_the_scheduler(machine: Machine) -> None:
    """The order names a scheduler that does not exist; the end is in the status."""
    workload = await submitted(machine, "exit 3")
    grant = machine.scheduler.take(workload.id, actor="test")
    request = {
        "spec": asdict(workload.spec),
        "lease": asdict(grant.lease),
        "credential": grant.credential,
    }
    path = machine.site_file.with_name("request.json")
    path.write_text(json.dumps(request))
    site = {**json.loads(machine.site_file.read_text()), "scheduler_url": "http://127.0.0.1:9"}
    machine.site_file.write_text(json.dumps(site))
    argv = [machine.site.python, "-m", "spawner.launch_job"]
    argv += ["--site", str(machine.site_file), "--request", str(path)]
    await asyncio.to_thread(subprocess.run, argv, stdout=subprocess.PIPE, check=True)
    await until(lambda: machine.status(workload).facts.get("ending") == "exited", 30)
    assert machine.status(workload).exit_code == 3


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"user": "../bob"}, "cannot be a user here"),
        ({"user": "daemon"}, "system account"),
        ({"command": ()}, "has no command"),
        ({"gpus": "many"}, "spec.gpus"),
    ],
)
async def test_a_request_that_can_never_work_says_why(
    machine: Machine, change: dict[str, Any], says: str
) -> None:
    workload = await submitted(machine, "true")
    spec = {**asdict(workload.spec), **change}
    grant = machine.scheduler.take(workload.id, actor="test")
    request = {"spec": spec, "lease": asdict(grant.lease), "credential": "sesame"}
    path = machine.site_file.with_name("request.json")
    path.write_text(json.dumps(request))
    argv = [machine.site.python, "-m", "spawner.launch_job"]
    argv += ["--site", str(machine.site_file), "--request", str(path)]
    ran = await asyncio.to_thread(subprocess.run, argv, capture_output=True, text=True)
    assert ran.returncode == 2
    assert says in ran.stderr
    assert "sesame" not in ran.stderr
