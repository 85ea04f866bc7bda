"""What a supervisor is told at its start, as one JSON file that only root reads.

Pure apart from the two functions that read and write the file.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from snapshot.cgroups import MOST_PROCESSES
from snapshot.model import Bind, Identity, StoreSettings, Tools

LEASE_PATIENCE_SECONDS = 600.0
"""How long a session that lost its lease stays for memory that is still to come. Without a bound, a
store that is away would keep GPUs that belong to somebody else."""


@dataclass(frozen=True, slots=True)
class SupervisorOrder:
    """One session's or job's supervisor, from start to proven end.

    `mode` is `start`, `resume` (with `snapshot`, a manifest key) or `adopt` (a live sandbox whose
    supervisor died). `serve` tells a session, which has an HTTP server on `inner_port` answering
    under `ready_path`, from a job. `credential` is the lease's and never enters the sandbox.
    `memory_bytes`, `cpus` and `processes` (threads count too) limit what the sandbox may use (0: the
    machine's own limits).
    `not_freezable_because`, if set, refuses every suspend with that reason.
    `image` and `layer` are for sandboxes whose disk does not stay (see `SandboxSpec`).
    `facts["gpus"]` describes the lease's GPUs to programs inside (`/run/hubernate/gpus.json`).
    """

    mode: str
    kind: str
    workload_id: str
    name: str
    user: str
    directory: str
    identity: Identity
    inner_root: int
    argv: tuple[str, ...]
    environment: dict[str, str]
    folder: str
    lease_id: str
    epoch: int
    credential: str
    scheduler: str
    tools: Tools
    store: StoreSettings
    binds: tuple[Bind, ...] = ()
    devices: tuple[str, ...] = ()
    serve: bool = True
    inner_port: int = 8888
    ready_path: str = "/api"
    reachable_ports: tuple[int, ...] = ()
    snapshot: str = ""
    grace_seconds: float = 30.0
    ready_seconds: float = 60.0
    fence_seconds: float = 600.0
    lease_patience_seconds: float = LEASE_PATIENCE_SECONDS
    not_freezable_because: str = ""
    image: str = ""
    layer: tuple[str, ...] = ()
    memory_bytes: int = 0
    cpus: float = 0.0
    processes: int = MOST_PROCESSES
    facts: dict[str, Any] = field(default_factory=dict)


_ADAPTER = TypeAdapter(SupervisorOrder)


def write_order(order: SupervisorOrder, path: Path) -> None:
    """Write atomically with mode 0600."""
    temporary = path.with_suffix(".new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as handle:
        json.dump(asdict(order), handle, default=str)
    temporary.replace(path)


def read_order(path: Path) -> SupervisorOrder:
    """Read and validate. Raises `pydantic.ValidationError` naming each wrong field."""
    return _ADAPTER.validate_json(path.read_bytes())
