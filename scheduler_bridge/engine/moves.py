"""What a lease's holder reports about its own sandbox."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from scheduler_bridge.engine.books import Draft
from scheduler_bridge.errors import Conflict, Refused
from scheduler_bridge.model.phases import (
    HOLDS_LEASE,
    LEGAL_MOVES,
    Desired,
    Kind,
    Phase,
    is_legal,
)
from scheduler_bridge.model.workload import SnapshotRef, Workload
from scheduler_bridge.store.base import LeaseRecord

_BRIDGES: Final = (
    Phase.FILLING,
    Phase.RUNNING,
    Phase.SUSPENDING,
    Phase.PREEMPTING,
    Phase.CANCELLING,
)
"""A holder may report the end of a step whose beginning it could not report (we were away)."""

_NOT_ASKED: Final = frozenset({Phase.RUNNING, Phase.LOST})
"""Whoever is suspended from here without us knowing of a beginning was not asked by us."""

_UNDONE_RESUME: Final = frozenset({Phase.RESUMING, Phase.FILLING})
_ACTOR: Final = "supervisor"


@dataclass(frozen=True, slots=True)
class Told:
    """What a holder reports: the phase its sandbox is in now, why, and what it brings along."""

    target: Phase
    cause: str
    evidence: Mapping[str, Any] = field(default_factory=dict)
    snapshot: SnapshotRef | None = None
    exit_code: int | None = None


def move_by_holder(
    draft: Draft, record: LeaseRecord, workload: Workload, told: Told, *, withdrawn: bool
) -> Workload:
    """Stage the move, the release that may come with it, and what follows from it by itself.

    `withdrawn`: a suspend was wanted and then not; one that happens nevertheless is followed by a
    resume. Raises `Conflict` for an illegal move, `Refused` for a suspend without snapshot.
    """
    before = workload
    told = replace(told, target=_as_cancelled(workload, told.target))
    undoes_resume = before.phase in _UNDONE_RESUME and told.target is Phase.SUSPENDED
    _check_snapshot(workload, told.target, told.snapshot, undoes_resume)
    for step in _path(workload, told.target):
        evidence = told.evidence if step is told.target else None
        workload = draft.move(workload, step, cause=told.cause, actor=_ACTOR, evidence=evidence)
    failed = told.target is Phase.FAILED or undoes_resume or _undid_suspend(before, told.target)
    workload = draft.put(_with_what_it_brings(workload, before, told, failed=failed))
    if told.target not in HOLDS_LEASE:
        draft.release(record, ended_as=told.target, cause=told.cause, actor=_ACTOR)
    return _follow_up(
        draft,
        draft.workload(workload.id),
        before=before,
        undoes_resume=undoes_resume,
        withdrawn=withdrawn,
    )


def _with_what_it_brings(
    workload: Workload, before: Workload, told: Told, *, failed: bool
) -> Workload:
    """An error is kept until the workload runs again, or until a newer one takes its place."""
    error, remedy = workload.last_error, workload.remedy
    if told.target is Phase.RUNNING:
        error, remedy = "", ""
    if failed:
        error, remedy = told.cause, ""
    return replace(
        workload,
        snapshot=told.snapshot or workload.snapshot,
        exit_code=workload.exit_code if told.exit_code is None else told.exit_code,
        log_path=str(told.evidence.get("log_path") or workload.log_path),
        last_error=str(told.evidence.get("error") or error),
        remedy=str(told.evidence.get("remedy") or remedy),
        attempt=_attempt(workload, before, told.target),
    )


def _as_cancelled(workload: Workload, target: Phase) -> Phase:
    """A job that ends by itself while it is being cancelled is cancelled."""
    if workload.phase is Phase.CANCELLING and target in (
        Phase.SUCCEEDED,
        Phase.FAILED,
        Phase.QUEUED,
    ):
        return Phase.CANCELLED
    return target


def _path(workload: Workload, target: Phase) -> tuple[Phase, ...]:
    kind, source = workload.spec.kind, workload.phase
    if is_legal(kind, source, target):
        return (target,)
    for bridge in _BRIDGES:
        if is_legal(kind, source, bridge) and is_legal(kind, bridge, target):
            return (bridge, target)
    legal = ", ".join(sorted(p.value for p in LEGAL_MOVES[kind].get(source, frozenset())))
    raise Conflict(
        f"{workload.id} is {source.value}; it cannot become {target.value}"
        f" (only: {legal or 'nothing, it has ended'})."
    )


def _check_snapshot(
    workload: Workload, target: Phase, snapshot: SnapshotRef | None, undoes_resume: bool
) -> None:
    if target is not Phase.SUSPENDED or undoes_resume:
        return
    if snapshot is None:
        raise Refused("snapshot: a suspended session needs the snapshot that was committed.")
    known = workload.snapshot
    if known and (snapshot.epoch, snapshot.sequence) < (known.epoch, known.sequence):
        raise Conflict(f"{workload.id} has a newer snapshot than {snapshot.key}.")


def _undid_suspend(before: Workload, target: Phase) -> bool:
    return before.phase is Phase.SUSPENDING and target is Phase.RUNNING


def _attempt(workload: Workload, before: Workload, target: Phase) -> int:
    if workload.spec.kind is Kind.SESSION:
        return 0 if target is Phase.RUNNING else workload.attempt
    return workload.attempt + (target is Phase.QUEUED and before.phase is not Phase.QUEUED)


def _follow_up(
    draft: Draft, workload: Workload, *, before: Workload, undoes_resume: bool, withdrawn: bool
) -> Workload:
    of_its_own = workload.desired is Desired.RUNNING and not withdrawn
    if workload.phase is Phase.SUSPENDING and of_its_own:
        # its own decision (a signal, its control socket): it is not to be resumed right away
        return want(draft, workload, Desired.SUSPENDED, "supervisor", "suspended on the node")
    if workload.phase is Phase.SUSPENDED and of_its_own and before.phase in _NOT_ASKED:
        return want(draft, workload, Desired.SUSPENDED, "supervisor", "suspended on the node")
    if undoes_resume and workload.desired is Desired.RUNNING:
        return want(draft, workload, Desired.SUSPENDED, "scheduler", "the resume failed")
    if _undid_suspend(before, workload.phase) and workload.desired is Desired.SUSPENDED:
        return want(draft, workload, Desired.RUNNING, "scheduler", "the suspend failed")
    if workload.phase is Phase.SUSPENDED and workload.desired is Desired.STOPPED:
        return draft.move(
            workload, Phase.STOPPED, cause=workload.desired_reason, actor=workload.desired_by
        )
    if workload.phase is Phase.SUSPENDED and workload.desired is Desired.RUNNING:
        return draft.move(
            workload, Phase.QUEUED, cause=workload.desired_reason, actor=workload.desired_by
        )
    if workload.phase is Phase.QUEUED and workload.desired is not Desired.RUNNING:
        return want(draft, workload, Desired.RUNNING, "scheduler", "queued again")
    return workload


def want(draft: Draft, workload: Workload, desired: Desired, actor: str, reason: str) -> Workload:
    """Stage what is desired, with its event."""
    draft.note(
        "desired",
        workload,
        cause=reason,
        actor=actor,
        source=workload.desired.value,
        target=desired.value,
    )
    return draft.put(replace(workload, desired=desired, desired_by=actor, desired_reason=reason))
