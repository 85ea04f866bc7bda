"""What follows from the proof that nothing of a lease's sandbox lives any more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scheduler_bridge.engine.books import Draft
from scheduler_bridge.engine.moves import want
from scheduler_bridge.model.phases import Desired, Kind, Phase, is_legal
from scheduler_bridge.model.workload import Workload
from scheduler_bridge.store.base import LeaseRecord

_ACTOR = "scheduler"
_CAUSE = "supervisor and sandbox are gone"


def stage_gone(draft: Draft, record: LeaseRecord, *, evidence: Mapping[str, Any]) -> None:
    """Release the lease. If it was its workload's own: a job is queued again, a session falls back
    to its last snapshot, and without one it has ended."""
    workload = draft.workload(record.lease.workload_id)
    is_current = workload.lease is not None and workload.lease.id == record.lease.id
    draft.release(record, ended_as=Phase.LOST, cause=_CAUSE, actor=_ACTOR)
    if is_current:
        _fall_back(draft, draft.workload(workload.id), evidence)


def _fall_back(draft: Draft, workload: Workload, evidence: Mapping[str, Any]) -> None:
    if is_legal(workload.spec.kind, workload.phase, Phase.LOST):
        workload = draft.move(workload, Phase.LOST, cause=_CAUSE, actor=_ACTOR, evidence=evidence)
    target = _after_loss(workload)
    workload = draft.move(
        workload,
        target,
        cause=_CAUSE,
        actor=_ACTOR,
        evidence=evidence,
        attempt=workload.attempt + (target is Phase.QUEUED),
        last_error="Its supervisor and its processes were killed.",
        remedy=_REMEDIES.get(target, ""),
    )
    if target is Phase.QUEUED and workload.desired is not Desired.RUNNING:
        want(draft, workload, Desired.RUNNING, _ACTOR, _CAUSE)
    elif target is Phase.SUSPENDED and workload.desired is Desired.STOPPED:
        draft.move(workload, Phase.STOPPED, cause=_CAUSE, actor=_ACTOR)
    elif target is Phase.SUSPENDED and workload.desired is Desired.RUNNING:
        want(draft, workload, Desired.SUSPENDED, _ACTOR, _CAUSE)


_REMEDIES = {
    Phase.SUSPENDED: "Resume it from its last snapshot, or start fresh.",
    Phase.STOPPED: "Start it again.",
    Phase.FAILED: "Start it again; see its log.",
}


def _after_loss(workload: Workload) -> Phase:
    if workload.spec.kind is Kind.JOB:
        return Phase.CANCELLED if workload.phase is Phase.CANCELLING else Phase.QUEUED
    if workload.phase is Phase.STARTING:
        return Phase.FAILED
    if workload.phase in (Phase.RESUMING, Phase.FILLING):
        return Phase.SUSPENDED
    if workload.snapshot is not None and workload.desired is not Desired.STOPPED:
        return Phase.SUSPENDED
    return Phase.STOPPED
