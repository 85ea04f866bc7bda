"""The queue as somebody may see it."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler_bridge.model.outlook import Estimate
from scheduler_bridge.model.phases import Kind
from scheduler_bridge.model.workload import WorkloadSpec


def called(spec: WorkloadSpec) -> str:
    """How lists call a workload: a session by its user and server, a job by its name."""
    if spec.kind is Kind.JOB:
        return spec.name
    return f"{spec.user}/{spec.server}" if spec.server else spec.user


@dataclass(frozen=True, slots=True)
class QueuedWork:
    """One workload that waits. `since` in UNIX seconds; `reason`, and of the first rows `estimate`, only
    for its owner and those who look after everybody's work."""

    workload_id: str
    kind: Kind
    name: str
    user: str
    team: str
    priority: str
    gpus: int
    nodes: int
    since: float
    attempt: int = 0
    reason: str = ""
    estimate: Estimate | None = None


@dataclass(frozen=True, slots=True)
class QueueRow:
    """One workload that waits, or (`work` None) several in a row that are only counted. `position`
    is that of the first; None before the planner has come to it. `gpus` over all of them."""

    position: int | None
    count: int
    gpus: int
    work: QueuedWork | None = None


@dataclass(frozen=True, slots=True)
class QueueView:
    """What waits, next first. `visibility` is the rule by which others' work is shown or counted."""

    visibility: str
    waiting: int
    gpus: int
    rows: tuple[QueueRow, ...] = ()
