"""The real program: started, killed, started again on the same state; its jobs go on meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from scheduler_bridge.client import SchedulerClient
from scheduler_bridge.clusters.processes import is_alive, kill, started
from scheduler_bridge.errors import Conflict, Refused, SchedulerError, Unavailable
from scheduler_bridge.model.nodes import NodeStanding
from scheduler_bridge.model.phases import Desired, Phase
from scheduler_bridge.model.workload import Priority, Report, Workload
from tests.builders.scheduler import TOKENS, job, session

SUPERVISOR = Path(__file__).parents[1] / "fakes" / "scheduler_supervisor.py"


class Service:
    """One state folder and the program that serves it, now and then."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = _free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.client = SchedulerClient(self.url, TOKENS["admin"])
        self.process: subprocess.Popen[bytes] | None = None
        (folder / "jobs").mkdir()
        tokens = folder / "tokens.json"
        tokens.write_text(json.dumps(TOKENS))
        tokens.chmod(0o600)
        self.configure()

    def configure(self, **more: Any) -> None:
        folder = self.folder
        values = {
            "port": self.port,
            "database_url": f"sqlite:///{folder}/scheduler.sqlite",
            "service_tokens_file": str(folder / "tokens.json"),
            "virtual_gpus": 2,
            "virtual_gpu_folder": str(folder / "vgpu"),
            "job_request_folder": str(folder / "requests"),
            "job_command": [
                "{python}",
                str(SUPERVISOR),
                "{request}",
                self.url,
                str(folder / "jobs"),
            ],
            **more,
        }
        (folder / "config.json").write_text(json.dumps({"SchedulerService": values}))

    def spawn(self, *flags: str) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-m", "scheduler_bridge", f"--config={self.folder}/config.json"]
        log = (self.folder / "log").open("ab")
        with log:
            return subprocess.Popen(
                [*argv, *flags], stdout=log, stderr=log, cwd=SUPERVISOR.parents[2]
            )

    async def start(self) -> None:
        self.process = self.spawn()

        async def ready() -> bool:
            assert self.process is not None and self.process.poll() is None, self.log()
            with contextlib.suppress(httpx.HTTPError):
                async with httpx.AsyncClient() as client:
                    return (await client.get(f"{self.url}/readyz")).is_success
            return False

        await until(ready)

    def end(self, number: int) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(60)

    def log(self) -> str:
        return (self.folder / "log").read_text()

    def job_process(self, workload: Workload, suffix: str = "") -> dict[str, int]:
        found: dict[str, int] = json.loads(
            (self.folder / "jobs" / f"{workload.id}{suffix}.json").read_text()
        )
        return found

    def finish_job(self, workload: Workload, code: int) -> None:
        path = self.folder / "jobs" / f"{workload.id}.end"
        path.with_suffix(".new").write_text(str(code))
        path.with_suffix(".new").replace(path)

    async def phase(self, workload: Workload, *phases: Phase) -> Workload:
        async with asyncio.timeout(60):
            now = await self.client.get(workload.id)
            while now.phase not in phases:
                now = await self.client.wait(workload.id, version=now.version, timeout=5)
            return now

    async def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.end(signal.SIGKILL)
        for note in (self.folder / "jobs").glob("*.json"):
            kill(json.loads(note.read_text()))
        await self.client.aclose()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(60):
        while not await condition():  # noqa: ASYNC110 (other processes set no event here)
            await asyncio.sleep(0.05)


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "600"])


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    made = Service(tmp_path)
    yield made
    await made.close()


async def test_leases_queue_and_credentials_survive_kill_9(service: Service) -> None:
    await service.start()
    client = service.client
    running = await client.submit(session("alice", gpus=2), key="s")
    await service.phase(running, Phase.STARTING)
    grant = await client.take(running.id)
    await client.move(grant.lease.id, grant.credential, Phase.RUNNING, cause="up")
    waiting = await client.submit(job("bob", gpus=2), key="j")
    await client.pause("all", seconds=1000, reason="demo", actor="root")
    before = await client.get(running.id)
    service.end(signal.SIGKILL)
    with pytest.raises(Unavailable):
        await client.get(running.id)

    await service.start()
    after = await client.get(running.id)
    assert (after.phase, after.lease and after.lease.id, after.epoch) == (
        Phase.RUNNING,
        grant.lease.id,
        before.epoch,
    )
    assert set((await client.fleet()).holders.values()) == {running.id}
    assert [p.reason for p in (await client.fleet()).pauses] == ["demo"]
    answer = await client.heartbeat(
        grant.lease.id, grant.credential, Report(grant.lease.epoch, Phase.RUNNING)
    )
    assert not answer.revoked
    assert (await service.phase(waiting, Phase.QUEUED)).key == "j"
    done = await client.move(grant.lease.id, grant.credential, Phase.STOPPED, cause="done")
    assert done.phase is Phase.STOPPED
    await service.phase(waiting, Phase.RUNNING)


async def test_a_job_runs_to_its_end_through_a_restart(service: Service) -> None:
    await service.start()
    workload = await service.client.submit(job(gpus=1), key="j")
    await service.phase(workload, Phase.RUNNING)
    service.end(signal.SIGKILL)
    assert is_alive(service.job_process(workload))
    await service.start()
    assert (await service.client.get(workload.id)).phase is Phase.RUNNING
    service.finish_job(workload, 0)
    done = await service.phase(workload, Phase.SUCCEEDED)
    assert (done.exit_code, done.attempt) == (0, 0)
    assert list((service.folder / "requests").iterdir()) == []


async def test_a_job_that_ends_while_the_scheduler_is_away_has_ended(service: Service) -> None:
    await service.start()
    workload = await service.client.submit(job(gpus=1), key="j")
    await service.phase(workload, Phase.RUNNING)
    service.end(signal.SIGKILL)
    service.finish_job(workload, 3)
    await service.start()
    done = await service.phase(workload, Phase.FAILED)
    assert done.exit_code == 3


async def test_a_job_whose_supervisor_is_killed_is_adopted(service: Service) -> None:
    await service.start()
    workload = await service.client.submit(job(gpus=1), key="j")
    await service.phase(workload, Phase.RUNNING)
    sandbox = service.job_process(workload)

    async def known() -> bool:
        history = await service.client.history(workload.id)
        return any(e.kind == "launched" for e in history)

    await until(known)
    await service.client.wait(workload.id, version=-1, timeout=0)
    first = service.job_process(workload, ".supervisor")
    # its handle is known once a heartbeat has been answered
    await until(lambda: _has_sandbox(service, workload))
    kill(first)

    async def adopted() -> bool:
        return service.job_process(workload, ".supervisor") != first

    await until(adopted)
    assert service.job_process(workload) == sandbox and is_alive(sandbox)
    service.finish_job(workload, 0)
    done = await service.phase(workload, Phase.SUCCEEDED)
    assert done.attempt == 0


async def _has_sandbox(service: Service, workload: Workload) -> bool:
    connection = sqlite3.connect(f"file:{service.folder}/scheduler.sqlite?mode=ro", uri=True)
    try:
        rows = connection.execute(
            "SELECT data FROM leases WHERE workload_id = ?", (workload.id,)
        ).fetchall()
    finally:
        connection.close()
    return any("sandbox" in json.loads(data)["handle"] for (data,) in rows)


async def test_a_job_whose_processes_are_all_killed_is_started_again(service: Service) -> None:
    await service.start()
    workload = await service.client.submit(job(gpus=1), key="j")
    await service.phase(workload, Phase.RUNNING)
    await until(lambda: _has_sandbox(service, workload))
    service.end(signal.SIGKILL)
    kill(service.job_process(workload, ".supervisor"))
    os.killpg(service.job_process(workload)["pid"], signal.SIGKILL)
    await service.start()
    again = await service.phase(workload, Phase.QUEUED, Phase.STARTING)
    assert again.attempt == 1
    again = await service.phase(workload, Phase.RUNNING)
    assert again.epoch == 2
    targets = [e.target for e in await service.client.history(workload.id) if e.kind == "phase"]
    assert targets == ["starting", "running", "lost", "queued", "starting", "running"]


async def test_a_cancelled_job_ends_and_a_preempted_one_comes_back(service: Service) -> None:
    await service.start()
    low = await service.client.submit(job(gpus=2, priority=Priority.LOW), key="low")
    await service.phase(low, Phase.RUNNING)
    high = await service.client.submit(job(gpus=2, priority=Priority.HIGH), key="high")
    await service.phase(high, Phase.RUNNING)
    queued = await service.client.get(low.id)
    assert (queued.phase, queued.attempt) == (Phase.QUEUED, 1)
    (service.folder / "jobs" / f"{low.id}.end").unlink()
    await service.client.desire(high.id, Desired.STOPPED, actor="root", reason="enough")
    assert (await service.phase(high, Phase.CANCELLED)).exit_code == 143
    await service.phase(low, Phase.RUNNING)


async def test_a_session_that_died_while_the_scheduler_was_away_is_concluded(
    service: Service,
) -> None:
    await service.start()
    client = service.client
    workload = await client.submit(session(), key="s")
    await service.phase(workload, Phase.STARTING)
    grant = await client.take(workload.id)
    process = sleeper()
    name = {"pid": process.pid, "started": started(process.pid)}
    report = Report(1, Phase.STARTING, handle={"supervisor": name, "sandbox": name})
    await client.heartbeat(grant.lease.id, grant.credential, report)
    await client.move(grant.lease.id, grant.credential, Phase.RUNNING, cause="up")
    service.end(signal.SIGKILL)
    process.kill()
    process.wait()
    await service.start()
    assert (await service.phase(workload, Phase.STOPPED)).lease is None
    assert (await client.fleet()).holders == {}


async def test_events_go_on_after_a_restart_without_a_gap(service: Service) -> None:
    await service.start()
    await service.client.submit(session(gpus=0), key="a")
    stream = service.client.events()
    seen = [await anext(stream), await anext(stream)]
    service.end(signal.SIGKILL)
    await service.start()
    coming = asyncio.ensure_future(anext(stream))
    second = await service.client.submit(session("b", gpus=0), key="b")
    async with asyncio.timeout(60):
        seen.append(await coming)
    assert [e.id for e in seen] == [1, 2, 3]
    assert seen[2].workload_id == second.id
    await stream.aclose()  # type: ignore[attr-defined]


async def test_sigterm_ends_it_at_once_although_somebody_waits(service: Service) -> None:
    await service.start()
    workload = await service.client.submit(session(gpus=0), key="a")
    now = await service.phase(workload, Phase.STARTING)
    waiting = asyncio.ensure_future(
        service.client.wait(workload.id, version=now.version, timeout=50)
    )
    stream = service.client.events(after=100)
    listening = asyncio.ensure_future(anext(stream))
    async with httpx.AsyncClient() as raw:
        assert (await raw.get(f"{service.url}/healthz")).is_success
    assert await asyncio.to_thread(service.end, signal.SIGTERM) == 0
    with contextlib.suppress(SchedulerError):
        await waiting
    listening.cancel()
    await asyncio.gather(listening, return_exceptions=True)


async def test_no_secret_is_in_the_log_or_the_state(service: Service) -> None:
    await service.start()
    workload = await service.client.submit(session(), key="s")
    await service.phase(workload, Phase.STARTING)
    grant = await service.client.take(workload.id)
    await service.client.heartbeat(
        grant.lease.id, grant.credential, Report(1, Phase.STARTING), wait=0
    )
    service.end(signal.SIGTERM)
    everything = b"".join(path.read_bytes() for path in service.folder.glob("*") if
                          path.is_file() and path.name != "tokens.json")  # fmt: skip
    assert grant.lease.id.encode() in everything
    assert grant.credential.encode() not in everything
    assert TOKENS["admin"].encode() not in everything
    mode = (service.folder / "scheduler.sqlite").stat().st_mode
    assert mode & 0o077 == 0


def complaint(service: Service, *flags: str) -> str:
    process = service.spawn(*flags)
    try:
        assert process.wait(60) != 0
    finally:
        process.kill()
        process.wait()
    return service.log()


async def test_a_second_scheduler_on_the_same_state_is_refused(service: Service) -> None:
    await service.start()
    assert service.process is not None
    said = complaint(service, f"--port={_free_port()}")
    assert f"Another scheduler (PID {service.process.pid})" in said


async def test_a_taken_port_is_named(service: Service) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", service.port))
        taken.listen()
        assert f"Cannot serve on 127.0.0.1:{service.port}" in complaint(service)


def test_a_newer_state_is_refused_and_stays_as_it_is(service: Service) -> None:
    path = service.folder / "scheduler.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE alembic_version (version_num VARCHAR(32))")
    connection.execute("INSERT INTO alembic_version VALUES ('2099')")
    connection.commit()
    connection.close()
    before = path.read_bytes()
    said = complaint(service)
    assert "schema 2099" in said and "Traceback" not in said
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"virtual_gpus": -7}, "virtual_gpus"),
        ({"lease_seconds": 1}, "lease_seconds"),
        ({"team_gpu_limits": {"red": "many"}}, "team_gpu_limits"),
        ({"prefix": "no-slash"}, "prefix"),
        ({"queue_visibility": "everything"}, "queue_visibility"),
        ({"node_silent_seconds": 1}, "node_silent_seconds"),
        ({"virtual_gpu": 2}, "Did you mean virtual_gpus"),
        ({"database_url": "sqlite:////no/such/folder/x"}, "No such file.*/no/such"),
        ({"service_tokens_file": "/no/such/file"}, "service tokens"),
        ({"hub_api_url": "http://x", "hub_token_file": "/no/such/file"}, "token for the Hub"),
    ],
)
def test_a_wrong_configuration_is_named(
    service: Service, values: dict[str, Any], named: str
) -> None:
    service.configure(**values)
    said = complaint(service)
    assert re.search(named, said) and "Traceback" not in said


async def test_what_an_operator_writes_beside_the_configuration_counts(service: Service) -> None:
    (service.folder / "config.py").write_text(
        "c.SchedulerService.team_gpu_limits = {'vision': 1}\nc.SchedulerService.port = 1\n"
    )
    await service.start()
    with pytest.raises(Refused, match="team vision may hold 1 GPU at once"):
        await service.client.submit(session(gpus=2, team="vision"), key="session:h/alice/")


def test_a_missing_configuration_file_is_named(service: Service) -> None:
    (service.folder / "config.json").unlink()
    assert "no configuration file" in complaint(service)


def test_a_configuration_that_is_cut_off_is_not_half_used(service: Service) -> None:
    path = service.folder / "config.json"
    path.write_text(path.read_text()[:-2])
    assert f"The configuration {path} cannot be read" in complaint(service)


async def test_a_dead_machine_stays_dead_through_kill_9_and_its_holder_is_told_to_stop(
    service: Service,
) -> None:
    service.configure(node_name="here")
    await service.start()
    client = service.client
    workload = await client.submit(session("alice", gpus=2), key="s")
    await service.phase(workload, Phase.STARTING)
    grant = await client.take(workload.id)
    await client.move(grant.lease.id, grant.credential, Phase.RUNNING, cause="up")
    with pytest.raises(Conflict, match="here may still run 1 of its workloads"):
        await client.declare_dead("here", reason="fire", actor="root")
    await client.declare_dead(
        "here", reason="fire", actor="root", at_once=True, given_up=(workload.id,)
    )
    assert (await client.get(workload.id)).phase is Phase.STOPPED
    waiting = await client.submit(job(gpus=1), key="j")
    service.end(signal.SIGKILL)

    await service.start()
    (node,) = await client.nodes()
    assert (node.state, node.holders) == (NodeStanding.DEAD, ())
    assert node.death is not None and (node.death.reason, node.death.actor) == ("fire", "root")
    report = Report(grant.lease.epoch, Phase.RUNNING)
    answer = await client.heartbeat(grant.lease.id, grant.credential, report)
    assert answer.revoked and "stop yourself" in answer.reason and "fire" in answer.reason
    with pytest.raises(Conflict, match="here still runs"):
        await client.revive("here", reason="", actor="root")
    assert (await service.phase(waiting, Phase.QUEUED)).lease is None
    async with httpx.AsyncClient() as raw:
        metrics = (await raw.get(f"{service.url}/metrics")).text
    assert 'hubernate_nodes{state="dead"} 1.0' in metrics
    assert 'hubernate_nodes{state="ready"} 0.0' in metrics


async def test_a_session_that_hangs_is_given_up_and_its_processes_are_ended(
    service: Service,
) -> None:
    service.configure(node_silent_seconds=5.0)
    await service.start()
    client = service.client
    workload = await client.submit(session(), key="s")
    await service.phase(workload, Phase.STARTING)
    grant = await client.take(workload.id)
    process = sleeper()
    try:
        name = {"pid": process.pid, "started": started(process.pid)}
        report = Report(1, Phase.STARTING, handle={"supervisor": name, "sandbox": name})
        await client.heartbeat(grant.lease.id, grant.credential, report)
        await client.move(grant.lease.id, grant.credential, Phase.RUNNING, cause="up")
        with pytest.raises(Conflict, match="answered"):
            await client.force_stop(workload.id, reason="hangs", actor="root")

        async def is_silent() -> bool:
            return not (await client.losses_of_session(workload.id)).obstacle

        await until(is_silent)
        stopped = await client.force_stop(workload.id, reason="hangs", actor="root")
        assert stopped.phase is Phase.STOPPED
        assert await asyncio.to_thread(process.wait, 60) == -signal.SIGKILL

        async def is_free() -> bool:
            return (await client.fleet()).holders == {}

        await until(is_free)
        assert not (await client.nodes())[0].death
    finally:
        process.kill()
        process.wait()
