"""What a supervisor knows about activity, as it goes into each heartbeat (pure).

Absent always means unknown. Nothing here turns a missing value into one that looks idle.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from snapshot.inspection.verdict import Verdict
from snapshot.model import Blocker

INNER_FRESH_SECONDS = 15.0
"""Older words from inside the session are no longer told: it may be stuck, or gone."""

HOLD_LIMIT_SECONDS = 60.0
"""The longest that something inside a session may delay a suspend that others asked for."""


class KernelState(StrEnum):
    """What a kernel does. `unknown` covers starting, restarting and whatever is new to us."""

    BUSY = "busy"
    IDLE = "idle"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class KernelSignal:
    """One kernel. `since` is when it entered `state`, times in UNIX seconds, None unknown."""

    id: str
    name: str = ""
    state: KernelState = KernelState.UNKNOWN
    since: float | None = None
    last_activity: float | None = None


@dataclass(frozen=True, slots=True)
class TerminalSignal:
    """One terminal. `foreground` True: a program other than the shell is in front; None unknown."""

    name: str
    foreground: bool | None = None
    last_activity: float | None = None


@dataclass(frozen=True, slots=True)
class Hold:
    """A wish from inside to wait with a suspend. Only ever shortened (`HOLD_LIMIT_SECONDS`)."""

    seconds: float
    reason: str = ""


@dataclass(frozen=True, slots=True)
class InnerReport:
    """What the server extension says, about every two seconds. `last_input` is when a person last
    ran or edited something; `connections` counts open kernel and terminal sockets."""

    kernels: tuple[KernelSignal, ...] | None = None
    terminals: tuple[TerminalSignal, ...] | None = None
    last_input: float | None = None
    connections: int | None = None
    hold: Hold | None = None


@dataclass(frozen=True, slots=True)
class Signals:
    """The sample in a heartbeat, as `Report.signals` (see `as_dict`).

    `cpu_seconds` is what all processes of the tree used so far and may only be compared between
    samples of one supervisor. `freezable`, `blockers` and what a suspend would cost (`suspend_bytes` of
    memory at most, `suspend_seconds`, `closing_connections` to outside) are at most a minute or so
    old. `hold_until` tells until when something inside asks not to be suspended. All times are UNIX
    seconds.
    """

    sampled_at: float
    kernels: tuple[KernelSignal, ...] | None = None
    terminals: tuple[TerminalSignal, ...] | None = None
    last_input: float | None = None
    cpu_seconds: float | None = None
    connections: int | None = None
    freezable: bool | None = None
    blockers: tuple[str, ...] | None = None
    suspend_bytes: int | None = None
    suspend_seconds: float | None = None
    closing_connections: int | None = None
    hold_until: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready; what is unknown is left out."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, slots=True)
class Heard:
    """The newest words from inside, and when they came (UNIX seconds)."""

    report: InnerReport = field(default_factory=InnerReport)
    at: float = float("-inf")
    hold_until: float | None = None

    def is_fresh(self, now: float) -> bool:
        """Whether they still count as knowledge."""
        return now - self.at <= INNER_FRESH_SECONDS

    def hear(self, report: InnerReport, now: float) -> Heard:
        """The same with `report` as the newest. A hold counts from the moment it was heard."""
        if report.hold is None:
            return Heard(report, now, self.hold_until)
        seconds = min(max(report.hold.seconds, 0.0), HOLD_LIMIT_SECONDS)
        return Heard(report, now, now + seconds if seconds else None)


def describe(blocker: Blocker) -> str:
    """One or two sentences for people: who blocks, with what, and what helps."""
    what = blocker.what.rstrip(".")
    if blocker.command:
        return f"{blocker.command} (process {blocker.pid}): {what}. {blocker.remedy}".strip()
    return f"{what[:1].upper()}{what[1:]}. {blocker.remedy}".strip()


def compose(
    now: float,
    heard: Heard,
    *,
    cpu_seconds: float | None,
    blockers: tuple[Blocker, ...] | None,
    verdict: Verdict | None = None,
) -> Signals:
    """One sample out of what came from inside, /proc and the last inspection."""
    report = heard.report if heard.is_fresh(now) else InnerReport()
    held = heard.hold_until is not None and heard.hold_until > now
    return Signals(
        sampled_at=now,
        kernels=report.kernels,
        terminals=report.terminals,
        last_input=report.last_input,
        cpu_seconds=cpu_seconds,
        connections=report.connections,
        freezable=None if blockers is None else not blockers,
        blockers=None if blockers is None else tuple(describe(each) for each in blockers),
        suspend_bytes=verdict.bytes if verdict else None,
        suspend_seconds=verdict.seconds if verdict else None,
        closing_connections=verdict.outside if verdict else None,
        hold_until=heard.hold_until if held else None,
    )
