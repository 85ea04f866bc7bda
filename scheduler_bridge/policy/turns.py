"""Whose turn it is. Guaranteed claims first, then allocated work, then the rest; between teams the one
that is owed most for its share, then the one that holds least; inside a team by `columns.rank`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush

from scheduler_bridge.policy.accounts import Accounts
from scheduler_bridge.policy.columns import Group, Queue, Rank
from scheduler_bridge.policy.values import Pending

_TINY_SHARE = 1e-6
_Heap = list[tuple[Rank, str, Group, int]]
_Place = tuple[bool, float, int, float, str]


class Turns:
    """The queue of one pass; the order depends on what the pass has given away so far."""

    def __init__(self, queue: Queue, accounts: Accounts, only: Iterable[Group] | None) -> None:
        self._queue, self._accounts = queue, accounts
        self._skipped: set[Group] = set()
        wanted = None if only is None else set(only)
        self._heaps: dict[tuple[bool, str], _Heap] = {}
        for team, groups in queue.teams.items():
            for group in groups if wanted is None else groups & wanted:
                first, name = queue.groups[group][0]
                self._heaps.setdefault((group.is_allocated, team), []).append(
                    (first, name, group, 0)
                )
        for heap in self._heaps.values():
            heapify(heap)

    def __iter__(self) -> Iterator[tuple[Pending, Group]]:
        """Every waiting workload in turn."""
        for allocated in (True, False):
            # What a pass gives to a team changes that team's place only, so one look at each will do.
            teams = [
                self._place(allocated, team) for kind, team in self._heaps if kind is allocated
            ]
            heapify(teams)
            while teams:
                team = heappop(teams)[-1]
                heap = self._heaps[allocated, team]
                _, name, group, index = heappop(heap)
                yield self._queue.items[name], group
                self._follow(heap, group, index + 1)
                if heap:
                    heappush(teams, self._place(allocated, team))

    def skip(self, group: Group) -> None:
        """Nothing more of the group that was given last."""
        self._skipped.add(group)

    def _follow(self, heap: _Heap, group: Group, index: int) -> None:
        members = self._queue.groups[group]
        if index < len(members) and group not in self._skipped:
            rank, name = members[index]
            heappush(heap, (rank, name, group, index))

    def _place(self, allocated: bool, team: str) -> _Place:
        first, name, _, _ = self._heaps[allocated, team][0]
        share = max(self._accounts.team(team).share, _TINY_SHARE)
        owed = self._accounts.balance(team) / share if self._accounts.rules.teams else 0.0
        claims = allocated and self._accounts.claims(self._queue.items[name])
        return (not claims, -owed, self._accounts.used[team], first[3], team)
