"""Pages that were read before there was anywhere to put them.

A filler knows what the first cell will need while CRIU is still at work. Reading it then, and putting
it in place in the moment in which the tree's mappings are there, saves the tree most of its waits.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

MOST_BYTES = 96 * 2**20
"""Held at most; what does not fit is read when it can be put in place."""


class ReadAhead:
    """Keeps pages until `go`, then hands everything on, kept or new. Safe for threads."""

    def __init__(self, take: Callable[[memoryview, int], None]) -> None:
        self._take = take
        self._kept: deque[tuple[bytearray, int]] = deque()
        self._room = MOST_BYTES
        self._may_go = False
        self._lock = threading.Lock()

    @property
    def is_full(self) -> bool:
        """Whether nothing more should be read yet."""
        return self._room <= 0 and not self._may_go

    def put(self, data: memoryview, target: int) -> None:
        """Pages, and the first one's number in bytes; they are copied if they have to wait."""
        with self._lock:
            if not self._may_go:
                self._kept.append((bytearray(data), target))
                self._room -= len(data)
                return
        self._take(data, target)

    def go(self) -> None:
        """From now on nothing is kept. What is kept already is handed on by `next`."""
        with self._lock:
            self._may_go = True

    def next(self) -> Callable[[], None] | None:
        """What hands on one piece of what was kept, the first read first. None: there is none."""
        with self._lock:
            if not self._kept:
                return None
            data, target = self._kept.popleft()
        return lambda: self._take(memoryview(data), target)
