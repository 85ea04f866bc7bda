"""What travels over HTTP: the model itself, and the few bodies that are no model of their own.

Client and service use the same declarations; pydantic checks them on both sides.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import TypeAdapter

from scheduler_bridge.model.nodes import Losses, NodeRecord, NodeStatus
from scheduler_bridge.model.outlook import Variant
from scheduler_bridge.model.phases import Desired, Phase
from scheduler_bridge.model.queue import QueueView
from scheduler_bridge.model.teams import ChangeSet, Proposal, TeamsView
from scheduler_bridge.model.usage import UsageReport
from scheduler_bridge.model.what_if import Outlook
from scheduler_bridge.model.workload import (
    Event,
    Expiry,
    Explanation,
    FleetView,
    Fork,
    Grant,
    Idleness,
    Instruction,
    Output,
    Pause,
    Report,
    SnapshotRef,
    Workload,
    WorkloadSpec,
)

PREFIX: Final = "/api/v1"


@dataclass(frozen=True, slots=True)
class SubmitBody:
    """Body of `POST /workloads`."""

    spec: WorkloadSpec
    key: str


@dataclass(frozen=True, slots=True)
class WhatIfBody:
    """Body of `POST /what-if`. Without `variants`, the spec's price with other guarantees is told."""

    spec: WorkloadSpec
    variants: tuple[Variant, ...] = ()


@dataclass(frozen=True, slots=True)
class DesireBody:
    """Body of `POST /workloads/{id}/desired`. A user's own name counts as the actor."""

    desired: Desired
    reason: str = ""
    actor: str = ""


@dataclass(frozen=True, slots=True)
class HeartbeatBody:
    """Body of `POST /leases/{id}/heartbeat`. `wait` in seconds."""

    report: Report
    wait: float = 0.0


@dataclass(frozen=True, slots=True)
class MoveBody:
    """Body of `POST /leases/{id}/move`."""

    target: Phase
    cause: str
    evidence: dict[str, Any] = field(default_factory=dict)
    snapshot: SnapshotRef | None = None
    exit_code: int | None = None


@dataclass(frozen=True, slots=True)
class ExpireBody:
    """Body of `POST /workloads/{id}/expire`."""

    snapshot: str


@dataclass(frozen=True, slots=True)
class ForkBody:
    """Body of `POST /workloads/{id}/fork`."""

    new: Fork
    snapshot: SnapshotRef
    source_snapshot: str
    actor: str = ""


@dataclass(frozen=True, slots=True)
class PauseBody:
    """Body of `PUT /pauses/{scope}`. `seconds` 0 ends the pause."""

    seconds: float
    reason: str = ""
    actor: str = ""


@dataclass(frozen=True, slots=True)
class ChangeTeamsBody:
    """Body of `POST /teams/changes`. A user's own name counts as the author."""

    proposal: Proposal
    actor: str = ""


@dataclass(frozen=True, slots=True)
class UndoTeamsBody:
    """Body of `POST /teams/changes/{id}/undo`."""

    reason: str
    actor: str = ""


@dataclass(frozen=True, slots=True)
class GiveUpBody:
    """Body of `POST /nodes/{name}/declare-dead` and `POST /workloads/{id}/force-stop`. `given_up` names
    every workload that is lost by it; needed with `at_once`, and checked whenever it is there."""

    reason: str
    actor: str = ""
    at_once: bool = False
    given_up: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class ReviveBody:
    """Body of `POST /nodes/{name}/revive`."""

    reason: str = ""
    actor: str = ""


@dataclass(frozen=True, slots=True)
class Problem:
    """Body of every answer that is an error."""

    code: str
    message: str
    remedy: str = ""


SUBMIT: Final = TypeAdapter(SubmitBody)
DESIRE: Final = TypeAdapter(DesireBody)
HEARTBEAT: Final = TypeAdapter(HeartbeatBody)
MOVE: Final = TypeAdapter(MoveBody)
PAUSE_BODY: Final = TypeAdapter(PauseBody)
PROBLEM: Final = TypeAdapter(Problem)
IDLENESS: Final = TypeAdapter(Idleness)
EXPIRY: Final = TypeAdapter(Expiry | None)
FORK: Final = TypeAdapter(ForkBody)
EXPIRE: Final = TypeAdapter(ExpireBody)
WORKLOAD: Final = TypeAdapter(Workload)
FOUND: Final = TypeAdapter(Workload | None)
WORKLOADS: Final = TypeAdapter(tuple[Workload, ...])
GRANT: Final = TypeAdapter(Grant)
INSTRUCTION: Final = TypeAdapter(Instruction)
EVENT: Final = TypeAdapter(Event)
EVENTS: Final = TypeAdapter(tuple[Event, ...])
USAGE: Final = TypeAdapter(UsageReport)
FLEET: Final = TypeAdapter(FleetView)
EXPLANATION: Final = TypeAdapter(Explanation)
PAUSE: Final = TypeAdapter(Pause)
OUTPUT: Final = TypeAdapter(Output)
TEAMS: Final = TypeAdapter(TeamsView)
NAMES: Final = TypeAdapter(tuple[str, ...])
CHANGE_TEAMS: Final = TypeAdapter(ChangeTeamsBody)
UNDO_TEAMS: Final = TypeAdapter(UndoTeamsBody)
CHANGE_SET: Final = TypeAdapter(ChangeSet)
CHANGE_SETS: Final = TypeAdapter(tuple[ChangeSet, ...])
GIVE_UP: Final = TypeAdapter(GiveUpBody)
REVIVE: Final = TypeAdapter(ReviveBody)
LOSSES: Final = TypeAdapter(Losses)
NODES: Final = TypeAdapter(tuple[NodeStatus, ...])
NODE_RECORD: Final = TypeAdapter(NodeRecord)
QUEUE: Final = TypeAdapter(QueueView)
WHAT_IF: Final = TypeAdapter(WhatIfBody)
OUTLOOKS: Final = TypeAdapter(tuple[Outlook, ...])
