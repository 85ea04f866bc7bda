"""Teams, and the change sets through which their budgets change."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from scheduler_bridge.model.workload import Priority

DEFAULT_TEAM: Final = "default"
"""Whose share somebody uses who is in no team."""


@dataclass(frozen=True, slots=True)
class Team:
    """Owner of a share of the GPUs, for itself and its sub-teams.

    Its share is `share_percent` of its parent's (of the fleet's GPU time without a `parent`), or
    `gpu_hours_per_day`; without either a sub-team has an equal part of what those beside it leave, and
    a team without parent is owed nothing. At once it may hold `limit` GPUs, and `priority_limits` of
    them for work of that priority and above; None is no limit. `guaranteed` GPUs it gets back at
    once; meanwhile at most `lending_limit` of them are lent, and it may hold at most
    `borrowing_limit` GPUs above them. Whoever is in one of its Hub `groups` (in the one of its own
    name if none is given), or one of `users`, may use it."""

    name: str
    parent: str = ""
    share_percent: float | None = None
    gpu_hours_per_day: float | None = None
    limit: int | None = None
    priority_limits: dict[Priority, int] = field(default_factory=dict)
    guaranteed: int = 0
    lending_limit: int | None = None
    borrowing_limit: int | None = None
    groups: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    price_per_gpu_hour: float | None = None


@dataclass(frozen=True, slots=True)
class TeamChange:
    """One team before and after; None where there was or is none."""

    before: Team | None
    after: Team | None

    @property
    def name(self) -> str:
        """The team's."""
        team = self.after or self.before
        return team.name if team else ""


@dataclass(frozen=True, slots=True)
class Proposal:
    """What somebody wants to change. `based_on` is the id of the last change set that they saw, empty
    if there was none: what others changed since is not overwritten."""

    reason: str
    based_on: str = ""
    created: tuple[Team, ...] = ()
    changed: tuple[Team, ...] = ()
    deleted: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ChangeSet:
    """What was changed: by whom, why, when (UNIX seconds), and after which change set. `undoes` names
    the one that it takes back."""

    id: str
    author: str
    reason: str
    at: float
    based_on: str
    changes: tuple[TeamChange, ...]
    undoes: str = ""


@dataclass(frozen=True, slots=True)
class TeamView:
    """A team with what follows from its place in the tree: its part of the fleet's GPU time (0 to 1)
    and the GPUs that it may hold at once. `by_settings`: only the scheduler's settings name it."""

    team: Team
    share: float = 0.0
    gpu_hours_per_day: float = 0.0
    limit: int | None = None
    by_settings: bool = False


@dataclass(frozen=True, slots=True)
class TeamsView:
    """The tree, parents before their sub-teams. `head` is the last change set's id; `gpus` is the
    fleet's number. `is_open`: no budgets are set, and every Hub group is a team."""

    head: str
    gpus: int
    teams: tuple[TeamView, ...]
    is_open: bool = True
