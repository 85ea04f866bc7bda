"""The live address spaces that one saved space is filled into: a task and the children it forked.

One lock covers everything about them, events and copies alike. The kernel blocks copies (EAGAIN)
from before a change of the memory until its event was read, so whoever reads events under the lock
and writes them into the territory has no copy land where it does not belong any more.
"""

from __future__ import annotations

import ctypes
import errno
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from snapshot.filling import uffd
from snapshot.filling.journal import Journal
from snapshot.filling.territory import Place, Space, Territory
from snapshot.filling.uffd import PAGE, Event, Message

PROBE_FROM = 8
"""From that many living spaces on, a fork first looks which of them have ended."""

MOST_ZEROS = 512
"""Pages: what was never written is handed out in pieces of 2 MiB, not one page a fault."""

_CHANGING_SECONDS = 0.0005
_NOWHERE = 0x10000
"""An address at which hardly a program has memory that is yet to come: asking for zeros there only
tells who has ended."""


@dataclass(slots=True)
class Member:
    """One living address space: its number in the journal, its userfaultfd, what is where."""

    number: int
    descriptor: int
    territory: Territory


class Ears(Protocol):
    """Who hears of what happens, called under the family's lock."""

    def wanted(self, page: int) -> None:
        """Somebody waits for a page."""
        ...

    def forked(self, family: Family, descriptor: int) -> int:
        """A new address space, which must be held by others before this returns its number."""
        ...

    def ended(self, number: int, descriptor: int) -> None:
        """An address space is gone; its descriptor is closed after this."""
        ...


class Family:
    """All address spaces filled from `space`. Safe for threads."""

    def __init__(self, space: Space, journal: Journal, ears: Ears) -> None:
        self.space = space
        self._journal, self._ears = journal, ears
        self._members: dict[int, Member] = {}
        self.is_settled = False
        """Whether all mappings are there: a page without one is not wanted any more only then."""
        self.lock = threading.RLock()

    @property
    def remaining(self) -> int:
        """Pages that somebody may still want."""
        with self.lock:
            return max((m.territory.remaining for m in self._members.values()), default=0)

    def left(self, first: int, pages: int) -> list[tuple[int, int]]:
        """Which of the pages anybody may still want, as (first, stop) in order."""
        with self.lock:
            members = list(self._members.values())
            runs = sorted(run for m in members for run in m.territory.left(first, pages))
        joined: list[tuple[int, int]] = []
        for low, high in runs:
            if joined and low <= joined[-1][1]:
                joined[-1] = joined[-1][0], max(high, joined[-1][1])
            else:
                joined.append((low, high))
        return joined

    def add(self, number: int, descriptor: int, territory: Territory) -> None:
        """One more address space."""
        with self.lock:
            self._members[number] = Member(number, descriptor, territory)

    def fill(self, data: memoryview, first: int) -> None:
        """Put pages, whose first is number `first`, to wherever they are still wanted."""
        address = ctypes.addressof(ctypes.c_char.from_buffer(data))
        self._put(first, len(data) // PAGE, lambda page: address + (page - first) * PAGE)

    def fill_zeros(self, first: int, pages: int) -> None:
        """The same with zeros."""
        self._put(first, pages, None)

    def _put(self, first: int, pages: int, source: Callable[[int], int] | None) -> None:
        """Also for children that are forked meanwhile: nobody brings these pages once more."""
        reached: set[int] = set()
        while waiting := [number for number in list(self._members) if number not in reached]:
            for number in waiting:
                while not self._put_once(number, first, pages, source):
                    time.sleep(_CHANGING_SECONDS)  # the kernel is in the middle of a change
            reached.update(waiting)

    def _put_once(
        self, number: int, first: int, pages: int, source: Callable[[int], int] | None
    ) -> bool:
        """Go once over what one space lacks. False: its memory was just changing; try again. Raises
        `TornError` when what is where is not known any more."""
        with self.lock:
            self._journal.check()
            member = self._members.get(number)
            if member is None:
                return True
            for place in member.territory.places(first, pages):
                if not self._settle(member, place, source):
                    self.drain(number)
                    return False
                if number not in self._members:
                    break  # it has ended, and its descriptor may be another's by now
            return True

    def _settle(self, member: Member, place: Place, source: Callable[[int], int] | None) -> bool:
        """Fill one place as far as it goes. False: events are to be read first."""
        address, page, stop = place.address, place.first, place.first + place.pages
        span = place.pages
        while page < stop:
            span = min(span, stop - page)
            if source is None:
                done, error = uffd.zero(member.descriptor, address, span)
            else:
                done, error = uffd.copy(member.descriptor, address, source(page), span)
            member.territory.done(page, done)
            address, page = address + done * PAGE, page + done
            if error == errno.EAGAIN and not done:
                return False
            if error in (errno.ESRCH, errno.EBADF):
                self._forget(member)
                return True
            if error == errno.ENOENT and span > 1:
                span = max(span // 2, 1)  # it lies in two mappings: a program may divide them
                continue
            if error in (errno.EEXIST, errno.ENOENT):
                if error == errno.EEXIST or self.is_settled:
                    member.territory.done(page, 1)
                address, page = address + PAGE, page + 1
            elif error not in (0, errno.EAGAIN):
                raise OSError(error, os.strerror(error))
            span = stop - page
        return True

    def drain(self, number: int) -> None:
        """Read the events of one address space and do what they ask."""
        with self.lock:
            member = self._members.get(number)
            if member is None:
                return
            with self._journal.reading():
                messages = list(uffd.read(member.descriptor))
                for message in messages:
                    if message.event != Event.FAULT:
                        self._change(member, message)
            for message in messages:
                if message.event == Event.FAULT and number in self._members:
                    self._fault(member, message.b & ~(PAGE - 1))

    def _change(self, member: Member, message: Message) -> None:
        if message.event == Event.FORK:
            descriptor = message.a & 0xFFFFFFFF
            child = self._ears.forked(self, descriptor)
            self._journal.add(member.number, message._replace(b=child))
            self.add(child, descriptor, member.territory.fork())
            self._look_who_ended()
            return
        self._journal.add(member.number, message)
        apply(member.territory, message)
        # Who waits there for what has gone from there would wait until all is filled.
        length = message.c if message.event == Event.REMAP else message.b - message.a
        uffd.wake(member.descriptor, message.a, length)

    def _fault(self, member: Member, address: int) -> None:
        """Somebody waits at an address: for a page that comes, or for a zero page."""
        page = member.territory.page_at(address)
        if page is not None:
            self._ears.wanted(page)
            return
        span = member.territory.hole_at(address, MOST_ZEROS)
        while (outcome := uffd.zero(member.descriptor, address, span)).error == errno.ENOENT:
            if span == 1:
                break
            span //= 2
        if not outcome.pages:
            # Whatever is the matter, who waits may look again, and would ask again.
            uffd.wake(member.descriptor, address, PAGE)

    def answer_again(self, number: int) -> None:
        """Let whoever waits in a space ask again."""
        with self.lock:
            if (member := self._members.get(number)) is not None:
                uffd.wake_all(member.descriptor)

    def _look_who_ended(self) -> None:
        """Forget spaces whose process is gone, before children of children fill our memory."""
        if len(self._members) < PROBE_FROM:
            return
        for member in list(self._members.values()):
            if member.territory.page_at(_NOWHERE) is not None:
                continue  # this one has; it gets the page, not zeros
            if uffd.zero(member.descriptor, _NOWHERE, 1).error == errno.ESRCH:
                self._forget(member)

    def _forget(self, member: Member) -> None:
        member.territory.end()
        if self._members.pop(member.number, None) is not None:
            self._ears.ended(member.number, member.descriptor)
            os.close(member.descriptor)


def apply(territory: Territory, message: Message) -> None:
    """Write an event that changes one address space into it."""
    if message.event == Event.REMOVE:
        territory.drop(message.a, message.b)
    elif message.event == Event.UNMAP:
        territory.cut(message.a, message.b)
    elif message.event == Event.REMAP:
        territory.move(message.a, message.b, message.c)
