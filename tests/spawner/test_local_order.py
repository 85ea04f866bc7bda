"""What a supervisor is told, as a value."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from scheduler_bridge.model.phases import Kind
from scheduler_bridge.model.workload import Gpu, Lease, LeaseId, WorkloadId, WorkloadSpec
from snapshot.model import Bind, Identity, StoreSettings, Tools
from spawner.identity import Account
from spawner.local_order import (
    ORDER_FILE,
    Placed,
    SupervisorNotStartedError,
    Task,
    job_order,
    session_order,
    start_supervisor,
    workload_directory,
)
from spawner.site import LocalSite
from spawner.supervisor.order import SupervisorOrder, read_order, write_order

ALICE = Account(Identity("alice", 210_000, 210_000, (), "/home/alice"), "/state/homes/alice", True)
VIRTUAL = (
    Gpu("v-1", "n", 1, "virtual", "/state/vgpu/vgpu1", virtual=True),
    Gpu("v-3", "n", 3, "virtual", "/state/vgpu/vgpu3", virtual=True),
)
REAL = (Gpu("GPU-x", "n", 2, "H200", "/dev/nvidia2"),)


def site(**changes: Any) -> LocalSite:
    """A machine that needs not exist."""
    values = {
        "python": "/venv/bin/python",
        "environment_directory": "/venv",
        "run_directory": "/state/run",
        "homes_directory": "/state/homes",
        "users_file": "/state/users.json",
        "scheduler_url": "http://127.0.0.1:8003",
        "tools": Tools((), (), ()),
        "store": StoreSettings("directory", "/state/store"),
        "reachable_ports": (8000, 8002),
        "binds": (Bind("/data", "/data", read_only=True),),
        "public_url": "http://127.0.0.1:8000",
        **changes,
    }
    return LocalSite(**values)


def placed(kind: Kind = Kind.SESSION, gpus: tuple[Gpu, ...] = (), **more: Any) -> Placed:
    """A workload with its lease."""
    lease = Lease(LeaseId("l-1"), WorkloadId("w-1"), 4, "n", gpus, 1.0, 2.0)
    return Placed(WorkloadSpec(kind, "mine", "alice", **more), lease, "secret")


def a_session(gpus: tuple[Gpu, ...] = (), **more: Any) -> SupervisorOrder:
    the_site, controls = more.pop("site", site()), more.pop("control_devices", None)
    task = Task(**{"argv": ("jupyterhub-singleuser",), "environment": {}, **more})
    ours = placed(gpus=gpus)
    return session_order(the_site, ours, ALICE, inner_root=7, task=task, control_devices=controls)


def test_a_session_sees_its_home_and_the_environment_it_runs_from() -> None:
    order = a_session(ready_path="/user/alice/api")
    assert order.binds == (
        Bind("/state/homes/alice", "/home/alice"),
        Bind("/venv", "/venv", read_only=True),
        Bind("/data", "/data", read_only=True),
    )
    assert order.directory == "/state/run/w-1"
    assert order.folder == "/home/alice"
    assert (order.serve, order.ready_path) == (True, "/user/alice/api")
    assert (order.lease_id, order.epoch, order.credential) == ("l-1", 4, "secret")
    assert order.reachable_ports == (8000, 8002)


def test_the_variables_count_gpus_from_zero_whatever_the_lease_has() -> None:
    order = a_session(VIRTUAL)
    assert order.environment["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert order.devices == ("/state/vgpu/vgpu1", "/state/vgpu/vgpu3")
    told = json.loads(order.environment["HUBERNATE_GPUS"])
    assert [(g["index"], g["device"], g["virtual"]) for g in told] == [
        (0, "/dev/vgpu1", True),
        (1, "/dev/vgpu3", True),
    ]
    assert order.facts["gpus"] == told


def test_kernels_are_reached_in_the_sandbox_and_not_in_the_home_that_sessions_share() -> None:
    assert a_session().environment["JUPYTER_RUNTIME_DIR"] == "/run/hubernate/jupyter"


def test_without_gpus_there_is_none_to_see() -> None:
    order = a_session()
    assert order.environment["CUDA_VISIBLE_DEVICES"] == ""
    assert order.devices == ()


def test_a_real_gpu_comes_with_the_drivers_control_devices_that_exist() -> None:
    order = a_session(REAL, control_devices=("/dev/nvidiactl",))
    assert order.devices == ("/dev/nvidia2", "/dev/nvidiactl")
    assert a_session(VIRTUAL, control_devices=("/dev/nvidiactl",)).devices == (
        "/state/vgpu/vgpu1",
        "/state/vgpu/vgpu3",
    )


def test_the_hubs_variables_stay_except_where_they_would_lie() -> None:
    given = {
        "JUPYTERHUB_API_TOKEN": "t",
        "HOME": "/root",
        "USER": "root",
        "CUDA_VISIBLE_DEVICES": "7",
        "LANG": "de_DE.UTF-8",
        "PATH": "/opt/bin:/usr/bin",
    }
    variables = a_session(environment=given).environment
    assert variables["JUPYTERHUB_API_TOKEN"] == "t"
    assert variables["LANG"] == "de_DE.UTF-8"
    assert (variables["HOME"], variables["USER"]) == ("/home/alice", "alice")
    assert variables["CUDA_VISIBLE_DEVICES"] == ""
    assert variables["PATH"] == "/venv/bin:/opt/bin:/usr/bin"
    assert variables["HUBERNATE_WORKLOAD"] == "w-1"
    assert variables["HUBERNATE_URL"] == "http://127.0.0.1:8000"


def test_the_credential_and_the_schedulers_address_stay_outside() -> None:
    order = a_session(VIRTUAL)
    inside = json.dumps([order.environment, order.argv, order.facts])
    assert "secret" not in inside
    assert "8003" not in inside


def test_a_job_runs_its_command_below_the_home_with_nothing_leading_in() -> None:
    ours = placed(
        Kind.JOB,
        command=("python", "train.py"),
        environment={"LR": "1"},
        folder="work",
        grace_seconds=9.0,
    )
    order = job_order(site(), ours, ALICE, inner_root=8)
    assert order.argv == ("python", "train.py")
    assert order.folder == "/home/alice/work"
    assert order.environment["LR"] == "1"
    assert (order.kind, order.mode, order.serve) == ("job", "start", False)
    assert order.grace_seconds == 9.0
    assert job_order(site(), ours, ALICE, inner_root=8, adopt=True).mode == "adopt"
    assert job_order(site(), placed(Kind.JOB), ALICE, inner_root=8).folder == "/home/alice"


def test_the_limits_are_the_tasks() -> None:
    order = a_session(memory_bytes=2**30, cpus=1.5)
    assert (order.memory_bytes, order.cpus) == (2**30, 1.5)
    assert (a_session().memory_bytes, a_session().cpus) == (0, 0.0)


def test_a_machine_that_cannot_freeze_gives_its_reason() -> None:
    frozen = site(freezable=False, not_freezable_because="CRIU is missing.")
    assert a_session(site=frozen).not_freezable_because == "CRIU is missing."
    assert a_session().not_freezable_because == ""


@pytest.mark.parametrize("workload_id", ["", "..", ".", "a/b", "/etc", "../x"])
def test_an_id_that_leads_elsewhere_is_refused(workload_id: str) -> None:
    with pytest.raises(ValueError, match="no workload id"):
        workload_directory(site(), workload_id)


def test_an_order_comes_back_as_it_was_written_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    order = a_session(VIRTUAL)
    write_order(order, tmp_path / ORDER_FILE)
    assert read_order(tmp_path / ORDER_FILE) == order
    assert stat.S_IMODE((tmp_path / ORDER_FILE).stat().st_mode) == 0o600


def test_a_supervisor_that_does_not_start_is_told(tmp_path: Path) -> None:
    order = a_session(site=site(run_directory=str(tmp_path)))
    with pytest.raises(SupervisorNotStartedError, match="w-1 did not start"):
        start_supervisor(order, python="/bin/false")
    assert os.listdir(tmp_path / "w-1")
