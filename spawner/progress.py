"""What a waiting user is told: a history that any number of open tabs may read, late or twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from html import escape

from scheduler_bridge.model.phases import Phase
from scheduler_bridge.model.workload import Workload


@dataclass(frozen=True, slots=True)
class ProgressEvent:
    """One line for the user; `percent` moves the bar (0 to 100)."""

    percent: int
    message: str

    def as_hub_event(self) -> dict[str, object]:
        """The form in which the Hub streams it. The HTML is escaped here: the Hub does not."""
        return {
            "progress": self.percent,
            "message": self.message,
            "html_message": escape(self.message),
        }


class ProgressLog:
    """The lines of one start. Reading never consumes; every reader gets all from the beginning."""

    def __init__(self) -> None:
        self._events: list[ProgressEvent] = []
        self._changed = asyncio.Event()
        self._is_closed = False

    def say(self, percent: int, message: str) -> None:
        """Add a line. Saying the same thing twice in a row adds nothing; the bar never goes back."""
        percent = max(percent, self._events[-1].percent if self._events else 0)
        event = ProgressEvent(percent, message)
        if self._events and self._events[-1] == event:
            return
        self._events.append(event)
        self._wake()

    def close(self) -> None:
        """No more lines: readers come to their end."""
        self._is_closed = True
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    @property
    def history(self) -> tuple[ProgressEvent, ...]:
        return tuple(self._events)

    async def read(self) -> AsyncIterator[ProgressEvent]:
        """All lines so far, then each new one, until `close`."""
        index = 0
        while True:
            changed = self._changed
            while index < len(self._events):
                yield self._events[index]
                index += 1
            if self._is_closed and index == len(self._events):
                return
            if changed is self._changed:
                await changed.wait()


def waiting_sentence(workload: Workload) -> str:
    """Where a queued session stands and why, in plain words."""
    return f"{_place(workload)}. {_reason(workload)}".rstrip()


def place_kept_sentence(workload: Workload) -> str:
    """What somebody is told whose wait was ended by the Hub, not by the queue."""
    told = f"{_place(workload)}; your place is kept. {_reason(workload)}".rstrip()
    return (
        f"{told} Your session starts by itself as soon as it is your turn. You may close this page."
    )


def _place(workload: Workload) -> str:
    if workload.position is None:
        return "You are in the queue"
    return "You are next" if workload.position == 1 else f"You are number {workload.position}"


def _reason(workload: Workload) -> str:
    reason = workload.wait_reason.strip().rstrip(".")
    return f"{reason[:1].upper()}{reason[1:]}." if reason else ""


_PHASE_WORDS = {
    Phase.STARTING: (60, "A place was found. Your session is starting."),
    Phase.RESUMING: (60, "A place was found. Your session is being brought back."),
    Phase.FILLING: (80, "Your session is back; its memory is still arriving."),
    Phase.RUNNING: (85, "Your session is running. Connecting."),
    Phase.SUSPENDING: (20, "Your session is being saved right now; it comes back right after."),
    Phase.SUSPENDED: (10, "Your suspended session was found. Asking for a place."),
    Phase.PARKED: (15, "Your session is being stored; it comes back right after."),
    Phase.LOST: (15, "Contact with your session was lost; checking what is left of it."),
}


def phase_line(workload: Workload) -> tuple[int, str]:
    """Percent and sentence for a workload that is on its way."""
    if workload.phase is Phase.QUEUED:
        return 30, waiting_sentence(workload)
    return _PHASE_WORDS.get(workload.phase, (50, "Your session is on its way."))
