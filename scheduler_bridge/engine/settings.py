"""What an operator may tune, and the clock."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Protocol

from scheduler_bridge.policy.habits import Habits
from scheduler_bridge.policy.usage_window import UsageWindow
from scheduler_bridge.policy.values import Rules
from scheduler_bridge.policy.visibility import Visibility


class Clock(Protocol):
    """Tells UNIX seconds."""

    def now(self) -> float:
        """Seconds since 1970."""
        ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> float:
        return time.time()


class ManualClock:
    """Stands still until told otherwise. For tests and simulations."""

    def __init__(self, now: float = 1_000_000.0) -> None:
        self._now = now

    def now(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        """Move forward."""
        self._now += seconds


@dataclass(frozen=True, slots=True)
class Settings:
    """Times are seconds. `lease_margin` is added to `lease_seconds` before a silent holder counts
    as lost: it must be longer than clocks differ and a frozen holder needs to stop itself. A machine
    that has not answered for `silent_seconds` gets no new work. `queue_visibility` is what users are
    shown of others' work. Sums of GPU time are stored every `usage_stored_every`."""

    lease_seconds: float = 600.0
    lease_margin: float = 60.0
    silent_seconds: float = 60.0
    hold_seconds: float = 600.0
    failed_suspend_pause: float = 600.0
    retry_pause: float = 5.0
    launch_attempts: int = 3
    max_wait: float = 60.0
    rules: Rules = field(default_factory=Rules)
    habits: Habits = field(default_factory=Habits)
    usage_window: UsageWindow = field(default_factory=UsageWindow)
    usage_stored_every: float = 600.0
    queue_visibility: Visibility = Visibility.COUNTS
