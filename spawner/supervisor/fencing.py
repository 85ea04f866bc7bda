"""Self-fencing: a holder that cannot renew its lease stops its own tree."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_log = logging.getLogger(__name__)

CHECKS_PER_PERIOD = 10


class Fence:
    """Halts the tree after `seconds` without a renewal and lets it go on with the next one.

    `halt` and `go_on` must be safe to repeat. `clock` gives monotonic seconds. A lease that names no
    GPU needs no fence: nobody else can be given what it holds.
    """

    def __init__(
        self,
        seconds: float,
        *,
        halt: Callable[[], None],
        go_on: Callable[[float], None],
        clock: Callable[[], float],
        needed: bool = True,
    ) -> None:
        self._seconds = seconds
        self._halt = halt
        self._go_on = go_on
        self._clock = clock
        self._needed = needed
        self._renewed_at = clock()
        self._halted_at: float | None = None
        self._held_open = 0

    @property
    def is_halted(self) -> bool:
        """Whether the tree stands still because of this fence."""
        return self._halted_at is not None

    def renewed(self) -> None:
        """The scheduler confirmed the lease."""
        self._renewed_at = self._clock()
        self.open()

    def close(self) -> None:
        """Stop the tree now, unless it is held open."""
        if self._halted_at is None and not self._held_open:
            self._halted_at = self._clock()
            self._halt()

    def open(self) -> None:
        """Let the tree go on; it is told how many seconds it stood still."""
        if self._halted_at is not None:
            stood = self._clock() - self._halted_at
            self._halted_at = None
            self._go_on(stood)

    @contextmanager
    def held_open(self) -> Iterator[None]:
        """The tree is not halted in here: it is being frozen, and would be restored as halted."""
        self._held_open += 1
        self.open()
        try:
            yield
        finally:
            self._held_open -= 1

    def check(self) -> None:
        """Close if the lease was not renewed for too long."""
        silent = self._clock() - self._renewed_at
        if self._held_open or not self._needed or self._halted_at is not None:
            return
        if silent > self._seconds:
            _log.error("the lease was not renewed for %.0f s: the tree is halted", silent)
            self.close()

    async def run(self) -> None:
        """Check until cancelled."""
        while True:
            await asyncio.sleep(min(self._seconds / CHECKS_PER_PERIOD, 5.0))
            self.check()
