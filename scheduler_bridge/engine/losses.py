"""What follows from the loss of a lease: proof that nothing of its sandbox lives any more, or an
administrator's word."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from scheduler_bridge.engine.books import Books, Draft
from scheduler_bridge.engine.moves import want
from scheduler_bridge.model.phases import Desired, Kind, Phase, is_legal
from scheduler_bridge.model.workload import SnapshotRef, Workload
from scheduler_bridge.store.base import LeaseRecord


@dataclass(frozen=True, slots=True)
class Loss:
    """Why a workload lost what it ran on, by whose word, and what its owner is told."""

    cause: str = "supervisor and sandbox are gone"
    actor: str = "scheduler"
    error: str = "Its supervisor and its processes were killed."


_PROVEN: Final = Loss()


def stage_gone(
    draft: Draft, record: LeaseRecord, *, evidence: Mapping[str, Any], loss: Loss = _PROVEN
) -> None:
    """Release the lease. If it was its workload's own: a job is queued again, a session falls back
    to its last snapshot, and without one it has ended."""
    is_current = draft.is_current(record)
    draft.release(record, ended_as=Phase.LOST, cause=loss.cause, actor=loss.actor)
    if is_current:
        fall_back(draft, draft.workload(record.lease.workload_id), evidence, loss)


def fall_back(draft: Draft, workload: Workload, evidence: Mapping[str, Any], loss: Loss) -> None:
    """Stage what becomes of a workload whose lease counts no more. Its lease is the caller's."""
    cause, actor = loss.cause, loss.actor
    if is_legal(workload.spec.kind, workload.phase, Phase.LOST):
        workload = draft.move(workload, Phase.LOST, cause=cause, actor=actor, evidence=evidence)
    target = after_loss(workload)
    workload = draft.move(
        workload,
        target,
        cause=cause,
        actor=actor,
        evidence=evidence,
        attempt=workload.attempt + (target is Phase.QUEUED),
        last_error=loss.error,
        remedy=_REMEDIES.get(target, ""),
    )
    if target is Phase.QUEUED and workload.desired is not Desired.RUNNING:
        want(draft, workload, Desired.RUNNING, actor, cause)
    elif target is Phase.SUSPENDED and workload.desired is Desired.STOPPED:
        draft.move(workload, Phase.STOPPED, cause=cause, actor=actor)
    elif target is Phase.SUSPENDED and workload.desired is Desired.RUNNING:
        want(draft, workload, Desired.SUSPENDED, actor, cause)


def keep_late_snapshot(books: Books, record: LeaseRecord, snapshot: SnapshotRef | None) -> None:
    """A holder that was given up stored its memory after all. If its session still waits to be brought
    back, that is what comes back; one that was resumed meanwhile has gone its own way."""
    workload = books.workloads.get(record.lease.workload_id)
    if snapshot is None or workload is None or workload.phase is not Phase.SUSPENDED:
        return
    known = workload.snapshot
    is_newer = known is None or (snapshot.epoch, snapshot.sequence) > (known.epoch, known.sequence)
    if not is_newer or workload.epoch != record.lease.epoch:
        return
    with books.draft() as draft:
        kept = draft.put(replace(workload, snapshot=snapshot, last_error="", remedy=""))
        draft.note(
            "saved_after_all",
            kept,
            cause="what was given up stored its memory after all",
            actor="supervisor",
            evidence={"snapshot": snapshot.key, "lease": record.lease.id},
        )


_REMEDIES = {
    Phase.SUSPENDED: "Resume it from its last snapshot, or start fresh.",
    Phase.STOPPED: "Start it again.",
    Phase.FAILED: "Start it again; see its log.",
}


def after_loss(workload: Workload) -> Phase:
    """What becomes of it when its lease counts no more."""
    if workload.spec.kind is Kind.JOB:
        return Phase.CANCELLED if workload.phase is Phase.CANCELLING else Phase.QUEUED
    if workload.phase is Phase.STARTING:
        return Phase.FAILED
    if workload.phase in (Phase.RESUMING, Phase.FILLING):
        return Phase.SUSPENDED
    if workload.snapshot is not None and workload.desired is not Desired.STOPPED:
        return Phase.SUSPENDED
    return Phase.STOPPED
