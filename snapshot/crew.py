"""Threads that work through a queue, of which the first failure stops the rest."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress

from snapshot.errors import SnapshotError


class Crew:
    """Threads with a queue, bounded if `waiting` says so. The first failure stops the rest and is
    raised to whoever asks next."""

    def __init__(self, threads: int, name: str, *, waiting: int | None = None) -> None:
        self._pool = ThreadPoolExecutor(threads, name)
        self._slots = None if waiting is None else threading.Semaphore(threads + waiting)
        self._futures: set[Future[None]] = set()
        self._lock = threading.Lock()
        self.failure: BaseException | None = None

    def submit(self, work: Callable[[], None]) -> None:
        """Queue the work, waiting for room. Raises the failure, if there was one."""
        self.check()
        if self._slots is not None:
            self._slots.acquire()
        try:
            future = self._pool.submit(self._guarded, work)
        except RuntimeError as error:  # the pool was stopped
            self._free()
            raise self.failure or given_up() from error
        with self._lock:
            self._futures.add(future)
        future.add_done_callback(self._done)

    def check(self) -> None:
        """Raise the failure, if there was one."""
        if self.failure is not None:
            raise self.failure

    def drain(self) -> None:
        """Wait until all that was queued is done. Raises the failure, if there was one."""
        while True:
            with self._lock:
                future = next(iter(self._futures), None)
            if future is None:
                self.check()
                return
            with suppress(CancelledError):  # dropped by `stop`
                future.exception()

    def fail(self, failure: BaseException) -> None:
        """As if one of the threads had failed, unless one has already."""
        self.failure = self.failure or failure

    def stop(self, *, wait: bool) -> None:
        """Take no more work and drop what is queued; with `wait`, until what runs is done."""
        self._pool.shutdown(wait=wait, cancel_futures=True)

    def _guarded(self, work: Callable[[], None]) -> None:
        if self.failure is not None:
            return
        try:
            work()
        except BaseException as error:  # handed on to whoever submits or drains
            self.fail(error)

    def _done(self, future: Future[None]) -> None:
        self._free()
        with self._lock:
            self._futures.discard(future)

    def _free(self) -> None:
        if self._slots is not None:
            self._slots.release()


def given_up() -> SnapshotError:
    """What is raised to whoever goes on with something that was given up."""
    return SnapshotError("Writing the snapshot was given up.")
