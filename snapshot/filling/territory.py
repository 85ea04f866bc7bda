"""Where the pages of one address space belong now, and which have yet to come (pure).

Pages are numbered through the whole snapshot (`Layout`). A running tree moves, drops and forks its
memory while it is filled; each of these is one method here, called when its event was read.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from snapshot.images import PAGE

BLOCK = 16
"""Pages that are brought together for a fault (64 KiB, as much as a chunk of the store)."""


class Segment(NamedTuple):
    """Consecutive addresses (bytes, `end` exclusive) that hold consecutive pages from `first`."""

    start: int
    end: int
    first: int

    def page_at(self, address: int) -> int:
        return self.first + (address - self.start) // PAGE


class Place(NamedTuple):
    """Pages that are yet to come: `pages` of them from `first`, to be put at `address`."""

    address: int
    first: int
    pages: int


@dataclass(frozen=True, slots=True)
class Space:
    """The lazy memory of one task: its pages are `base` to `base + pages`."""

    kind: str
    id: int
    base: int
    pages: int
    segments: tuple[Segment, ...]

    @property
    def stop(self) -> int:
        return self.base + self.pages


@dataclass(frozen=True, slots=True)
class Layout:
    """All pages that come later, numbered from 0 through all spaces; each begins a new block."""

    spaces: tuple[Space, ...]

    @property
    def pages(self) -> int:
        """One more than the highest number."""
        return self.spaces[-1].stop if self.spaces else 0

    @property
    def lazy_pages(self) -> int:
        """How many there are."""
        return sum(space.pages for space in self.spaces)

    def locate(self, page: int) -> tuple[Space, int]:
        """The space of a page and its address there. Raises `IndexError` for a number too large."""
        at = bisect_right(self.spaces, page, key=lambda space: space.base) - 1
        space = self.spaces[at]
        if page >= space.stop:  # a gap between blocks of two spaces is no page
            raise IndexError(page)
        segment = space.segments[bisect_right(space.segments, page, key=_first) - 1]
        return space, segment.start + (page - segment.first) * PAGE

    def runs(self, space: Space) -> list[tuple[int, int, int]]:
        """(address, pages, number of the first page in bytes) as the repository wants them."""
        return [(s.start, (s.end - s.start) // PAGE, s.first * PAGE) for s in space.segments]


def layout(lazy: Sequence[tuple[str, int, Sequence[tuple[int, int]]]]) -> Layout:
    """Number the pages of (kind, id, runs of (address, pages)), addresses ascending."""
    spaces, base = [], 0
    for kind, id, runs in lazy:
        if not runs:
            continue
        segments, first = [], base
        for address, pages in runs:
            segments.append(Segment(address, address + pages * PAGE, first))
            first += pages
        spaces.append(Space(kind, id, base, first - base, tuple(segments)))
        base = -(-first // BLOCK) * BLOCK
    return Layout(tuple(spaces))


class Territory:
    """One live address space that is being filled. Not safe for threads by itself.

    Invariant: segments do not overlap, neither by address nor by page; each page of the space is at
    most once here. A page is `left` until it was put in place, or nobody can want it any more.
    """

    def __init__(self, space: Space) -> None:
        self.space = space
        self._segments = list(space.segments)
        self._by_page: list[Segment] | None = None
        self._left = bytearray(b"\1") * space.pages
        self.remaining = space.pages

    def fork(self) -> Territory:
        """The same for a child: what the parent had, it has; what is yet to come is so for both."""
        child = Territory.__new__(Territory)
        child.space, child.remaining = self.space, self.remaining
        child._segments, child._by_page = list(self._segments), None
        child._left = bytearray(self._left)
        return child

    def page_at(self, address: int) -> int | None:
        """The page that belongs at an address and is yet to come. None: nothing comes there."""
        at = bisect_right(self._segments, address, key=_start) - 1
        if at < 0 or address >= self._segments[at].end:
            return None
        page = self._segments[at].page_at(address)
        return page if self._left[page - self.space.base] else None

    def hole_at(self, address: int, most: int) -> int:
        """How many pages from an address on nothing comes to any more, at most `most`."""
        at = max(bisect_right(self._segments, address, key=_start) - 1, 0)
        end = address + most * PAGE
        for segment in self._segments[at:]:
            if segment.start >= end:
                break
            low = segment.page_at(max(address, segment.start))
            high = segment.page_at(min(end, segment.end))
            for begin, _ in self._runs_left(low, max(low, high)):
                return (segment.start + (begin - segment.first) * PAGE - address) // PAGE
        return most

    def left(self, first: int, pages: int) -> list[tuple[int, int]]:
        """Which of the pages are yet to come, as (first, stop) in order."""
        low, high = max(first, self.space.base), min(first + pages, self.space.stop)
        return list(self._runs_left(low, high))

    def places(self, first: int, pages: int) -> list[Place]:
        """Where those of the pages go that are yet to come."""
        ordered = self._ordered()
        found: list[Place] = []
        at = max(bisect_right(ordered, first, key=_first) - 1, 0)
        while at < len(ordered) and ordered[at].first < first + pages:
            segment = ordered[at]
            low = max(first, segment.first)
            high = min(first + pages, segment.first + (segment.end - segment.start) // PAGE)
            for begin, end in self._runs_left(low, high):
                address = segment.start + (begin - segment.first) * PAGE
                found.append(Place(address, begin, end - begin))
            at += 1
        return found

    def done(self, first: int, pages: int) -> None:
        """Pages are in place, or never will be."""
        low, high = first - self.space.base, first - self.space.base + pages
        self.remaining -= self._left.count(1, low, high)
        self._left[low:high] = bytes(high - low)

    def drop(self, start: int, end: int) -> None:
        """The content of addresses is given up (madvise): zeros from now on."""
        for segment in self._between(start, end):
            low, high = max(start, segment.start), min(end, segment.end)
            self.done(segment.page_at(low), (high - low) // PAGE)

    def cut(self, start: int, end: int) -> None:
        """Addresses are not mapped any more, or mapped to something else."""
        self.drop(start, end)
        self._take_out(start, end)

    def move(self, start: int, target: int, length: int) -> None:
        """Memory was moved (mremap). What was at the target is gone."""
        moved = self._take_out(start, start + length)
        self.cut(target, target + length)
        shift = target - start
        for segment in moved:
            self._insert(Segment(segment.start + shift, segment.end + shift, segment.first))

    def end(self) -> None:
        """The address space is gone."""
        self._segments, self._by_page = [], None
        self.done(self.space.base, self.space.pages)

    def _between(self, start: int, end: int) -> list[Segment]:
        low = max(bisect_right(self._segments, start, key=_start) - 1, 0)
        high = bisect_left(self._segments, end, key=_start)
        return [s for s in self._segments[low:high] if s.end > start]

    def _take_out(self, start: int, end: int) -> list[Segment]:
        """Remove the addresses and return what was there, cut at both ends."""
        taken = []
        for segment in self._between(start, end):
            self._segments.remove(segment)
            low, high = max(start, segment.start), min(end, segment.end)
            taken.append(Segment(low, high, segment.page_at(low)))
            if segment.start < low:
                self._insert(Segment(segment.start, low, segment.first))
            if high < segment.end:
                self._insert(Segment(high, segment.end, segment.page_at(high)))
        if taken:
            self._by_page = None
        return taken

    def _insert(self, segment: Segment) -> None:
        self._segments.insert(bisect_left(self._segments, segment.start, key=_start), segment)
        self._by_page = None

    def _ordered(self) -> list[Segment]:
        if self._by_page is None:
            self._by_page = sorted(self._segments, key=_first)
        return self._by_page

    def _runs_left(self, low: int, high: int) -> Iterator[tuple[int, int]]:
        base = self.space.base
        position, stop = low - base, high - base
        while (begin := self._left.find(1, position, stop)) >= 0:
            end = self._left.find(0, begin, stop)
            position = end if end >= 0 else stop
            yield begin + base, position + base


def _start(segment: Segment) -> int:
    return segment.start


def _first(segment: Segment) -> int:
    return segment.first
