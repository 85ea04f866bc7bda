"""What somebody wants a workload to become, and what can be done about it at once."""

from __future__ import annotations

from scheduler_bridge.engine.books import Draft
from scheduler_bridge.engine.fitting import refuse_if_nowhere
from scheduler_bridge.engine.moves import want
from scheduler_bridge.errors import Conflict, Refused
from scheduler_bridge.model.phases import TERMINAL, Desired, Kind, Phase, is_legal
from scheduler_bridge.model.workload import Workload


def desire(
    draft: Draft, workload: Workload, desired: Desired, *, actor: str, reason: str
) -> Workload:
    """Stage the wish, and every move for which no supervisor is needed. Idempotent."""
    if workload.phase in TERMINAL:
        if desired is Desired.STOPPED:
            return workload
        raise Conflict(
            f"{workload.id} has ended ({workload.phase.value}).", remedy="Start a new one."
        )
    if workload.desired is not desired:
        workload = want(draft, workload, desired, actor, reason)
    handler = {
        (Kind.SESSION, Desired.RUNNING): _run_session,
        (Kind.SESSION, Desired.SUSPENDED): _suspend_session,
        (Kind.SESSION, Desired.STOPPED): _stop_session,
        (Kind.JOB, Desired.RUNNING): _run_job,
        (Kind.JOB, Desired.SUSPENDED): _suspend_job,
        (Kind.JOB, Desired.STOPPED): _cancel_job,
    }[workload.spec.kind, desired]
    return handler(draft, workload, actor, reason)


def _run_session(draft: Draft, workload: Workload, actor: str, reason: str) -> Workload:
    if workload.phase is Phase.SUSPENDED:
        refuse_if_nowhere(workload, draft.books.nodes)
        return draft.move(
            workload, Phase.QUEUED, cause=reason, actor=actor, attempt=0, last_error="", remedy=""
        )
    return workload


def _suspend_session(draft: Draft, workload: Workload, actor: str, reason: str) -> Workload:
    if workload.phase is Phase.QUEUED and workload.snapshot is None:
        raise Conflict(
            f"{workload.id} has not started yet; there is nothing to suspend.",
            remedy="Stop it instead.",
        )
    if workload.phase is Phase.QUEUED:
        return draft.move(workload, Phase.SUSPENDED, cause=reason, actor=actor)
    if workload.phase is Phase.RESUMING and _give_back(draft, workload, actor, reason):
        return draft.move(draft.workload(workload.id), Phase.SUSPENDED, cause=reason, actor=actor)
    return workload


def _stop_session(draft: Draft, workload: Workload, actor: str, reason: str) -> Workload:
    if workload.phase in (Phase.STARTING, Phase.RESUMING):
        if not _give_back(draft, workload, actor, reason):
            return workload
        workload = draft.workload(workload.id)
        if workload.phase is Phase.RESUMING:
            workload = draft.move(workload, Phase.SUSPENDED, cause=reason, actor=actor)
    elif workload.phase not in (Phase.QUEUED, Phase.SUSPENDED):
        return workload
    return draft.move(workload, Phase.STOPPED, cause=reason, actor=actor)


def _run_job(_draft: Draft, workload: Workload, _actor: str, _reason: str) -> Workload:
    if workload.phase is Phase.CANCELLING:
        raise Conflict(f"{workload.id} is being cancelled already.", remedy="Submit the job again.")
    return workload


def _suspend_job(_draft: Draft, workload: Workload, _actor: str, _reason: str) -> Workload:
    raise Refused(
        f"{workload.id} is a job; jobs are not suspended by hand.", remedy="Cancel it instead."
    )


def _cancel_job(draft: Draft, workload: Workload, actor: str, reason: str) -> Workload:
    if workload.phase is Phase.QUEUED:
        return draft.move(workload, Phase.CANCELLED, cause=reason, actor=actor)
    if is_legal(Kind.JOB, workload.phase, Phase.CANCELLING):
        given_back = _give_back(draft, workload, actor, reason)
        workload = draft.move(
            draft.workload(workload.id), Phase.CANCELLING, cause=reason, actor=actor
        )
        if given_back:
            return draft.move(workload, Phase.CANCELLED, cause=reason, actor=actor)
    return workload


def _give_back(draft: Draft, workload: Workload, actor: str, reason: str) -> bool:
    """Release a lease that nobody has taken up: there cannot be a sandbox."""
    record = draft.record(workload.lease.id) if workload.lease else None
    if record is None or record.taken_at is not None:
        return False
    draft.release(record, ended_as=workload.phase, cause=reason, actor=actor)
    return True
