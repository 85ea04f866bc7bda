"""Errors of the scheduler and its clients.

SchedulerError
├── Refused            the request breaks a limit or a rule: limit and remedy are named (HTTP 422)
├── NotAllowed         not this caller's workload, or token or credential is wrong (401, 403)
├── NotFound           no such workload, lease or event (404)
├── Conflict           an illegal move, a stale epoch, a lost race (409)
├── TooOften           more requests than one user may make; later they are welcome (429)
└── Unavailable        the scheduler cannot be reached or is not ready (503, connection errors)
"""

from __future__ import annotations


class SchedulerError(Exception):
    """Base. `message` says what is wrong in plain words, `remedy` what the caller can do."""

    code = "scheduler_error"

    def __init__(self, message: str, *, remedy: str = "") -> None:
        super().__init__(message if not remedy else f"{message} {remedy}")
        self.message = message
        self.remedy = remedy


class Refused(SchedulerError):
    """The request breaks a limit or a rule and will never succeed as it is."""

    code = "refused"


class NotAllowed(SchedulerError):
    """The caller may not do this to this workload."""

    code = "not_allowed"


class NotFound(SchedulerError):
    """There is no such thing, or the caller may not know of it."""

    code = "not_found"


class Conflict(SchedulerError):
    """The world has moved on: an illegal move, a stale epoch, a lost race."""

    code = "conflict"


class TooOften(SchedulerError):
    """One user makes more requests than allowed. Nothing was done; after `retry_after` seconds the
    same request is welcome (0: unknown)."""

    code = "too_often"

    def __init__(self, message: str, *, remedy: str = "", retry_after: int = 0) -> None:
        super().__init__(message, remedy=remedy)
        self.retry_after = retry_after


class Unavailable(SchedulerError):
    """Nobody answered. Nothing is known; nothing may be concluded."""

    code = "unavailable"
