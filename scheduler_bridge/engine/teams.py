"""Changing the teams' budgets, taking a change back, and what is shown of them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Final

from scheduler_bridge.engine.books import Books
from scheduler_bridge.engine.budgets import fleet_gpus
from scheduler_bridge.engine.scheduler import Scheduler
from scheduler_bridge.errors import Conflict, NotFound, Refused
from scheduler_bridge.model.teams import (
    DEFAULT_TEAM,
    ChangeSet,
    Proposal,
    Team,
    TeamsView,
    TeamView,
)
from scheduler_bridge.policy.budget_changes import Staged, stage, stage_undo
from scheduler_bridge.policy.budgets import HOURS_PER_DAY, at_once, shares
from scheduler_bridge.policy.values import Rules

MAX_REASON: Final = 1000
_SHOWN_MISTAKES: Final = 5


def change(scheduler: Scheduler, proposal: Proposal, *, author: str) -> ChangeSet:
    """Make a change set of the proposal. Raises `Refused` with what is wrong, and `Conflict` where
    others have changed something since; then nothing is changed."""
    books = scheduler.books
    _check_reason(proposal.reason)
    _check_head(books, proposal.based_on)
    staged = stage(books.budgets, proposal, fleet_gpus(books))
    return _write(scheduler, staged, author=author, reason=proposal.reason)


def undo(scheduler: Scheduler, undone: str, *, author: str, reason: str) -> ChangeSet:
    """Take one change set back by another one. Raises `NotFound`, and `Refused` where later ones
    depend on it."""
    books = scheduler.books
    _check_reason(reason)
    if all(it.id != undone for it in books.change_sets):
        raise NotFound(
            f"There is no change set {undone!r}.", remedy="See them with: hubernate teams history"
        )
    staged = stage_undo(books.change_sets, undone, fleet_gpus(books))
    return _write(scheduler, staged, author=author, reason=reason, undoes=undone)


def _write(
    scheduler: Scheduler, staged: Staged, *, author: str, reason: str, undoes: str = ""
) -> ChangeSet:
    if staged.mistakes:
        raise Refused(_in_words(staged), remedy="Nothing was changed.")
    books = scheduler.books
    with books.draft() as draft:
        made = ChangeSet(
            books.ids("t"), author, reason, draft.now, books.budgets.head, staged.changes, undoes
        )
        draft.change_teams(made)
        draft.note(
            "teams", None, cause=reason, actor=author, target=made.id, evidence=_evidence(made)
        )
    scheduler.wake()
    return made


def _in_words(staged: Staged) -> str:
    shown = [str(it) for it in staged.mistakes[:_SHOWN_MISTAKES]]
    more = len(staged.mistakes) - len(shown)
    return " ".join([*shown, f"And {more} more." if more else ""]).strip()


def _evidence(made: ChangeSet) -> dict[str, object]:
    return {
        "created": [it.name for it in made.changes if it.before is None],
        "changed": [it.name for it in made.changes if it.before and it.after],
        "deleted": [it.name for it in made.changes if it.after is None],
        "undoes": made.undoes,
    }


def _check_reason(reason: str) -> None:
    if not reason.strip() or len(reason) > MAX_REASON or "\0" in reason:
        raise Refused(
            f"reason: must have 1 to {MAX_REASON} characters; it has {len(reason.strip())}.",
            remedy="Say why; it stays in the history.",
        )


def _check_head(books: Books, based_on: str) -> None:
    if based_on == books.budgets.head:
        return
    last = next(reversed(books.change_sets), None)
    since = f"{last.id} by {last.author}: {last.reason}" if last else "none was made yet"
    raise Conflict(
        f"based_on: {based_on or 'nothing'!r} is not the last change set ({since}).",
        remedy="Look at the teams as they are now, then change them.",
    )


def view(books: Books, rules: Rules) -> TeamsView:
    """The whole tree, and the teams that only the settings name."""
    budgets, gpus = books.budgets, fleet_gpus(books)
    parts = shares(budgets, gpus)
    shown = [
        TeamView(
            team,
            parts[team.name],
            parts[team.name] * gpus * HOURS_PER_DAY,
            at_once(budgets.line(team.name)),
        )
        for team in budgets.downwards()
    ]
    named = {*rules.team_limits, DEFAULT_TEAM} - set(budgets.teams)
    for name in sorted(named):
        limit = rules.limit_of(name)
        shown.append(TeamView(Team(name, limit=limit), limit=limit, by_settings=True))
    return TeamsView(budgets.head, gpus, tuple(shown), is_open=not budgets.teams)


def narrowed(seen: TeamsView, mine: Collection[str]) -> TeamsView:
    """Only these teams and those above them."""
    parents = {it.team.name: it.team.parent for it in seen.teams}
    shown: set[str] = set()
    for name in mine:
        while name in parents and name not in shown:
            shown.add(name)
            name = parents[name]
    return replace(seen, teams=tuple(it for it in seen.teams if it.team.name in shown))
