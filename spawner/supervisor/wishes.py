"""What is wanted of this workload now, whoever said it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from scheduler_bridge.model.phases import Desired


class Action(StrEnum):
    """What a supervisor can be asked to do with its tree."""

    SUSPEND = "suspend"
    STOP = "stop"
    DETACH = "detach"
    YIELD_LEASE = "yield-lease"


@dataclass(frozen=True, slots=True)
class Wish:
    """An action with its author. `local` ones come from root on this machine, not by heartbeat."""

    action: Action
    reason: str
    actor: str
    local: bool = False


class Wishes:
    """The scheduler's desired state (a level that it can take back) and local requests (once).

    `changed` is set whenever `current()` may have a new answer. `clock` gives monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.changed = asyncio.Event()
        self._clock = clock
        self._lost_at = 0.0
        self._desired: Wish | None = None
        self._local: Wish | None = None
        self._lease_lost: Wish | None = None

    def hear(self, desired: Desired, reason: str, actor: str) -> None:
        """Take over what the scheduler's last answer says."""
        action = {Desired.SUSPENDED: Action.SUSPEND, Desired.STOPPED: Action.STOP}.get(desired)
        wish = None if action is None else Wish(action, reason, actor)
        if wish != self._desired:
            self._desired = wish
            self.changed.set()

    def ask(self, action: Action, *, reason: str, actor: str) -> None:
        """A request made on this machine. STOP is never replaced by a lesser one."""
        if self._local is not None and self._local.action is Action.STOP:
            return
        self._local = Wish(action, reason, actor, local=True)
        self.changed.set()

    def lose_lease(self, reason: str) -> None:
        """The lease belongs to this supervisor no longer."""
        if self._lease_lost is None:
            self._lease_lost = Wish(Action.YIELD_LEASE, reason, "scheduler")
            self._lost_at = self._clock()
            self.changed.set()

    def lease_lost_for(self) -> float:
        """Seconds since the lease was lost, 0 while it is held."""
        return self._clock() - self._lost_at if self._lease_lost is not None else 0.0

    def stop(self) -> Wish | None:
        """The wish to stop, if somebody has it."""
        wish = self.current()
        return wish if wish is not None and wish.action is Action.STOP else None

    async def until_stop(self) -> None:
        """Return once somebody wants it to stop. Only one task may wait for changes at a time."""
        while True:
            self.changed.clear()
            if self.stop() is not None:
                return
            await self.changed.wait()

    def answered(self, wish: Wish) -> None:
        """A local request was carried out or refused. Desired states stay until taken back."""
        if self._local == wish:
            self._local = None
        if self._lease_lost == wish:
            self._lease_lost = None

    def current(self) -> Wish | None:
        """The most urgent wish: stop, then a lost lease, then what was asked here, then desired."""
        for wish in (self._local, self._desired):
            if wish is not None and wish.action is Action.STOP:
                return wish
        return self._lease_lost or self._local or self._desired
