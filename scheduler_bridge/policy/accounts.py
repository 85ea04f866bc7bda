"""What teams hold within one pass, and which limit a workload would break."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from scheduler_bridge.policy.columns import Work
from scheduler_bridge.policy.values import Pending, Rules, TeamRules, WaitReason

_NONE = TeamRules()


@dataclass(frozen=True, slots=True)
class Refusal:
    """A limit that is in the way. `over` GPUs of the team's own given back would be enough; None if
    that is not what it is about."""

    reason: WaitReason
    evidence: Mapping[str, Any]
    over: int | None = None


@dataclass(slots=True)
class Accounts:
    """GPUs by team; in `within` and `by_priority` with its sub-teams. `going` is what leaving work of a team gives back, `charged` the GPU-seconds of
    protection that this pass has given."""

    rules: Rules
    capacity: int
    used: Counter[str] = field(default_factory=Counter)
    within: Counter[str] = field(default_factory=Counter)
    _lines: dict[str, tuple[str, ...]] = field(default_factory=dict)
    allocated: Counter[str] = field(default_factory=Counter)
    by_priority: Counter[tuple[str, int]] = field(default_factory=Counter)
    going: Counter[str] = field(default_factory=Counter)
    charged: Counter[str] = field(default_factory=Counter)
    guarantees: bool = field(init=False)

    def __post_init__(self) -> None:
        self.guarantees = any(team.guaranteed for team in self.rules.teams.values())

    @classmethod
    def of(cls, rules: Rules, capacity: int, work: Work) -> Accounts:
        """As running work stands."""
        accounts = cls(rules, capacity)
        names = list(work.teams)
        rows = len(work.ids)
        gpus, team = work.gpus[:rows], work.team[:rows]
        for counter, counted in (
            (accounts.used, np.ones(rows, np.bool_)),
            (accounts.allocated, work.allocated[:rows]),
            (accounts.going, work.leaving[:rows]),
        ):
            sums = np.bincount(team, gpus * counted, minlength=len(names))
            counter.update({name: int(n) for name, n in zip(names, sums, strict=True) if n})
        for name, held in accounts.used.items():
            accounts._hold(name, held)
        if any(it.priority_limits for it in rules.teams.values()):
            for row in work.takes:
                accounts._hold_at(names[team[row]], int(work.priority[row]), int(gpus[row]))
        return accounts

    def line(self, name: str) -> tuple[str, ...]:
        """The team and those above it."""
        if name not in self._lines:
            above = self.rules.parents.get(name, "")
            line = [name]
            while above and above not in line:
                line.append(above)
                above = self.rules.parents.get(above, "")
            self._lines[name] = tuple(line)
        return self._lines[name]

    def _hold(self, team: str, gpus: int) -> None:
        for name in self.line(team):
            self.within[name] += gpus

    def _hold_at(self, team: str, priority: int, gpus: int) -> None:
        for name in self.line(team):
            self.by_priority[name, priority] += gpus

    def team(self, name: str) -> TeamRules:
        """The team's rules."""
        return self.rules.teams.get(name, _NONE)

    def give(self, item: Pending, times: int = 1) -> None:
        """It holds its GPUs from now on; with -1 does not any more."""
        wanted = times * item.gpus * item.nodes
        self.used[item.team] += wanted
        self._hold(item.team, wanted)
        self._hold_at(item.team, item.priority, wanted)
        if item.is_allocated:
            self.allocated[item.team] += wanted
            self.charged[item.team] += int(wanted * item.stays)

    def claims(self, item: Pending) -> bool:
        """Whether it asks for what is guaranteed to its team."""
        wanted = item.gpus * item.nodes
        guaranteed = self.team(item.team).guaranteed
        return item.is_allocated and self.allocated[item.team] + wanted <= guaranteed

    def balance(self, name: str) -> float:
        """What the team is owed in GPU-seconds, less what this pass gave it."""
        return self.team(name).balance - self.charged[name]

    def refusal(self, item: Pending, given_back: int = 0) -> Refusal | None:
        """The limit that it would break if `given_back` GPUs of its team were back, or None."""
        wanted = item.gpus * item.nodes
        if not wanted:
            return None
        return self._at_once(item, wanted, given_back) or self._guarantees(item, wanted)

    def allows_after(self, item: Pending, gone: Iterable[tuple[str, int, int, bool]]) -> bool:
        """Whether every limit leaves room for it once those who are to yield (team, GPUs, priority,
        whether allocated) are gone. What they held of their own guarantee is unused then, and kept for
        them; and behind a limit that they make room below there may be another one."""
        names = ("used", "allocated", "within", "by_priority")
        before = {name: Counter(getattr(self, name)) for name in names}
        for team, gpus, priority, allocated in gone:
            self.used[team] -= gpus
            self.allocated[team] -= gpus if allocated else 0
            self._hold(team, -gpus)
            self._hold_at(team, priority, -gpus)
        refused = self.refusal(item)
        for name, counter in before.items():
            setattr(self, name, counter)
        return refused is None

    def _at_once(self, item: Pending, wanted: int, given_back: int) -> Refusal | None:
        """Limits of its team, and of those above it for all that is below them."""
        line = self.line(item.team)
        over = [
            (self.within[name] - given_back + wanted - limit, name, limit)
            for name in line
            if (limit := self._limit(name)) is not None
        ]
        most, name, limit = max(over, key=lambda it: it[0], default=(0, "", 0))
        if most > 0:
            evidence = {"team": name, "limit": limit, "used": self.within[name]}
            return Refusal(WaitReason.TEAM_LIMIT, evidence, most)
        return next(
            (it for name in line if (it := self._at_priority(name, item, wanted)) is not None), None
        )

    def _limit(self, name: str) -> int | None:
        mine = self.team(name)
        limits = [self.rules.limit_of(name), mine.limit]
        if mine.borrowing_limit is not None:
            limits.append(mine.guaranteed + mine.borrowing_limit)
        return min((limit for limit in limits if limit is not None), default=None)

    def _at_priority(self, name: str, item: Pending, wanted: int) -> Refusal | None:
        for priority, limit in sorted(self.team(name).priority_limits.items()):
            held = sum(
                n for (team, p), n in self.by_priority.items() if team == name and p >= priority
            )
            if item.priority >= priority and held + wanted > limit:
                evidence = {"team": name, "limit": limit, "used": held, "priority": priority}
                return Refusal(WaitReason.PRIORITY_LIMIT, evidence)
        return None

    def _guarantees(self, item: Pending, wanted: int) -> Refusal | None:
        """Others' unused guarantees are lent to work without protection only, and within limits."""
        if not self.guarantees or self.claims(item):
            return None
        kept = {
            name: self._kept(name, team, item)
            for name, team in self.rules.teams.items()
            if name != item.team and team.guaranteed
        }
        total = sum(kept.values())
        taken = self.allocated if item.is_allocated else self.used
        if not total or self.capacity - sum(taken.values()) - wanted >= total:
            return None
        teams = sorted(name for name, gpus in kept.items() if gpus)
        return Refusal(WaitReason.GUARANTEED, {"teams": teams, "gpus": total})

    def _kept(self, name: str, team: TeamRules, item: Pending) -> int:
        unused = max(0, team.guaranteed - self.allocated[name])
        if item.is_allocated:
            return unused
        return 0 if team.lending_limit is None else max(0, unused - team.lending_limit)
