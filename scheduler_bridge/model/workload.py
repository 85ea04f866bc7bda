"""Workloads, leases and what others are shown of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, ClassVar, Final, NewType

from scheduler_bridge.model.outlook import Change, Estimate
from scheduler_bridge.model.phases import Desired, Kind, Phase

WorkloadId = NewType("WorkloadId", str)
LeaseId = NewType("LeaseId", str)
GpuCount = NewType("GpuCount", int)


class Priority(IntEnum):
    """Sorts inside a team only."""

    LOW = 0
    NORMAL = 1
    HIGH = 2
    URGENT = 3


@dataclass(frozen=True, slots=True)
class WorkloadSpec:
    """What somebody asks for. Immutable after submission.

    `gpus` counts per node, `nodes` is the size of the gang. `preemptible` workloads may be asked to
    yield once `min_runtime_seconds` have passed; a job is ended when it has run for
    `max_runtime_seconds`. `gpu_models` and `clusters` are where it may run, anywhere if empty.
    `command`, `environment` and `folder` are for jobs.
    """

    kind: Kind
    name: str
    user: str
    team: str = "default"
    hub: str = ""
    server: str = ""
    profile: str = ""
    gpus: int = 0
    nodes: int = 1
    priority: Priority = Priority.NORMAL
    preemptible: bool = True
    min_runtime_seconds: float = 0.0
    max_runtime_seconds: float | None = None
    gpu_models: tuple[str, ...] = ()
    clusters: tuple[str, ...] = ()
    grace_seconds: float = 30.0
    command: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    folder: str = ""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU of a node. `device` is the path under /dev that opens it; `index` the driver's."""

    uuid: str
    node: str
    index: int
    model: str
    device: str
    virtual: bool = False
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to use named GPUs on one node. `epoch` grows with every lease of the workload.

    Times are UNIX seconds. A lease is public; its credential is not part of it.
    """

    id: LeaseId
    workload_id: WorkloadId
    epoch: int
    node: str
    gpus: tuple[Gpu, ...]
    granted_at: float
    expires_at: float


@dataclass(frozen=True, slots=True)
class Grant:
    """A lease together with the credential that its supervisor renews and moves with."""

    lease: Lease
    credential: str


@dataclass(frozen=True, slots=True)
class SnapshotRef:
    """Names one stored snapshot. Which one is current is decided by (epoch, sequence)."""

    key: str
    epoch: int
    sequence: int
    bytes: int = 0
    stored_bytes: int = 0
    created_at: float = 0.0
    constraints: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fork:
    """What tells a fork from the session that it comes from. `id` is new and the caller's choice,
    because what belongs to the fork is laid out under it before the scheduler hears of it."""

    id: str
    key: str
    name: str
    server: str


EXPIRY_NOTICE_SECONDS: Final = 7 * 86400.0
"""How long the owner must have been able to see the date before anything is deleted."""


@dataclass(frozen=True, slots=True)
class Expiry:
    """When a suspended session's only snapshot is deleted (`at`, UNIX seconds), by which rule, and
    why in one sentence. `announced_at` is since when that date, or an earlier one, could be seen;
    `warned` are the days before for which a warning was given."""

    snapshot: str
    at: float
    rule: str
    reason: str = ""
    announced_at: float = 0.0
    warned: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Idleness:
    """The reclaimer's view of a session. `since` None means: not idle, or unknown."""

    since: float | None = None
    suspend_at: float | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Workload:
    """A workload as the scheduler knows it; what every caller is given.

    `version` grows with every change and serves long polls. `position` is the place in the queue
    (1 is next) and `wait_reason` one plain sentence, both only while queued. `signals` is the latest
    sample its supervisor sent, `signals_at` when (UNIX seconds); absent means unknown, never idle.
    New signals alone do not change `version`. `epoch` is that of its latest lease. `attempt` counts
    how often a job was queued again, and how often a session's place was held in vain.
    `preempted_at` is when it was asked to yield to others, of the last 24 hours, and `yielded_to` each
    time to whom.
    """

    id: WorkloadId
    key: str
    spec: WorkloadSpec
    phase: Phase
    phase_since: float
    created_at: float
    version: int
    desired: Desired = Desired.RUNNING
    desired_by: str = ""
    desired_reason: str = ""
    lease: Lease | None = None
    epoch: int = 0
    snapshot: SnapshotRef | None = None
    attempt: int = 0
    position: int | None = None
    wait_reason: str = ""
    idleness: Idleness = Idleness()
    signals: dict[str, Any] = field(default_factory=dict)
    signals_at: float | None = None
    exit_code: int | None = None
    last_error: str = ""
    remedy: str = ""
    log_path: str = ""
    expiry: Expiry | None = None
    preempted_at: tuple[float, ...] = ()
    yielded_to: tuple[str, ...] = ()

    @property
    def deletion(self) -> Expiry | None:
        """The date in force: one that was announced for the snapshot that it is suspended as."""
        current = self.snapshot.key if self.snapshot else ""
        in_force = self.expiry and self.expiry.snapshot == current
        return self.expiry if in_force and self.phase is Phase.SUSPENDED else None


@dataclass(frozen=True, slots=True)
class Report:
    """What a supervisor sends with each heartbeat. `handle` lets others prove it gone (see
    `clusters.base`): host PID and start time of supervisor and of the sandbox's first process."""

    epoch: int
    phase: Phase
    signals: dict[str, Any] = field(default_factory=dict)
    handle: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Instruction:
    """The answer to a heartbeat. When `revoked`, the lease is no longer this holder's."""

    desired: Desired
    reason: str
    actor: str
    expires_at: float
    revoked: bool = False


@dataclass(frozen=True, slots=True)
class Event:
    """One row of the append-only log. `id` orders all events of a scheduler."""

    id: int
    at: float
    workload_id: str
    kind: str
    cause: str
    actor: str
    user: str = ""
    source: str = ""
    target: str = ""
    evidence: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pause:
    """The red button. `scope` is reclaim, preempt or all; times are UNIX seconds."""

    scope: str
    until: float
    reason: str
    actor: str
    set_at: float


@dataclass(frozen=True, slots=True)
class Node:
    """One machine of the fleet. `facts` have the names of a snapshot's `constraints` and say what the
    machine has of them. `rack` is the part of the cluster in which machines reach each other fast."""

    name: str
    gpus: tuple[Gpu, ...]
    ready: bool = True
    facts: dict[str, str] = field(default_factory=dict)
    cluster: str = "local"
    rack: str = ""


@dataclass(frozen=True, slots=True)
class FleetView:
    """What exists and what is taken: `holders` maps GPU uuid to the workload that leases it."""

    nodes: tuple[Node, ...]
    holders: dict[str, str]
    queued: int
    pauses: tuple[Pause, ...] = ()


@dataclass(frozen=True, slots=True)
class Output:
    """A piece of what a job has written. Asked again with `serial` and `position`, what follows
    comes: `position` is the offset in bytes behind the piece, `serial` names the file, which a job
    that is started again replaces. Empty `data`: nothing more so far."""

    # output is bytes in whatever encoding: on the wire it travels as base64
    __pydantic_config__: ClassVar[dict[str, str]] = {
        "ser_json_bytes": "base64",
        "val_json_bytes": "base64",
    }
    data: bytes = b""
    position: int = 0
    serial: int = 0


@dataclass(frozen=True, slots=True)
class Forecast:
    """Whether a suspended session would get a place at once, and if not, why: the planner's reason
    and a sentence. `possible` is false where no machine of the fleet can ever bring it back."""

    now: bool
    possible: bool = True
    reason: str = ""
    text: str = ""
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a workload is where it is: one dominant reason, evidence, and what would change it. For
    a suspended session `resume` tells what would come of a resume now; for a queued workload `changes`
    what would start it now, the smallest first, and `estimate` when it starts."""

    workload_id: WorkloadId
    reason: str
    text: str
    evidence: dict[str, Any] = field(default_factory=dict)
    remedy: str = ""
    resume: Forecast | None = None
    changes: tuple[Change, ...] = ()
    estimate: Estimate | None = None
