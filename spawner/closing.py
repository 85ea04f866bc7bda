"""Ending a session for the Hub: suspend it, or stop it where it cannot be frozen. Never by force:
a suspend that fails leaves the session running."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from scheduler_bridge.errors import SchedulerError
from scheduler_bridge.model.phases import Desired, Phase
from scheduler_bridge.plugin import SchedulerPlugin
from spawner.hosting import NotReachable, Seen, SessionHost

LOOK_SECONDS: Final = 0.05
BEGIN_SECONDS: Final = 30.0


class Close(StrEnum):
    """What became of the session."""

    SUSPENDED = "suspended"
    ENDED = "ended"
    STILL_RUNNING = "still_running"


@dataclass(frozen=True, slots=True)
class Closed:
    """The result, with the reason and the remedy where the session still runs."""

    result: Close
    why: str = ""
    remedy: str = ""


class Closing:
    """One attempt to end a session."""

    def __init__(
        self,
        plugin: SchedulerPlugin,
        host: SessionHost,
        workload_id: str,
        *,
        actor: str,
        clock: Callable[[], float],
    ) -> None:
        self._plugin = plugin
        self._host = host
        self._id = workload_id
        self._actor = actor
        self._clock = clock

    async def suspend(self, *, reason: str, limit: float) -> Closed:
        """Ask for a suspend and wait for its commit, at most `limit` seconds."""
        before = self._host.observe(self._id)
        if not before.is_live:
            return _result(before)
        if not await self._ask("suspend", Desired.SUSPENDED, reason):
            return Closed(
                Close.STILL_RUNNING,
                "Neither the session's supervisor nor the scheduler answers.",
                "The session goes on; it is found again when you open it.",
            )
        return await self._await_suspended(before, limit)

    async def stop(self, *, reason: str, limit: float) -> Closed:
        """End the session; its memory is lost, its files stay."""
        if not await self._ask("stop", Desired.STOPPED, reason):
            return Closed(Close.STILL_RUNNING, "Nobody answers who could stop the session.")
        deadline = self._clock() + limit
        while self._clock() < deadline:
            seen = self._host.observe(self._id)
            if not seen.is_live:
                return _result(seen)
            await asyncio.sleep(LOOK_SECONDS)
        return Closed(Close.STILL_RUNNING, f"The session did not end within {limit:.0f} s.")

    async def _ask(self, command: str, desired: Desired, reason: str) -> bool:
        """Tell both: the supervisor acts at once, the scheduler remembers what is wanted."""
        is_heard = False
        try:
            await self._host.ask(self._id, command, actor=self._actor, reason=reason)
            is_heard = True
        except NotReachable:
            is_heard = False
        try:
            await self._plugin.desire(self._id, desired, actor=self._actor, reason=reason)
        except SchedulerError:
            return is_heard
        return True

    async def _await_suspended(self, before: Seen, limit: float) -> Closed:
        start = self._clock()
        has_begun = False
        while self._clock() - start < limit:
            seen = self._host.observe(self._id)
            if not seen.is_live:
                return _result(seen)
            if _is_another(before, seen):
                return Closed(Close.SUSPENDED, "It was opened again right after.")
            phase = seen.status.phase if seen.status else ""
            has_begun = has_begun or phase == Phase.SUSPENDING or _has_moved(before, seen)
            if phase == Phase.RUNNING and seen.status and seen.status.error and has_begun:
                return Closed(Close.STILL_RUNNING, seen.status.error, seen.status.remedy)
            if not has_begun and self._clock() - start > BEGIN_SECONDS:
                return Closed(Close.STILL_RUNNING, "The suspend did not begin.", "Try again.")
            await asyncio.sleep(LOOK_SECONDS)
        return Closed(Close.STILL_RUNNING, f"The suspend took longer than {limit:.0f} s.")


def _is_another(before: Seen, seen: Seen) -> bool:
    """Whether other processes live now: the ones that were asked ended between two looks."""
    if before.status is None or seen.status is None:
        return False
    old, new = before.status.sandbox, seen.status.sandbox
    return old is not None and new is not None and old != new


def _has_moved(before: Seen, seen: Seen) -> bool:
    """Whether a suspend came and went between two looks: its traces differ."""
    if before.status is None or seen.status is None:
        return False
    return (before.status.error, before.status.steps) != (seen.status.error, seen.status.steps)


def _result(seen: Seen) -> Closed:
    if seen.is_suspended:
        return Closed(Close.SUSPENDED)
    error = seen.status.error if seen.status else ""
    return Closed(Close.ENDED, error, seen.status.remedy if seen.status else "")
