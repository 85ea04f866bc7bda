"""The tree of teams, and what each of them may have and is owed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from scheduler_bridge.model.teams import Team, TeamChange
from scheduler_bridge.policy.values import TeamRules

HOURS_PER_DAY: Final = 24.0


@dataclass(frozen=True, slots=True)
class Budgets:
    """All teams by name; `head` is the id of the change set that made them so. Without teams no
    budgets are set."""

    teams: Mapping[str, Team] = field(default_factory=dict)
    head: str = ""
    _known: dict[tuple[int, bool], dict[str, TeamRules]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """Worked out once for each size of the fleet: every planning pass and admission asks."""

    def changed(self, changes: Iterable[TeamChange], head: str) -> Budgets:
        """As they are after the changes, which nobody checks here."""
        teams = dict(self.teams)
        for change in changes:
            if change.after is None:
                teams.pop(change.name, None)
            else:
                teams[change.name] = change.after
        return Budgets(teams, head)

    def below(self) -> dict[str, list[Team]]:
        """Sub-teams by parent, in the order of their names; those without parent under the empty
        name."""
        found: dict[str, list[Team]] = {}
        for name in sorted(self.teams):
            found.setdefault(self.teams[name].parent, []).append(self.teams[name])
        return found

    def downwards(self) -> Iterator[Team]:
        """Parents before their sub-teams, sub-teams right behind. What hangs on no root is left out."""
        below = self.below()
        rest = list(reversed(below.get("", [])))
        while rest:
            team = rest.pop()
            yield team
            rest.extend(reversed(below.get(team.name, [])))

    def line(self, name: str) -> tuple[Team, ...]:
        """The team, its parent, and so on up; ends where there is none, or one would come again."""
        found: dict[str, Team] = {}
        while name in self.teams and name not in found:
            found[name] = self.teams[name]
            name = found[name].parent
        return tuple(found.values())

    def rules(self, fleet_gpus: int, *, flat: bool) -> Mapping[str, TeamRules]:
        """What `team_rules` or `flat_rules` give while nobody is owed anything."""
        key = (fleet_gpus, flat)
        if key not in self._known:
            self._known[key] = _flat(self, fleet_gpus) if flat else _rules(self, fleet_gpus)
        return self._known[key]

    def usable(self, user: str, groups: Collection[str]) -> tuple[str, ...]:
        """The teams whose share somebody may use, by name."""
        return tuple(
            sorted(
                team.name
                for team in self.teams.values()
                if user in team.users or not set(groups).isdisjoint(team.groups or (team.name,))
            )
        )


def asked_share(team: Team, whole: float, fleet_gpus: int) -> float | None:
    """The part of the fleet that the team's own words ask for; None if it asks for none. `whole` is
    its parent's."""
    if team.share_percent is not None:
        return whole * team.share_percent / 100
    if team.gpu_hours_per_day is not None:
        return team.gpu_hours_per_day / (HOURS_PER_DAY * fleet_gpus) if fleet_gpus else 0.0
    return None


def shares(budgets: Budgets, fleet_gpus: int) -> dict[str, float]:
    """Each team's part of the fleet's GPU time, 0 to 1. What sub-teams ask for above their parent's
    share (hours of a fleet that has shrunk) they give up in proportion."""
    below = budgets.below()
    found = {"": 1.0}
    for parent in ("", *(team.name for team in budgets.downwards())):
        found |= _parts(below.get(parent, []), found[parent], fleet_gpus, shares_rest=bool(parent))
    del found[""]
    return found


def _parts(
    teams: list[Team], whole: float, fleet_gpus: int, *, shares_rest: bool
) -> dict[str, float]:
    asked = {team.name: asked_share(team, whole, fleet_gpus) for team in teams}
    stated = sum(part for part in asked.values() if part is not None)
    scale = whole / stated if stated > whole else 1.0
    silent = sum(part is None for part in asked.values())
    rest = max(0.0, whole - stated) / silent if silent and shares_rest else 0.0
    return {name: rest if part is None else part * scale for name, part in asked.items()}


def team_rules(
    budgets: Budgets, fleet_gpus: int, balances: Mapping[str, float]
) -> dict[str, TeamRules]:
    """What the planner keeps to, by team. A parent's values include its sub-teams; a sub-team's limits
    are at most its parents'. `balances` is owed minus delivered, in GPU-seconds."""
    return _owed(budgets.rules(fleet_gpus, flat=False), balances)


def flat_rules(
    budgets: Budgets, fleet_gpus: int, balances: Mapping[str, float]
) -> dict[str, TeamRules]:
    """The same for who adds teams up without knowing the tree: what is guaranteed to sub-teams is not
    in their parent's guarantee any more, and what may be borrowed is in the limits."""
    return _owed(budgets.rules(fleet_gpus, flat=True), balances)


def _owed(rules: Mapping[str, TeamRules], balances: Mapping[str, float]) -> dict[str, TeamRules]:
    return {
        name: replace(it, balance=balances[name]) if name in balances else it
        for name, it in rules.items()
    }


def _rules(budgets: Budgets, fleet_gpus: int) -> dict[str, TeamRules]:
    parts = shares(budgets, fleet_gpus)
    return {
        name: TeamRules(
            limit=at_once(budgets.line(name)),
            priority_limits=_by_priority(budgets.line(name)),
            guaranteed=team.guaranteed,
            lending_limit=team.lending_limit,
            borrowing_limit=team.borrowing_limit,
            share=parts.get(name, 0.0),
        )
        for name, team in budgets.teams.items()
    }


def _flat(budgets: Budgets, fleet_gpus: int) -> dict[str, TeamRules]:
    below = budgets.below()
    found = {}
    for name, it in _rules(budgets, fleet_gpus).items():
        given = sum(team.guaranteed for team in below.get(name, []))
        left = max(0, it.guaranteed - given)
        lent = None if it.lending_limit is None else min(it.lending_limit, left)
        found[name] = replace(it, guaranteed=left, lending_limit=lent, borrowing_limit=None)
    return found


def at_once(line: Iterable[Team]) -> int | None:
    """How many GPUs the first of the line may hold at once; None is no limit."""
    known = [team.limit for team in line if team.limit is not None]
    known += [
        team.guaranteed + team.borrowing_limit for team in line if team.borrowing_limit is not None
    ]
    return min(known, default=None)


def _by_priority(line: Iterable[Team]) -> dict[int, int]:
    found: dict[int, int] = {}
    for team in line:
        for priority, limit in team.priority_limits.items():
            found[int(priority)] = min(limit, found.get(int(priority), limit))
    return found
