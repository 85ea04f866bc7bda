"""Teams and budgets for tests."""

from __future__ import annotations

from typing import Any

from scheduler_bridge.model.teams import ChangeSet, Team, TeamChange
from scheduler_bridge.policy.budgets import Budgets


def team(name: str, parent: str = "", **more: Any) -> Team:
    """A team."""
    return Team(name, parent, **more)


def tree(*teams: Team, head: str = "") -> Budgets:
    """Budgets of these teams."""
    return Budgets({it.name: it for it in teams}, head)


def change_set(name: str, *changes: TeamChange, based_on: str = "", **more: Any) -> ChangeSet:
    """A change set of those changes."""
    return ChangeSet(name, "root", "because", 1.0, based_on, changes, **more)
