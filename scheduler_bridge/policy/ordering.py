"""Who is considered first.

Inside a team: 1. sessions that come back, 2. higher priority, 3. longer in the queue, 4. id.
Between teams: the team that holds the fewest GPUs, then whose head waits longest. Priority never
crosses teams.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from scheduler_bridge.policy.values import Pending


def team_key(item: Pending) -> tuple[bool, int, float, str]:
    """Sort key inside a team."""
    return (not item.returning, -item.priority, item.since, item.id)


class Queue:
    """The queue of one planning pass; `pop` depends on what the pass has given away so far."""

    def __init__(self, pending: Iterable[Pending]) -> None:
        self._teams: dict[str, list[Pending]] = {}
        for item in sorted(pending, key=team_key, reverse=True):
            self._teams.setdefault(item.team, []).append(item)

    def __bool__(self) -> bool:
        return bool(self._teams)

    def pop(self, used: Mapping[str, int]) -> Pending:
        """The next workload to consider, given the GPUs in use by each team."""
        team = min(
            self._teams,
            key=lambda name: (used.get(name, 0), self._teams[name][-1].since, name),
        )
        items = self._teams[team]
        item = items.pop()
        if not items:
            del self._teams[team]
        return item
