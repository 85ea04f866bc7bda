"""One supervisor that waits with everything imported, so that a session comes back sooner.

Importing costs a supervisor half a second of processor time, which is a good part of a resume. The
Hub keeps one waiting; starting a session uses it up, and another is made when the machine has had
time to finish that start. It ends with the Hub: its standard input closes.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

REFILL_SECONDS: Final = 2.5
"""Until the next one is made: the session that was just started has the processors first."""


class WarmSupervisors:
    """Keeps at most one waiting supervisor. Safe to use from threads; never raises."""

    def __init__(
        self,
        argv: tuple[str, ...],
        environment: Mapping[str, str],
        *,
        delay: float = REFILL_SECONDS,
    ) -> None:
        self._argv, self._environment, self._delay = argv, dict(environment), delay
        self._lock = threading.Lock()
        self._waiting: subprocess.Popen[bytes] | None = None
        self._timer: threading.Timer | None = None

    @property
    def waiting(self) -> subprocess.Popen[bytes] | None:
        """The one that waits now."""
        return self._waiting

    def take(self) -> subprocess.Popen[bytes] | None:
        """The one that waits, if it does; it reads the path of an order as one line."""
        with self._lock:
            taken, self._waiting = self._waiting, None
        if taken is not None and taken.poll() is None:
            return taken
        return None

    def refill(self) -> None:
        """See to it that one waits some seconds from now."""
        with self._lock:
            if self._timer is not None and self._timer.is_alive():
                return
            self._timer = threading.Timer(self._delay, self._fill)
            self._timer.daemon = True
            self._timer.start()

    def _fill(self) -> None:
        with self._lock:
            if self._waiting is not None and self._waiting.poll() is None:
                return
            # without one, sessions start as they would have: a little later
            with suppress(OSError):
                self._waiting = subprocess.Popen(
                    self._argv,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    cwd="/",
                    env=self._environment,
                )

    def close(self) -> None:
        """End the one that waits. May be called twice."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
            waiting, self._waiting = self._waiting, None
        if waiting is not None:
            with suppress(subprocess.TimeoutExpired):
                waiting.communicate(timeout=10)
