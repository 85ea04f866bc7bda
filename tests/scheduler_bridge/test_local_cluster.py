"""Real processes: started by a template, proven dead, ended by force."""

from __future__ import annotations

import fcntl
import json
import os
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scheduler_bridge.clusters.base import LaunchFailed, Life
from scheduler_bridge.clusters.emptiness import LOCK_FILE
from scheduler_bridge.clusters.local import LocalCluster, LocalSettings
from scheduler_bridge.clusters.processes import started
from scheduler_bridge.model.phases import Phase
from scheduler_bridge.model.workload import Grant, Lease, LeaseId, Workload, WorkloadId
from tests.builders.scheduler import job, one_node, session


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[bytes]]]:
    made: list[subprocess.Popen[bytes]] = []
    yield made
    for process in made:
        process.kill()
        process.wait()


def sleeper(processes: list[subprocess.Popen[bytes]]) -> dict[str, int]:
    process = subprocess.Popen(["sleep", "600"])
    processes.append(process)
    return {"pid": process.pid, "started": started(process.pid)}


def cluster(tmp_path: Path, *command: str) -> LocalCluster:
    return LocalCluster(LocalSettings(command, str(tmp_path / "requests"), str(tmp_path / "run")))


def a_job() -> Workload:
    return Workload(WorkloadId("j-1"), "k", job(), Phase.STARTING, 1.0, 1.0, 1)


def a_grant() -> Grant:
    lease = Lease(LeaseId("l-1"), WorkloadId("j-1"), 1, "here", one_node(1)[0].gpus, 1.0, 9.0)
    return Grant(lease, "the-credential")


async def test_the_template_gets_a_private_request_and_its_output_is_the_handle(
    tmp_path: Path,
) -> None:
    program = (
        "import json,sys;r=json.load(open(sys.argv[1]));assert r['credential']=='the-credential';"
        "assert r['spec']['command']==['python','train.py'];assert r['adopt'] is False;"
        'print("hello");print(json.dumps({"pid":4,"started":5}))'
    )
    local = cluster(tmp_path, "{python}", "-c", program, "{request}")
    handle = await local.launch(a_job(), a_grant(), adopt=False)
    assert handle == {
        "supervisor": {"pid": 4, "started": 5},
        "directory": str(tmp_path / "run" / "j-1"),
    }
    request = tmp_path / "requests" / "j-1.json"
    assert stat.S_IMODE(request.stat().st_mode) == 0o600
    local.forget("j-1")
    local.forget("j-1")
    assert not request.exists()


async def test_no_secret_is_in_the_argument_vector(tmp_path: Path) -> None:
    local = cluster(tmp_path, "{python}", "-c", "import sys;sys.exit(str(sys.argv))", "{request}")
    with pytest.raises(LaunchFailed) as caught:
        await local.launch(a_job(), a_grant(), adopt=True)
    assert "the-credential" not in str(caught.value)
    assert json.loads((tmp_path / "requests" / "j-1.json").read_bytes())["adopt"] is True


@pytest.mark.parametrize(("code", "permanent"), [(1, False), (2, True)])
async def test_a_failed_launch_tells_why(tmp_path: Path, code: int, permanent: bool) -> None:
    program = f"import sys;print('no room',file=sys.stderr);sys.exit({code})"
    with pytest.raises(LaunchFailed, match="no room") as caught:
        await cluster(tmp_path, "{python}", "-c", program).launch(a_job(), a_grant(), adopt=False)
    assert caught.value.permanent is permanent


async def test_a_program_that_does_not_exist_is_a_failed_launch(tmp_path: Path) -> None:
    with pytest.raises(LaunchFailed, match="cannot be started"):
        await cluster(tmp_path, "/no/such/program").launch(a_job(), a_grant(), adopt=False)
    with pytest.raises(LaunchFailed, match="No way"):
        await cluster(tmp_path).launch(a_job(), a_grant(), adopt=False)


def test_life_is_read_from_both_processes(
    tmp_path: Path, processes: list[subprocess.Popen[bytes]]
) -> None:
    local = cluster(tmp_path)
    supervisor, sandbox = sleeper(processes), sleeper(processes)
    handle = {"supervisor": supervisor, "sandbox": sandbox}
    assert local.life(handle) is Life.ALIVE
    processes[0].kill()
    processes[0].wait()
    assert local.life(handle) is Life.ORPHANED
    processes[1].kill()
    processes[1].wait()
    assert local.life(handle) is Life.GONE
    assert local.is_gone(handle)


def test_a_zombie_is_dead_and_another_process_of_the_same_pid_is_not_the_same(
    tmp_path: Path, processes: list[subprocess.Popen[bytes]]
) -> None:
    local = cluster(tmp_path)
    alive = sleeper(processes)
    stranger = {**alive, "started": alive["started"] - 1}
    assert local.is_gone({"supervisor": stranger, "sandbox": stranger})
    processes[0].kill()
    os.waitid(os.P_PID, alive["pid"], os.WEXITED | os.WNOWAIT)
    assert local.is_gone({"supervisor": alive, "sandbox": alive})


def test_nothing_is_concluded_without_knowing_the_sandbox(tmp_path: Path) -> None:
    dead = {"pid": 2**22 - 1, "started": 1}
    local = cluster(tmp_path)
    assert local.life({}) is Life.UNKNOWN
    assert local.life({"supervisor": dead}) is Life.UNKNOWN
    (tmp_path / "status.json").write_text(json.dumps({"supervisor": dead, "sandbox": dead}))
    assert local.life({"supervisor": dead, "directory": str(tmp_path)}) is Life.GONE


def dead_in(folder: Path) -> dict[str, Any]:
    """What a supervisor that is gone told of itself."""
    folder.mkdir()
    return {"supervisor": {"pid": 2**22 - 1, "started": 1}, "directory": str(folder)}


def proves(local: LocalCluster, handle: dict[str, Any]) -> bool:
    """Whether there is a proof within ten seconds: a sandbox that others just start delays it."""
    end = time.monotonic() + 10
    while not (proven := local.has_no_sandbox(handle)) and time.monotonic() < end:
        pass
    return proven


def test_a_supervisor_that_is_gone_and_left_nothing_is_proven_so(tmp_path: Path) -> None:
    local, handle = cluster(tmp_path), dead_in(tmp_path / "j-empty")
    assert local.life(handle) is Life.UNKNOWN
    assert proves(local, handle)
    (tmp_path / "j-empty" / LOCK_FILE).touch()
    assert proves(local, handle), "a lock that nobody holds"


def test_no_proof_without_knowing_supervisor_and_folder(
    tmp_path: Path, processes: list[subprocess.Popen[bytes]]
) -> None:
    local, handle = cluster(tmp_path), dead_in(tmp_path / "j-known")
    assert not local.has_no_sandbox({})
    assert not local.has_no_sandbox({"supervisor": handle["supervisor"]})
    assert not local.has_no_sandbox({"directory": handle["directory"]})
    assert not local.has_no_sandbox({**handle, "supervisor": sleeper(processes)})


def test_a_folder_that_a_supervisor_has_locked_is_not_proven_empty(tmp_path: Path) -> None:
    local, handle = cluster(tmp_path), dead_in(tmp_path / "j-locked")
    lock = os.open(tmp_path / "j-locked" / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    assert not local.has_no_sandbox(handle)
    os.close(lock)
    assert proves(local, handle)


@pytest.mark.parametrize(
    "program",
    [
        "mount --bind {folder} /mnt && echo up && exec sleep 600",
        "mkdir {folder}/run && mount --bind {folder}/run /mnt && echo up && exec sleep 600",
        "echo up && exec -a snapshot.launch sleep 600",
    ],
    ids=["sees the folder", "sees a part of it", "builds a sandbox"],
)
def test_what_may_be_its_sandbox_is_not_overlooked(
    tmp_path: Path, processes: list[subprocess.Popen[bytes]], program: str
) -> None:
    local, handle = cluster(tmp_path), dead_in(tmp_path / "j-left")
    script = program.format(folder=tmp_path / "j-left")
    command = ["unshare", "--mount", "bash", "-c", script]
    left = subprocess.Popen(command, stdout=subprocess.PIPE)
    processes.append(left)
    assert left.stdout is not None and left.stdout.readline() == b"up\n"
    assert not local.has_no_sandbox(handle)
    left.kill()
    left.wait()
    left.stdout.close()
    assert proves(local, handle)


THREAD = """
import ctypes, threading, time
begun = threading.Event()
def last():
    print("up", flush=True)
    begun.set()
    time.sleep(600)
threading.Thread(target=last).start()
begun.wait()
ctypes.CDLL(None).syscall(60, 0)
"""
"""The first thread ends by itself (exit, not exit_group); the other one stays."""


def test_a_process_whose_first_thread_has_ended_is_not_overlooked(
    tmp_path: Path, processes: list[subprocess.Popen[bytes]]
) -> None:
    local, handle = cluster(tmp_path), dead_in(tmp_path / "j-left")
    left = subprocess.Popen([sys.executable, "-c", THREAD], stdout=subprocess.PIPE)
    processes.append(left)
    assert left.stdout is not None and left.stdout.readline() == b"up\n"
    while Path(f"/proc/{left.pid}/stat").read_text().split()[2] != "Z":
        pass
    assert not local.has_no_sandbox(handle)
    left.kill()
    left.wait()
    left.stdout.close()
    assert proves(local, handle)


def test_terminate_ends_both_and_nobody_else(
    tmp_path: Path, processes: list[subprocess.Popen[bytes]]
) -> None:
    local = cluster(tmp_path)
    supervisor, sandbox, other = (sleeper(processes) for _ in range(3))
    local.terminate({"supervisor": supervisor, "sandbox": {**other, "started": 1}})
    local.terminate({"sandbox": sandbox})
    assert processes[0].wait(5) == -9
    assert processes[1].wait(5) == -9
    assert processes[2].poll() is None


KEY = "manifests/alice/s-1/0000000003-0000000002"
SAID = [
    ("suspended", {"outcome": "suspended", "snapshot": KEY}, False, Phase.SUSPENDED),
    ("suspended, with demands", {"outcome": "suspended", "snapshot": KEY,
     "snapshot_constraints": {"criu": "4.2"}}, False, Phase.SUSPENDED),
    ("suspended, not told", {"facts": {"ending": "suspended"}, "snapshot": KEY}, False,
     Phase.SUSPENDED),
    ("suspended without a snapshot", {"outcome": "suspended"}, False, None),
    ("session exited", {"outcome": "exited", "exit_code": 1}, False, Phase.STOPPED),
    ("session still running", {"outcome": None}, False, None),
    ("job succeeded", {"outcome": "exited", "exit_code": 0}, True, Phase.SUCCEEDED),
    ("job failed", {"outcome": "exited", "exit_code": 1}, True, Phase.FAILED),
    ("job preempted", {"outcome": "preempted"}, True, Phase.QUEUED),
    ("job cancelled", {"outcome": "stopped"}, True, Phase.CANCELLED),
]  # fmt: skip


@pytest.mark.parametrize(("case", "status", "is_job", "phase"), SAID, ids=[s[0] for s in SAID])
def test_last_words(
    tmp_path: Path, case: str, status: dict[str, Any], is_job: bool, phase: Phase | None
) -> None:
    workload = (
        a_job()
        if is_job
        else Workload(WorkloadId("s-1"), "k", session(), Phase.SUSPENDING, 1.0, 1.0, 1)
    )
    folder = tmp_path / "run" / workload.id
    folder.mkdir(parents=True)
    supervisor = {"pid": 4, "started": 5}
    (folder / "status.json").write_text(json.dumps({"supervisor": supervisor, **status}))
    local = cluster(tmp_path)
    words = local.last_words(workload, {"supervisor": supervisor})
    assert (words.phase if words else None) is phase
    if words and words.snapshot:
        assert (words.snapshot.epoch, words.snapshot.sequence) == (3, 2)
        assert words.snapshot.constraints == status.get("snapshot_constraints", {})
    assert local.last_words(workload, {"supervisor": {"pid": 4, "started": 6}}) is None


def test_a_broken_status_file_says_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "j-1"
    folder.mkdir(parents=True)
    (folder / "status.json").write_text("{not json")
    assert cluster(tmp_path).last_words(a_job(), {"supervisor": {"pid": 1}}) is None
