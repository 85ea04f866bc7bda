"""Remembers the newest words from inside, and until when they ask to wait."""

from __future__ import annotations

from collections.abc import Callable

from spawner.supervisor.signals import Heard, InnerReport


class Ear:
    """Given each report by the inner socket. `now` gives UNIX seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.heard = Heard()

    def hear(self, report: InnerReport) -> None:
        """Take a report as the newest."""
        self.heard = self.heard.hear(report, self._now())

    def hold_remaining(self, now: float) -> float:
        """Seconds for which something inside still asks not to be suspended; at most the limit."""
        until = self.heard.hold_until
        return 0.0 if until is None else max(until - now, 0.0)
