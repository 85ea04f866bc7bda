"""What is wrong with a tree of teams: sums, cycles, limits. Every mistake is named, with what would be
accepted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
from typing import Final

from scheduler_bridge.model.teams import Team
from scheduler_bridge.policy.budgets import HOURS_PER_DAY, Budgets, asked_share, at_once, shares

MAX_GPUS: Final = 1_000_000
MAX_PRICE: Final = 1_000_000.0
MAX_NAME: Final = 128
MAX_NAMES: Final = 1000
MAX_TEAMS: Final = 10_000
_ROUNDING: Final = 1 + 1e-9


@dataclass(frozen=True, slots=True)
class Mistake:
    """What is wrong with which field of a team, and what would be accepted."""

    team: str
    field: str
    problem: str

    def __str__(self) -> str:
        return f"{f'team {self.team}: ' if self.team else ''}{self.field}: {self.problem}"


def mistakes(budgets: Budgets, fleet_gpus: int) -> tuple[Mistake, ...]:
    """None if the budgets can be used with a fleet of that many GPUs. Else all of one kind: first what
    is wrong with single teams, then with parents, then with sums."""
    if len(budgets.teams) > MAX_TEAMS:
        problem = f"there are {len(budgets.teams)}, at most {MAX_TEAMS} are possible."
        return (Mistake("", "teams", problem),)
    found = [it for name in sorted(budgets.teams) for it in _alone(budgets.teams[name])]
    return tuple(found or _parents(budgets)) or tuple(_sums(budgets, fleet_gpus))


def _alone(team: Team) -> Iterator[Mistake]:
    """What is wrong with a team whatever the others are."""
    for field, text in (("name", team.name), *(("groups", it) for it in team.groups)):
        yield from _name(team, field, text)
    for text in team.users:
        yield from _name(team, "users", text)
    if len(team.groups) + len(team.users) > MAX_NAMES:
        problem = f"at most {MAX_NAMES} groups and users together; use a Hub group."
        yield Mistake(team.name, "users", problem)
    yield from tuple(_numbers(team)) or _within(team)


def _name(team: Team, field: str, text: str) -> Iterator[Mistake]:
    if not 1 <= len(text) <= MAX_NAME or not text.isprintable() or text != text.strip():
        problem = (
            f"must be 1 to {MAX_NAME} printable characters without spaces around; it is {text!r}."
        )
        yield Mistake(team.name, field, problem)


def _numbers(team: Team) -> Iterator[Mistake]:
    for field, most in (
        ("share_percent", 100.0),
        ("gpu_hours_per_day", HOURS_PER_DAY * MAX_GPUS),
        ("price_per_gpu_hour", MAX_PRICE),
        ("limit", MAX_GPUS),
        ("guaranteed", MAX_GPUS),
        ("lending_limit", MAX_GPUS),
        ("borrowing_limit", MAX_GPUS),
    ):
        yield from _between(team, field, getattr(team, field), most)
    for priority, limit in team.priority_limits.items():
        yield from _between(team, f"priority_limits.{priority.name.lower()}", limit, MAX_GPUS)


def _between(team: Team, field: str, value: float | None, most: float) -> Iterator[Mistake]:
    if value is not None and not (isfinite(value) and 0 <= value <= most):
        yield Mistake(team.name, field, f"must be between 0 and {most:.0f}; it is {value}.")


def _within(team: Team) -> Iterator[Mistake]:
    """Numbers of one team that contradict each other."""
    if team.share_percent is not None and team.gpu_hours_per_day is not None:
        problem = "state this or share_percent, not both."
        yield Mistake(team.name, "gpu_hours_per_day", problem)
    if (team.lending_limit or 0) > team.guaranteed:
        problem = (
            f"only guaranteed GPUs are lent: at most {team.guaranteed}; it is {team.lending_limit}."
        )
        yield Mistake(team.name, "lending_limit", problem)
    if team.limit is None:
        return
    if team.guaranteed > team.limit:
        problem = f"at most its limit of {team.limit}; it is {team.guaranteed}."
        yield Mistake(team.name, "guaranteed", problem)
    for priority, limit in team.priority_limits.items():
        if limit > team.limit:
            field = f"priority_limits.{priority.name.lower()}"
            yield Mistake(team.name, field, f"at most its limit of {team.limit}; it is {limit}.")


def _parents(budgets: Budgets) -> Iterator[Mistake]:
    rooted = {team.name for team in budgets.downwards()}
    for name in sorted(budgets.teams):
        parent = budgets.teams[name].parent
        if parent and parent not in budgets.teams:
            yield Mistake(
                name, "parent", f"there is no team {parent!r}; create it, or name another."
            )
        elif name not in rooted and name in _circle(budgets, name):
            way = " → ".join((*_circle(budgets, name), name))
            yield Mistake(name, "parent", f"it is below itself: {way}; one needs another parent.")


def _circle(budgets: Budgets, name: str) -> tuple[str, ...]:
    """The team and those above it until it comes again; empty if it does not."""
    line = budgets.line(name)
    return tuple(team.name for team in line) if line and line[-1].parent == name else ()


def _sums(budgets: Budgets, fleet_gpus: int) -> Iterator[Mistake]:
    parts = {"": 1.0, **shares(budgets, fleet_gpus)}
    below = budgets.below()
    for parent in ("", *(team.name for team in budgets.downwards())):
        teams = below.get(parent, [])
        yield from _share_sum(teams, parent, parts[parent], fleet_gpus)
        yield from _guaranteed_sum(teams, budgets.teams.get(parent), fleet_gpus)
    for team in budgets.downwards():
        yield from _below_parents_limit(budgets, team)


def _share_sum(teams: list[Team], parent: str, whole: float, fleet_gpus: int) -> Iterator[Mistake]:
    """Percent, hours, and both together: the first sum that is too large."""
    of = f"team {parent}" if parent else "the fleet"
    percents = sum(team.share_percent or 0.0 for team in teams)
    hours = sum(team.gpu_hours_per_day or 0.0 for team in teams)
    available = whole * fleet_gpus * HOURS_PER_DAY
    asked = sum(asked_share(team, whole, fleet_gpus) or 0.0 for team in teams)
    who = _names([it for it in teams if it.share_percent or it.gpu_hours_per_day])
    if percents > 100 * _ROUNDING:
        problem = f"{who} have {percents:g} % of {of} together; at most 100 are possible."
        yield Mistake(parent, "share_percent", problem)
    elif hours > available * _ROUNDING:
        has = f"{of} has {available:g} ({fleet_gpus} GPUs exist)"
        problem = f"{who} have {hours:g} GPU-hours a day together; {has}."
        yield Mistake(parent, "gpu_hours_per_day", problem)
    elif asked > whole * _ROUNDING:
        problem = f"{who} have {asked / whole:.1%} of {of} together, by percent and by hours."
        yield Mistake(parent, "share_percent", problem)


def _guaranteed_sum(teams: list[Team], parent: Team | None, fleet_gpus: int) -> Iterator[Mistake]:
    promised = sum(team.guaranteed for team in teams)
    most = fleet_gpus if parent is None else parent.guaranteed
    if promised > most:
        whose = "the fleet has" if parent is None else f"team {parent.name} has guaranteed"
        who = _names([it for it in teams if it.guaranteed])
        problem = f"{who} are promised {promised} GPUs together; {whose} {most}."
        yield Mistake(parent.name if parent else "", "guaranteed", problem)


def _below_parents_limit(budgets: Budgets, team: Team) -> Iterator[Mistake]:
    above = at_once(budgets.line(team.parent))
    if above is None:
        return
    for field, value in (("limit", team.limit), ("guaranteed", team.guaranteed)):
        if value is not None and value > above:
            problem = f"at most the {above} that team {team.parent} may hold; it is {value}."
            yield Mistake(team.name, field, problem)


def _names(teams: list[Team]) -> str:
    names = [team.name for team in teams]
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
