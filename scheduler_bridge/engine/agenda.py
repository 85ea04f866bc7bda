"""When time will demand something of which workload or lease, so that a tick costs as much as what is
due and not as the fleet."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from math import inf

from scheduler_bridge.engine.books import Books

Moment = Callable[[str, float], float]
"""When something is next due of the one with this id, seen from now; inf for never."""


class Agenda:
    """A heap of moments. One that has moved to a later time (a lease that was renewed) is found out when
    its turn comes; one that may have become earlier has changed the books, and is worked out anew."""

    def __init__(self, books: Books, of_workload: Moment, of_lease: Moment) -> None:
        self._changes = books.follow()
        self._kinds = {"workload": of_workload, "lease": of_lease}
        self._heap: list[tuple[float, str, str]] = []
        self._due: dict[tuple[str, str], float] = {}

    def due(self, now: float) -> tuple[list[str], list[str]]:
        """Ids of the workloads and of the leases of which something is due. Each is named again only
        after it has changed, or when its next moment has come."""
        self._take_over(now)
        found: dict[str, list[str]] = {"workload": [], "lease": []}
        while (first := self._first(now)) is not None and first[0] <= now:
            _, kind, name = heappop(self._heap)
            del self._due[kind, name]
            found[kind].append(name)
        for kind, names in found.items():
            self._changes_of(kind).update(names)
        return found["workload"], found["lease"]

    def next(self, now: float) -> float:
        """The next moment; inf if there is none."""
        self._take_over(now)
        first = self._first(now)
        return inf if first is None else first[0]

    def _changes_of(self, kind: str) -> set[str]:
        return self._changes.workloads if kind == "workload" else self._changes.leases

    def _take_over(self, now: float) -> None:
        for kind in self._kinds:
            names = self._changes_of(kind)
            for name in names:
                self._put(kind, name, now)
            names.clear()

    def _put(self, kind: str, name: str, now: float) -> None:
        moment = self._kinds[kind](name, now)
        if moment == inf:
            self._due.pop((kind, name), None)
        elif self._due.get((kind, name)) != moment:
            self._due[kind, name] = moment
            heappush(self._heap, (moment, kind, name))

    def _first(self, now: float) -> tuple[float, str, str] | None:
        """The top of the heap, once it is true."""
        while self._heap:
            moment, kind, name = self._heap[0]
            if self._due.get((kind, name)) == moment:
                if self._kinds[kind](name, now) == moment:
                    return self._heap[0]
                heappop(self._heap)
                self._put(kind, name, now)
            else:
                heappop(self._heap)
        return None
