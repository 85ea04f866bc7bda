"""Why a workload is where it is, from what is stored."""

from __future__ import annotations

from typing import Any, Final

from scheduler_bridge.engine.books import Books
from scheduler_bridge.model.phases import Desired, Phase
from scheduler_bridge.model.workload import Explanation, Forecast, Workload
from scheduler_bridge.policy.values import Wait
from scheduler_bridge.policy.wording import gpus, wait_remedy, wait_sentence

_TEXTS: Final[dict[Phase, str]] = {
    Phase.QUEUED: "It is about to be considered.",
    Phase.STARTING: "It has its place and is being started.",
    Phase.RUNNING: "It runs.",
    Phase.SUSPENDING: "Its memory is being stored.",
    Phase.PARKED: "Its GPUs are given back and its memory is being stored.",
    Phase.SUSPENDED: "It is suspended; its memory is stored and it holds no GPU.",
    Phase.RESUMING: "It has its place and is being resumed.",
    Phase.FILLING: "It runs already while the rest of its memory is being read.",
    Phase.PREEMPTING: "It is being ended to make room, and will be queued again.",
    Phase.RECOVERING: "It is being restarted after a failure of its machine.",
    Phase.CANCELLING: "It is being cancelled.",
    Phase.LOST: "Its supervisor does not report, and its processes are not proven to be gone.",
    Phase.STOPPED: "It was stopped.",
    Phase.FAILED: "It failed.",
    Phase.SUCCEEDED: "It ended successfully.",
    Phase.CANCELLED: "It was cancelled.",
}


def explain(
    books: Books, workload: Workload, wait: Wait | None = None, resume: Forecast | None = None
) -> Explanation:
    """One dominant reason. `wait`: why a queued workload waits; `resume`: what would come of a resume
    now, of a suspended session."""
    if wait is not None:
        return Explanation(
            workload.id,
            wait.reason.value,
            wait_sentence(wait.reason, wait.evidence),
            {"position": wait.position, **wait.evidence},
            wait_remedy(wait.reason),
        )
    return Explanation(
        workload.id,
        workload.phase.value,
        _text(workload, resume),
        _evidence(books, workload),
        workload.remedy or (resume.remedy if resume and not resume.possible else ""),
        resume,
    )


def _text(workload: Workload, resume: Forecast | None) -> str:
    parts = [_TEXTS[workload.phase]]
    if workload.lease is not None and workload.lease.gpus:
        parts.append(f"It holds {gpus(len(workload.lease.gpus))}.")
    if workload.desired is not Desired.RUNNING and workload.desired_reason:
        parts.append(
            f"{workload.desired_by or 'Somebody'} wants it {workload.desired.value}: "
            f"{_sentence(workload.desired_reason)}"
        )
    if workload.last_error:
        parts.append(_sentence(workload.last_error))
    if resume is not None:
        parts.append("It would resume now." if resume.now else f"Resumed now, {_later(resume)}")
    return " ".join(parts)


def _later(resume: Forecast) -> str:
    return f"it would wait: {resume.text}" if resume.possible else f"it could not: {resume.text}"


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _evidence(books: Books, workload: Workload) -> dict[str, Any]:
    evidence: dict[str, Any] = {"since": workload.phase_since, "desired": workload.desired.value}
    history = books.store.history(workload.id)
    last = next((e for e in reversed(history) if e.kind == "phase"), None)
    if last is not None:
        evidence |= {"event": last.id, "cause": last.cause, "actor": last.actor, **last.evidence}
    return evidence
