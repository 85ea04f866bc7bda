"""From what somebody wants to change, or to take back, to changes that may be made, or to why not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from scheduler_bridge.model.teams import ChangeSet, Proposal, TeamChange
from scheduler_bridge.policy.budget_checks import Mistake, mistakes
from scheduler_bridge.policy.budgets import Budgets


@dataclass(frozen=True, slots=True)
class Staged:
    """Changes that may be made, or what is wrong with them (then nothing is to be changed)."""

    changes: tuple[TeamChange, ...] = ()
    mistakes: tuple[Mistake, ...] = ()


def replay(history: Iterable[ChangeSet]) -> Budgets:
    """What all change sets, oldest first, have made."""
    budgets = Budgets()
    for change_set in history:
        budgets = budgets.changed(change_set.changes, change_set.id)
    return budgets


def stage(budgets: Budgets, proposal: Proposal, fleet_gpus: int) -> Staged:
    """The changes that a proposal means. A team that is changed to what it is already is left out."""
    wrong = tuple(_not_there(budgets, proposal))
    if wrong:
        return Staged(mistakes=wrong)
    teams = budgets.teams
    made = [TeamChange(None, team) for team in proposal.created]
    made += [TeamChange(teams[team.name], team) for team in proposal.changed]
    made += [TeamChange(teams[name], None) for name in proposal.deleted]
    return _checked(budgets, [it for it in made if it.before != it.after], fleet_gpus)


def _not_there(budgets: Budgets, proposal: Proposal) -> Iterator[Mistake]:
    created = [team.name for team in proposal.created]
    changed = [team.name for team in proposal.changed]
    for name, count in Counter([*created, *changed, *proposal.deleted]).items():
        if count > 1:
            yield Mistake(name, "name", "it is named more than once in this change.")
    for name in created:
        if name in budgets.teams:
            yield Mistake(name, "name", "there is such a team already; change it.")
    for name in (*changed, *proposal.deleted):
        if name not in budgets.teams:
            yield Mistake(name, "name", "there is no such team.")


def _checked(budgets: Budgets, changes: Sequence[TeamChange], fleet_gpus: int) -> Staged:
    if not changes:
        return Staged(mistakes=(Mistake("", "teams", "nothing would change."),))
    wrong = mistakes(budgets.changed(changes, ""), fleet_gpus)
    return Staged(mistakes=wrong) if wrong else Staged(tuple(changes))


def stage_undo(history: Sequence[ChangeSet], undone: str, fleet_gpus: int) -> Staged:
    """The changes that take one change set of the history back. None may be made where later ones
    have changed the same teams again, or rest on what would go; these are named."""
    made = next((it for it in history if it.id == undone), None)
    if made is None:
        return Staged(mistakes=(Mistake("", "id", f"there is no change set {undone!r}."),))
    budgets = replay(history)
    touched = tuple(_changed_since(budgets, made, history))
    if touched:
        return Staged(mistakes=touched)
    back = tuple(TeamChange(change.after, change.before) for change in made.changes)
    needed = tuple(_needed_since(budgets, back, history))
    return Staged(mistakes=needed) if needed else _checked(budgets, back, fleet_gpus)


def _changed_since(
    budgets: Budgets, made: ChangeSet, history: Sequence[ChangeSet]
) -> Iterator[Mistake]:
    for change in made.changes:
        if budgets.teams.get(change.name) != change.after:
            later = _last_that_touched(change.name, history)
            yield Mistake(change.name, "undo", f"{later} has changed it since; undo that first.")


def _needed_since(
    budgets: Budgets, back: Sequence[TeamChange], history: Sequence[ChangeSet]
) -> Iterator[Mistake]:
    after = budgets.changed(back, "")
    moved = {change.name for change in back}
    for name, team in sorted(after.teams.items()):
        if not team.parent or team.parent in after.teams:
            continue
        if name in moved:
            later = _last_that_touched(team.parent, history)
            problem = f"{later} has deleted it since; undo that first."
        else:
            later = _last_that_touched(name, history)
            problem = f"{later} has put {name} below it since; undo that first, or move {name}."
        yield Mistake(team.parent, "undo", problem)


def _last_that_touched(name: str, history: Sequence[ChangeSet]) -> str:
    return next(
        (it.id for it in reversed(history) if any(change.name == name for change in it.changes)),
        "a later change",
    )
