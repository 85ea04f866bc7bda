"""What a supervisor tells the world: `status.json` in its folder, and the control socket's answers."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from snapshot.model import Process

STATUS_FILE = "status.json"
CONTROL_SOCKET = "control.sock"
LOG_FILE = "supervisor.log"
OUTPUT_FILE = "output.log"


class Outcome(StrEnum):
    """How a supervisor's work ended. The process exits right after writing one."""

    SUSPENDED = "suspended"
    EXITED = "exited"
    STOPPED = "stopped"
    FAILED = "failed"
    PREEMPTED = "preempted"


@dataclass(frozen=True, slots=True)
class Status:
    """One supervisor now.

    `host_port` is where the session answers on the host's loopback (0 for jobs). `outcome` is set
    once, after the sandbox was proven empty (and, for `suspended`, after the commit, with the
    manifest key in `snapshot` and what it demands of a machine). `steps` lists finished steps of the
    last suspend or resume with their seconds. `notes` are sentences for the user (files changed, connections closed).
    """

    workload_id: str
    phase: str
    supervisor: Process | None = None
    sandbox: Process | None = None
    host_port: int = 0
    outcome: Outcome | None = None
    snapshot: str = ""
    snapshot_bytes: int = 0
    snapshot_constraints: dict[str, str] = field(default_factory=dict)
    exit_code: int | None = None
    error: str = ""
    remedy: str = ""
    steps: dict[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)


_ADAPTER = TypeAdapter(Status)


def write_status(directory: Path, status: Status) -> None:
    """Replace the status file atomically (mode 0600)."""
    temporary = directory / (STATUS_FILE + ".new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as handle:
        json.dump(asdict(status), handle)
    temporary.replace(directory / STATUS_FILE)


def read_status(directory: Path) -> Status | None:
    """The last status written, or None if this supervisor never wrote one."""
    try:
        return _ADAPTER.validate_json((directory / STATUS_FILE).read_bytes())
    except FileNotFoundError:
        return None
