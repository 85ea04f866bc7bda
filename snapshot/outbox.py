"""Full packs between the dump and the store.

A pack that is full is written into the node cache and from there into the store: the dump is not
held up by what the network does, memory does not grow, and a resume on this node finds the packs.
Where the cache has no room for it (bounded, or the disk is full) or there is none, a pack waits in
memory; of those there are `CONNECTIONS + WAITING` at most, and whoever brings the next one waits.

While pages come, few uploads run, and none on a small machine: the processors belong to the dump,
which holds the session, and what is not uploaded now will be later. `hurry` ends that, and so does a
pack for which the cache has no room.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from snapshot.cache import PackCache
from snapshot.crew import Crew
from snapshot.packs import Buffers

log = logging.getLogger(__name__)

CONNECTIONS = 8
WAITING = 2

Put = Callable[[str, bytearray], None]
"""Writes the pack of that id to the store; when it returns the pack is durable there."""


class Outbox:
    """The packs of one snapshot. Safe to use from threads; the first failure ends all of it.

    `patient` connections are used before `hurry`.
    """

    def __init__(
        self, put: Put, cache: PackCache | None, buffers: Buffers, *, patient: int
    ) -> None:
        self._put, self._cache, self._buffers = put, cache, buffers
        self._gate = _Gate(min(patient, CONNECTIONS))
        self._spooled = Crew(CONNECTIONS, "ship")
        self._in_memory = Crew(CONNECTIONS, "ship", waiting=WAITING)
        self._crews = (self._spooled, self._in_memory)
        self._lock = threading.Lock()
        self._sent: list[str] = []
        self._thrown_away = False
        self.bytes = 0

    def send(self, pack: str, data: bytearray) -> None:
        """Take charge of a full pack, and of the buffer it lies in. Raises what an earlier upload
        failed with."""
        self.check()
        with self._lock:
            self._sent.append(pack)
            self.bytes += len(data)
        if self._cache is not None and self._cache.spool(pack, data):
            self._buffers.give(data)
            self._forget_if_thrown_away(pack)
            self._spooled.submit(lambda: self._upload_spooled(pack))
            return
        self.hurry()
        self._in_memory.submit(lambda: self._upload(pack, data))

    def hurry(self) -> None:
        """Upload with all connections from now on."""
        self._gate.widen(CONNECTIONS)

    def drain(self) -> None:
        """Return when all that was sent is in the store. Raises what failed first."""
        self.hurry()
        for crew in self._crews:
            crew.drain()
        self.check()

    def check(self) -> None:
        """Raise what failed, if anything did."""
        for crew in self._crews:
            crew.check()

    def close(self) -> None:
        """End the threads, after `drain`."""
        for crew in self._crews:
            crew.stop(wait=True)

    def throw_away(self, failure: BaseException) -> None:
        """Give up, without waiting for uploads that are under way. Nothing stays in the cache."""
        self._thrown_away = True
        for crew in self._crews:
            crew.fail(failure)
            crew.stop(wait=False)
        self.hurry()
        if self._cache is not None:
            for pack in tuple(self._sent):
                self._cache.drop(pack)

    def _upload_spooled(self, pack: str) -> None:
        assert self._cache is not None  # noqa: S101 - it was spooled there
        with self._gate.passed():
            self.check()
            data = self._buffers.take()
            try:
                self._cache.read_spooled(pack, data)
                self._put(pack, data)
            finally:
                self._buffers.give(data)
        self._cache.settle(pack)
        self._forget_if_thrown_away(pack)

    def _upload(self, pack: str, data: bytearray) -> None:
        try:
            with self._gate.passed():
                self.check()
                self._put(pack, data)
        finally:
            self._buffers.give(data)

    def _forget_if_thrown_away(self, pack: str) -> None:
        """Whoever gave up may have looked before the file was there."""
        if self._thrown_away and self._cache is not None:
            self._cache.drop(pack)


class _Gate:
    """Lets a number of threads in at once."""

    def __init__(self, width: int) -> None:
        self._width, self._inside = width, 0
        self._changed = threading.Condition()

    def widen(self, width: int) -> None:
        with self._changed:
            self._width = width
            self._changed.notify_all()

    @contextmanager
    def passed(self) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: self._inside < self._width)
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify()
