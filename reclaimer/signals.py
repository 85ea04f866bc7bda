"""Telemetry as the scheduler passes it on -> samples, kept over a window for each session.

Everything here came from inside a session at some point and is treated as hearsay: what has the
wrong type or is missing becomes "not known", which is never idle.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from reclaimer.idleness import Assessment, Busy, Kernel, Sample, Terminal, Watch, assess
from reclaimer.policy import Announcement, Session
from scheduler_bridge.model.workload import Workload

_LONGEST_TEXT = 200
_MOST_BLOCKERS = 3
_KEPT_SAMPLES = 600
"""An upper bound on memory per session, far above a window of samples."""


def read_sample(workload: Workload) -> Sample | None:
    """The latest sample of a workload, dated by the older of its two clocks. None: there is none."""
    signals = workload.signals
    taken = _number(signals.get("sampled_at"))
    if taken is None or workload.signals_at is None:
        return None
    return Sample(
        at=min(taken, workload.signals_at),
        kernels=_kernels(signals.get("kernels")),
        terminals=_terminals(signals.get("terminals")),
        last_input=_number(signals.get("last_input")),
        cpu_seconds=_number(signals.get("cpu_seconds")),
        connections=_count(signals.get("connections")),
    )


def session_of(workload: Workload) -> Session:
    """What the policy needs to know of a running session."""
    signals = workload.signals
    return Session(
        id=workload.id,
        user=workload.spec.user,
        server=workload.spec.server,
        team=workload.spec.team,
        profile=workload.spec.profile,
        gpus=workload.spec.gpus * workload.spec.nodes,
        running_since=workload.phase_since,
        freezable=_claim(signals.get("freezable")),
        blockers=_sentences(signals.get("blockers")),
        announced=_announcement(workload),
    )


def _announcement(workload: Workload) -> Announcement | None:
    """What was published since it last started or came back; older news is about another time."""
    told = workload.idleness
    if told.since is None or told.suspend_at is None or told.suspend_at < workload.phase_since:
        return None
    return Announcement(told.since, told.suspend_at)


@dataclass(slots=True)
class Recorder:
    """Remembers samples of one session for as long as the verdict needs them."""

    active_until: float
    samples: deque[Sample] = field(default_factory=lambda: deque(maxlen=_KEPT_SAMPLES))

    @classmethod
    def at_first_sight(cls, workload: Workload, now: float) -> Recorder:
        """An earlier reclaimer's finding is kept. Without one, it counts as active until now: what
        happened before we looked (a burst of CPU, a terminal's job) cannot be known."""
        since = workload.idleness.since
        return cls(active_until=now if since is None else min(since, now))

    def note(self, sample: Sample | None) -> None:
        """Keep a sample if it is news."""
        if sample is not None and (not self.samples or sample.at > self.samples[-1].at):
            self.samples.append(sample)

    def assess(self, now: float, running_since: float, watch: Watch) -> Assessment:
        """Judge what was recorded; remembers the last moment of work."""
        found = assess(
            self.samples,
            now,
            running_since=running_since,
            active_until=self.active_until,
            watch=watch,
        )
        if isinstance(found, Busy):
            self.active_until = max(self.active_until, self.samples[-1].at)
        return found


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value < float("inf") else None


def _count(value: object) -> int | None:
    number = _number(value)
    return None if number is None else int(number)


def _claim(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


def _text(value: object) -> str | None:
    """Short and without control characters: it ends up on other people's screens."""
    if not isinstance(value, str):
        return None
    return "".join(char for char in value[:_LONGEST_TEXT] if char.isprintable())


def _mappings(value: object) -> list[Mapping[str, Any]] | None:
    """The list's entries; None if it is no list, or if an entry is not an object."""
    if not isinstance(value, list | tuple) or not all(isinstance(v, Mapping) for v in value):
        return None
    return list(value)


def _kernels(value: object) -> tuple[Kernel, ...] | None:
    entries = _mappings(value)
    if entries is None:
        return None
    return tuple(
        Kernel(
            id=_text(entry.get("id")) or "?",
            name=_text(entry.get("name")) or "",
            state=_text(entry.get("state")) or "unknown",
            since=_number(entry.get("since")),
            last_activity=_number(entry.get("last_activity")),
        )
        for entry in entries
    )


def _terminals(value: object) -> tuple[Terminal, ...] | None:
    entries = _mappings(value)
    if entries is None:
        return None
    return tuple(
        Terminal(
            name=_text(entry.get("name")) or "?",
            foreground=_claim(entry.get("foreground")),
            last_activity=_number(entry.get("last_activity")),
        )
        for entry in entries
    )


def _sentences(value: object) -> tuple[str, ...]:
    """Blockers as sentences; the first few say enough."""
    if not isinstance(value, list | tuple):
        return ()
    return tuple(text for text in map(_text, value[:_MOST_BLOCKERS]) if text)
