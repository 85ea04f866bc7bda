"""In which order pages are brought: what somebody waits for, then the working set, then the rest.

Threads of two kinds: some only answer faults, so that nobody waits behind a download; the others
answer faults first too. Reading that fails is tried again for ever: memory that has not come keeps
its task waiting, and there is nothing else to give it.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from snapshot.errors import SnapshotError
from snapshot.filling.ahead import ReadAhead
from snapshot.filling.territory import BLOCK, Layout, Space
from snapshot.images import PAGE
from snapshot.orders import Order, Sink
from snapshot.reader import FETCHERS, Snapshot

_log = logging.getLogger(__name__)

FIRST_SPAN, LONGEST_SPAN = 4, 64
"""Blocks brought for a fault: the one it lies in, and those that follow; twice as many each time
that the next fault is where they end, because somebody reads on (4 MiB at most)."""

BLOCKS_AT_ONCE = 128
"""Of a working set: planned and read together."""

_MOST_EXPECTED = 1024

URGENT_THREADS, AHEAD_THREADS, WARM_THREADS = 2, 2, 2
SLICE_PAGES = 2**16
RETRY_SECONDS = 1.0
SILENT_SECONDS = 3.0
"""A store that is away is asked for a minute before that is an error: people hear of it earlier."""

QUIET_SECONDS, LATEST_SECONDS = 0.15, 1.5
REST_NICENESS = 5


_Parts = Sequence[tuple[int, int]]
"""(first, stop) of pages, ascending."""

_Zeros = list[tuple[int, int]]
"""(number of the first page in bytes, bytes) of pages of zeros."""


class Ground(Protocol):
    """Where pages go. Safe to use from threads."""

    def left(self, space: Space, first: int, pages: int) -> list[tuple[int, int]]:
        """Which of the pages anybody may still want, as (first, stop) in order."""
        ...

    def take(self, data: memoryview, target: int) -> None:
        """Pages, and the first one's number in bytes."""
        ...

    def take_zeros(self, page: int, pages: int) -> None:
        """The same for pages of zeros."""
        ...


class Feed:
    """Brings the pages of one layout to its ground."""

    def __init__(self, snapshot: Snapshot, layout: Layout, ground: Ground) -> None:
        self._snapshot, self._layout, self._ground = snapshot, layout, ground
        self._trouble = ""
        self._told: set[str] = set()
        self._at_work: dict[int, float] = {}
        self._came_at = 0.0
        self._faults: deque[int] = deque()
        self._asked: set[int] = set()
        self._needed: list[int] = []
        self._expected: dict[int, int] = {}
        self._is_recording = True
        self._first: Iterator[Callable[[], None]] = iter(())
        self._ahead = ReadAhead(ground.take)
        self._gone = threading.Event()
        self._asked_at = self._latest = 0.0
        self._rest: Iterator[Callable[[], None]] = iter(())
        self._news = threading.Condition()
        self._planning = threading.Lock()
        self._is_closed = False

    def start(self, working_set: Sequence[int] = ()) -> None:
        """Begin to answer faults, and to read ahead: `working_set` are blocks (page number //
        `BLOCK`) in the order in which they are needed."""
        self._first = self._jobs_of(working_set)
        self._employ(URGENT_THREADS, self._answer)
        self._employ(AHEAD_THREADS, self._read_ahead)

    def go(self) -> None:
        """Begin to put everything in place.

        The rest waits until nothing was asked for during `QUIET_SECONDS` (at most `LATEST_SECONDS`):
        the first cell has the processors, and what it needs is seen, and recorded.
        """
        self._ahead.go()
        self._rest = self._background()
        self._latest = time.monotonic() + LATEST_SECONDS
        self._gone.set()
        self._employ(WARM_THREADS if self._is_here() else FETCHERS, self._bring_all)

    def _employ(self, count: int, work: Callable[[], None]) -> None:
        for _ in range(count):
            threading.Thread(target=work, name=work.__name__, daemon=True).start()

    def want(self, page: int) -> None:
        """Somebody waits for a page. Never blocks."""
        block = page // BLOCK
        with self._news:
            if block in self._asked:
                return
            self._asked.add(block)
            self._faults.append(block)
            self._asked_at = time.monotonic()
            if self._is_recording:
                self._needed.append(block)
            self._news.notify()

    def needed(self) -> list[int]:
        """The blocks that were asked for before the rest began to come, with what followed them, in
        that order, each once: the working set of a first cell."""
        with self._news:
            return list(dict.fromkeys(self._needed))

    def close(self) -> None:
        """Stop after what is at work now."""
        with self._news:
            self._is_closed = True
            self._news.notify_all()

    def _is_here(self) -> bool:
        for space in self._layout.spaces:
            runs = self._layout.runs(space)
            plan = self._snapshot.plan(space.kind, space.id, runs[len(runs) // 2 :][:1])
            if any(not self._snapshot.is_cached(order) for order in plan):
                return False
        return True

    def _answer(self) -> None:
        """What a thread does that only answers faults."""
        while not self._is_closed:
            with self._news:
                self._news.wait_for(lambda: self._faults or self._is_closed)
            self._answer_one()

    def _bring_all(self) -> None:
        """What the others do: faults first, then the working set, then the rest."""
        # Of equal standing with the session, this would take half of a small machine from it; what
        # somebody waits for has threads of its own.
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), REST_NICENESS)
        while not self._is_closed and (
            self._answer_one() or self._do(self._ahead.next()) or self._do_next_of(self._first)
        ):
            pass
        self._until_quiet()
        self._is_recording = False
        while not self._is_closed and (self._answer_one() or self._do_next_of(self._rest)):
            pass

    def _read_ahead(self) -> None:
        """Read what is needed first while there is nowhere to put it yet."""
        while not (self._is_closed or self._gone.is_set() or self._ahead.is_full):
            if not self._do_next_of(self._first):
                return

    def _do_next_of(self, jobs: Iterator[Callable[[], None]]) -> bool:
        """Do the next job, if there is one."""
        with self._planning:
            job = next(jobs, None)
        return self._do(job)

    def _do(self, job: Callable[[], None] | None) -> bool:
        if job is not None:
            self._insist(job)
        return job is not None

    def _until_quiet(self) -> None:
        while not self._is_closed and (now := time.monotonic()) < self._latest:
            quiet_at = self._asked_at + QUIET_SECONDS
            if now >= quiet_at:
                return
            with self._news:
                self._news.wait(min(quiet_at, self._latest) - now)
            self._answer_one()

    def _answer_one(self) -> bool:
        """Bring what somebody waits for, if anybody does."""
        try:
            block = self._faults.popleft()
        except IndexError:
            return False
        self._insist(lambda: self._bring_block(block))
        return True

    @property
    def trouble(self) -> str:
        """Why pages do not come now, in words for people; empty if they do."""
        now = time.monotonic()
        since = max(min([*self._at_work.values(), now]), self._came_at)
        if not self._trouble and now - since > SILENT_SECONDS:
            return "The store has sent nothing for a while."
        return self._trouble

    def _insist(self, job: Callable[[], None]) -> None:
        """Do it, however long it takes."""
        self._at_work[threading.get_ident()] = time.monotonic()
        try:
            self._try_until_done(job)
        finally:
            del self._at_work[threading.get_ident()]

    def _try_until_done(self, job: Callable[[], None]) -> None:
        while not self._is_closed:
            try:
                job()
                return
            except (SnapshotError, OSError) as error:
                self._rest_after(str(error), _log.warning)
            except Exception as error:  # whatever it is, somebody waits for these pages
                self._rest_after(repr(error), _log.exception)

    def _rest_after(self, trouble: str, log: Callable[[str, str], None]) -> None:
        with self._news:
            if trouble not in self._told:  # a store may be away for days, and each thread asks on
                log("pages do not come: %s", trouble)
            self._told.add(trouble)
            self._trouble = trouble
            self._news.wait_for(lambda: self._is_closed, RETRY_SECONDS)

    def _bring_block(self, block: int) -> None:
        first, span = block * BLOCK, self._expected.pop(block, FIRST_SPAN)
        if len(self._expected) > _MOST_EXPECTED:
            self._expected.clear()
        self._expected[block + span] = min(2 * span, LONGEST_SPAN)
        space, _ = self._layout.locate(first)
        stop = min(first + BLOCK * span, space.stop)
        self._bring(space, first, stop)
        with self._news:
            self._asked.discard(block)
            if self._is_recording:
                self._needed += range(block + 1, -(-stop // BLOCK))

    def _bring(self, space: Space, first: int, stop: int) -> None:
        orders, zeros = self._plan(space, [(first, stop)])
        self._bring_zeros(zeros)
        for order in orders:
            self._read(order)

    def _plan(self, space: Space, parts: _Parts) -> tuple[list[Order], _Zeros]:
        """What to read for those pages of one space that are yet to come, and which are zero."""
        left = [run for low, high in parts for run in self._ground.left(space, low, high - low)]
        return self._plan_all(space, left)

    def _plan_all(self, space: Space, parts: _Parts) -> tuple[list[Order], _Zeros]:
        """The same for all of the pages, also while there is no tree yet."""
        runs = [run for low, high in parts for run in _between(space, low, high)]
        return self._snapshot.plan_with_zeros(space.kind, space.id, runs)

    def _bring_zeros(self, zeros: _Zeros) -> None:
        for target, length in zeros:
            self._ground.take_zeros(target // PAGE, length // PAGE)

    def _read(self, order: Order, sink: Sink | None = None) -> None:
        self._snapshot.read(order, sink or self._ground.take)
        self._trouble, self._came_at = "", time.monotonic()
        self._told.clear()

    def _jobs_of(self, working_set: Sequence[int]) -> Iterator[Callable[[], None]]:
        """Blocks of a working set, many at once: one by one, they would cost more to look up than
        to bring."""
        known = [block for block in working_set if block * BLOCK < self._layout.pages]
        for start in range(0, len(known), BLOCKS_AT_ONCE):
            wanted = known[start:][:BLOCKS_AT_ONCE]
            for space in self._layout.spaces:
                inside = sorted(b for b in wanted if space.base <= b * BLOCK < space.stop)
                parts = [(b * BLOCK, min((b + 1) * BLOCK, space.stop)) for b in inside]
                for order in self._plan_all(space, parts)[0]:
                    yield lambda order=order: self._read(order, self._ahead.put)  # type: ignore[misc]

    def _background(self) -> Iterator[Callable[[], None]]:
        for space in self._layout.spaces:
            for first in range(space.base, space.stop, SLICE_PAGES):
                stop = min(first + SLICE_PAGES, space.stop)
                yield from self._jobs(space, [(first, stop)])

    def _jobs(self, space: Space, parts: _Parts) -> Iterator[Callable[[], None]]:
        orders, zeros = self._plan(space, parts)
        # A job of its own: what fails here would end the planning, and all that follows.
        yield lambda: self._bring_zeros(zeros)
        for order in orders:
            yield lambda order=order: self._read(order)  # type: ignore[misc]


def _between(space: Space, first: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """(address, pages, target) of the pages of a space that lie between."""
    at = max(bisect_right(space.segments, first, key=lambda segment: segment.first) - 1, 0)
    for segment in space.segments[at:]:
        if segment.first >= stop:
            return
        low = max(first, segment.first)
        high = min(stop, segment.first + (segment.end - segment.start) // PAGE)
        if low < high:
            yield segment.start + (low - segment.first) * PAGE, high - low, low * PAGE
