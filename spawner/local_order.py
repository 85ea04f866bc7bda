"""What a supervisor on this machine is told: composed from the site, the lease and the account.

The `*_order` functions are pure but for a look at /dev, unless `control_devices` (what the driver's
library opens besides a real GPU's own device) is given. `start_supervisor` writes the order and starts the process.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from scheduler_bridge.model.phases import Kind
from scheduler_bridge.model.workload import Gpu, Lease, WorkloadSpec
from snapshot.model import Bind, Process, StoreSettings
from snapshot.plan import INNER_RUN
from spawner.identity import Account
from spawner.site import LocalSite
from spawner.supervisor.order import SupervisorOrder, write_order
from spawner.supervisor.status import LOG_FILE, OUTPUT_FILE
from spawner.warm import WarmSupervisors

ORDER_FILE = "order.json"
START_SECONDS = 30.0
RUNTIME_FOLDER = f"{INNER_RUN}/jupyter"

NVIDIA_CONTROL_DEVICES = (
    "/dev/nvidiactl",
    "/dev/nvidia-uvm",
    "/dev/nvidia-uvm-tools",
    "/dev/nvidia-modeset",
)
"""Opened by the driver's library besides the GPU's own device; they give no GPU by themselves."""


class SupervisorNotStartedError(Exception):
    """The supervisor's process did not come up; the message says what it said."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A workload with the lease that it may start with. `spec` is as submitted."""

    spec: WorkloadSpec
    lease: Lease
    credential: str


def workload_directory(site: LocalSite, workload_id: str) -> Path:
    """The folder of a workload's supervisor. Raises `ValueError` if the id is not a plain name."""
    if Path(workload_id).name != workload_id or workload_id in {"", ".", ".."}:
        raise ValueError(f"{workload_id!r} is no workload id")
    return Path(site.run_directory) / workload_id


@dataclass(frozen=True, slots=True)
class Task:
    """What is to run in the sandbox. `folder` is a path inside, relative to the home. `mode` `resume`
    needs `snapshot`, a manifest's key. `ready_path` is where a session's server answers without a
    log-in (`BASE_URL` + `api`). `memory_bytes` and `cpus` limit it; 0: no limit."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    folder: str = ""
    mode: str = "start"
    snapshot: str = ""
    ready_path: str = "/api"
    memory_bytes: int = 0
    cpus: float = 0.0


def session_order(
    site: LocalSite,
    placed: Placed,
    account: Account,
    *,
    inner_root: int,
    task: Task,
    control_devices: tuple[str, ...] | None = None,
) -> SupervisorOrder:
    """The order for a session. The task's `argv` and `environment` are the Hub's."""
    return _order(site, placed, account, inner_root, task, control_devices)


def job_order(
    site: LocalSite,
    placed: Placed,
    account: Account,
    *,
    inner_root: int,
    adopt: bool = False,
    control_devices: tuple[str, ...] | None = None,
) -> SupervisorOrder:
    """The order for one attempt of a job."""
    spec, mode = placed.spec, "adopt" if adopt else "start"
    task = Task(spec.command, spec.environment, spec.folder, mode, ready_path="")
    return _order(site, placed, account, inner_root, task, control_devices)


def _order(
    site: LocalSite,
    placed: Placed,
    account: Account,
    inner_root: int,
    task: Task,
    control_devices: tuple[str, ...] | None,
) -> SupervisorOrder:
    spec, lease = placed.spec, placed.lease
    home = account.identity.home
    return SupervisorOrder(
        mode=task.mode,
        kind=spec.kind.value,
        workload_id=lease.workload_id,
        name=spec.name,
        user=spec.user,
        directory=str(workload_directory(site, lease.workload_id)),
        identity=account.identity,
        inner_root=inner_root,
        argv=task.argv,
        environment=inner_environment(site, placed, account, task.environment),
        folder=os.path.join(home, task.folder) if task.folder else home,
        lease_id=lease.id,
        epoch=lease.epoch,
        credential=placed.credential,
        scheduler=site.scheduler_url,
        tools=site.tools,
        store=site.store,
        binds=_binds(site, account),
        devices=gpu_devices(lease.gpus, control_devices),
        serve=spec.kind is Kind.SESSION,
        ready_path=task.ready_path,
        reachable_ports=site.reachable_ports,
        snapshot=task.snapshot,
        grace_seconds=spec.grace_seconds,
        not_freezable_because="" if site.freezable else _reason(site),
        memory_bytes=task.memory_bytes,
        cpus=task.cpus,
        facts=_facts(site, placed),
    )


def _facts(site: LocalSite, placed: Placed) -> dict[str, Any]:
    directory = workload_directory(site, placed.lease.workload_id)
    return {
        "gpus": gpu_facts(placed.lease.gpus),
        "output": str(directory / "run" / OUTPUT_FILE),
        "user": placed.spec.user,
        "server": placed.spec.server,
    }


def _reason(site: LocalSite) -> str:
    return site.not_freezable_because or "Sessions of this machine cannot be suspended."


def _binds(site: LocalSite, account: Account) -> tuple[Bind, ...]:
    venv = site.environment_directory
    home = Bind(account.host_home, account.identity.home)
    return (home, Bind(venv, venv, read_only=True), *site.binds)


def existing_control_devices() -> tuple[str, ...]:
    """Those of `NVIDIA_CONTROL_DEVICES` that this machine has. Looks at /dev."""
    return tuple(path for path in NVIDIA_CONTROL_DEVICES if os.path.exists(path))


def gpu_devices(
    gpus: tuple[Gpu, ...], control_devices: tuple[str, ...] | None = None
) -> tuple[str, ...]:
    """Host paths of what a lease lets its sandbox open; None: the control devices that exist."""
    if control_devices is None:
        control_devices = existing_control_devices()
    own = tuple(gpu.device for gpu in gpus)
    is_real = any(not gpu.virtual for gpu in gpus)
    return (*own, *control_devices) if is_real else own


def gpu_facts(gpus: tuple[Gpu, ...]) -> list[dict[str, Any]]:
    """What programs inside are told of their GPUs; numbered as they see them."""
    return [
        {
            "index": number,
            "uuid": gpu.uuid,
            "model": gpu.model,
            "device": f"/dev/{Path(gpu.device).name}",
            "virtual": gpu.virtual,
            "memory_bytes": gpu.memory_bytes,
        }
        for number, gpu in enumerate(gpus)
    ]


def inner_environment(
    site: LocalSite, placed: Placed, account: Account, given: Mapping[str, str]
) -> dict[str, str]:
    """The variables inside. What the caller gives wins, except for what names the sandbox.

    The list of GPUs may change with every resume while variables cannot: programs that must know
    read `/run/hubernate/gpus.json`; `CUDA_VISIBLE_DEVICES` counts from 0 and stays true.
    """
    venv, identity, lease = site.environment_directory, account.identity, placed.lease
    defaults = {
        "LANG": "C.UTF-8",
        "SHELL": "/bin/bash",
        "PATH": f"{venv}/bin:/usr/local/bin:/usr/bin:/bin",
        "HUBERNATE_URL": site.public_url,
    }
    ours = {
        "HOME": identity.home,
        "USER": identity.name,
        "LOGNAME": identity.name,
        "CUDA_VISIBLE_DEVICES": ",".join(str(n) for n in range(len(lease.gpus))),
        "HUBERNATE_WORKLOAD": lease.workload_id,
        "HUBERNATE_GPUS": json.dumps(gpu_facts(lease.gpus)),
    }
    if placed.spec.kind is Kind.SESSION:
        # Kernels are reached by names in there. The home is also that of the user's other sessions,
        # among them forks with kernels of the same ids.
        ours["JUPYTER_RUNTIME_DIR"] = RUNTIME_FOLDER
    path = given.get("PATH", "")
    if path and not path.startswith(f"{venv}/bin:"):
        ours["PATH"] = f"{venv}/bin:{path}"
    return {**defaults, **given, **ours}


def start_supervisor(
    order: SupervisorOrder, *, python: str, warm: WarmSupervisors | None = None
) -> Process:
    """Write the order (0600) and start its supervisor in the background, as nobody's child.

    One that waits (`warm`) is used if there is one. Blocks for a moment (a fork of a fresh
    interpreter): call it in a thread from an event loop. Raises `SupervisorNotStartedError`.
    """
    directory = Path(order.directory)
    directory.mkdir(mode=0o711, parents=True, exist_ok=True)
    directory.chmod(0o711)
    write_order(order, directory / ORDER_FILE)
    try:
        waiting = warm.take() if warm is not None else None
        if waiting is not None and (process := _order_warm(waiting, directory)) is not None:
            return process
        return _start_cold(directory, python)
    except (subprocess.SubprocessError, OSError, ValueError, TypeError) as error:
        raise SupervisorNotStartedError(
            f"The supervisor of {order.workload_id} did not start ({error});"
            f" {directory / LOG_FILE} may tell more."
        ) from error


def _start_cold(directory: Path, python: str) -> Process:
    argv = [python, "-m", "spawner.supervisor"]
    argv += ["--background", "--order", str(directory / ORDER_FILE)]
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
    log = os.open(directory / LOG_FILE, flags, 0o600)
    try:
        answer = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            cwd="/",
            env=clean_environment(),
            timeout=START_SECONDS,
            check=True,
        )
        return Process(**json.loads(answer.stdout))
    finally:
        os.close(log)


def _order_warm(waiting: subprocess.Popen[bytes], directory: Path) -> Process | None:
    """Hand the order over. None if it died before it could have started anything."""
    line = f"{directory / ORDER_FILE}\n".encode()
    try:
        answer, _ = waiting.communicate(line, timeout=START_SECONDS)
    except subprocess.TimeoutExpired:
        waiting.kill()
        raise
    return Process(**json.loads(answer)) if answer else None


def warm_supervisors(python: str, store: StoreSettings) -> WarmSupervisors:
    """What `start_supervisor` can be given as `warm`."""
    argv = (python, "-m", "spawner.supervisor", "--background", "--wait")
    return WarmSupervisors((*argv, "--store", json.dumps(asdict(store))), clean_environment())


def clean_environment() -> dict[str, str]:
    """Nothing of the starter's environment (it holds the Hub's secrets) reaches a supervisor."""
    kept = ("PATH", "LANG", "HUBERNATE_STATE", "HUBERNATE_DOWNLOADS")
    return {name: os.environ[name] for name in kept if name in os.environ}
