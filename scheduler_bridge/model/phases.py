"""Phases of sessions and jobs, and the one table of legal moves between them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Kind(StrEnum):
    """What a workload is."""

    SESSION = "session"
    JOB = "job"


class Phase(StrEnum):
    """Where a workload is in its life."""

    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    SUSPENDING = "suspending"
    PARKED = "parked"
    SUSPENDED = "suspended"
    RESUMING = "resuming"
    FILLING = "filling"
    PREEMPTING = "preempting"
    RECOVERING = "recovering"
    CANCELLING = "cancelling"
    LOST = "lost"
    STOPPED = "stopped"
    FAILED = "failed"
    SUCCEEDED = "succeeded"
    CANCELLED = "cancelled"


class Desired(StrEnum):
    """What somebody entitled wants a workload to become; the supervisor learns it by heartbeat."""

    RUNNING = "running"
    SUSPENDED = "suspended"
    STOPPED = "stopped"


TERMINAL: Final = frozenset({Phase.STOPPED, Phase.FAILED, Phase.SUCCEEDED, Phase.CANCELLED})
"""No move leads out of these; a workload's key is free again once it is in one."""

HOLDS_LEASE: Final = frozenset(
    {
        Phase.STARTING,
        Phase.RUNNING,
        Phase.SUSPENDING,
        Phase.RESUMING,
        Phase.FILLING,
        Phase.PREEMPTING,
        Phase.RECOVERING,
        Phase.CANCELLING,
        Phase.LOST,
    }
)
"""Phases in which a workload may own GPUs (a lost one until its sandbox is proven empty)."""

_SESSION: Final[dict[Phase, frozenset[Phase]]] = {
    Phase.QUEUED: frozenset({Phase.STARTING, Phase.RESUMING, Phase.SUSPENDED, Phase.STOPPED}),
    Phase.STARTING: frozenset({Phase.RUNNING, Phase.QUEUED, Phase.STOPPED, Phase.FAILED}),
    Phase.RUNNING: frozenset({Phase.SUSPENDING, Phase.STOPPED, Phase.LOST}),
    Phase.SUSPENDING: frozenset({Phase.RUNNING, Phase.PARKED, Phase.SUSPENDED, Phase.LOST}),
    Phase.PARKED: frozenset({Phase.RUNNING, Phase.SUSPENDED, Phase.LOST}),
    Phase.SUSPENDED: frozenset({Phase.QUEUED, Phase.STOPPED}),
    Phase.RESUMING: frozenset({Phase.FILLING, Phase.SUSPENDED}),
    Phase.FILLING: frozenset({Phase.RUNNING, Phase.SUSPENDED}),
    Phase.LOST: frozenset({Phase.RUNNING, Phase.SUSPENDED, Phase.STOPPED}),
}

_JOB_ENDS: Final = frozenset({Phase.CANCELLING})
_JOB: Final[dict[Phase, frozenset[Phase]]] = {
    Phase.QUEUED: frozenset({Phase.STARTING, Phase.CANCELLED, Phase.FAILED}),
    Phase.STARTING: frozenset({Phase.RUNNING, Phase.QUEUED, Phase.FAILED}) | _JOB_ENDS,
    Phase.RUNNING: frozenset(
        {Phase.SUCCEEDED, Phase.FAILED, Phase.PREEMPTING, Phase.RECOVERING, Phase.LOST}
    )
    | _JOB_ENDS,
    Phase.PREEMPTING: frozenset({Phase.QUEUED, Phase.SUCCEEDED, Phase.FAILED}) | _JOB_ENDS,
    Phase.RECOVERING: frozenset({Phase.QUEUED}) | _JOB_ENDS,
    Phase.LOST: frozenset({Phase.RUNNING, Phase.QUEUED}) | _JOB_ENDS,
    Phase.CANCELLING: frozenset({Phase.CANCELLED}),
}

LEGAL_MOVES: Final[dict[Kind, dict[Phase, frozenset[Phase]]]] = {
    Kind.SESSION: _SESSION,
    Kind.JOB: _JOB,
}


@dataclass(frozen=True, slots=True)
class Deadline:
    """How long a transient phase may last, in seconds, and the phase that ends it."""

    seconds: float
    outcome: Phase


DEADLINES: Final[dict[Kind, dict[Phase, Deadline]]] = {
    Kind.SESSION: {
        Phase.STARTING: Deadline(300.0, Phase.FAILED),
        Phase.SUSPENDING: Deadline(1800.0, Phase.RUNNING),
        Phase.RESUMING: Deadline(600.0, Phase.SUSPENDED),
        Phase.FILLING: Deadline(3600.0, Phase.SUSPENDED),
    },
    Kind.JOB: {
        Phase.STARTING: Deadline(300.0, Phase.QUEUED),
        Phase.PREEMPTING: Deadline(300.0, Phase.QUEUED),
        Phase.CANCELLING: Deadline(300.0, Phase.CANCELLED),
    },
}
"""A deadline never frees GPUs by itself: the lease ends only when the sandbox is proven empty."""


def is_legal(kind: Kind, source: Phase, target: Phase) -> bool:
    """Whether `LEGAL_MOVES` allows the move."""
    return target in LEGAL_MOVES[kind].get(source, frozenset())
