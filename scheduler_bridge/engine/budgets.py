"""What the teams' budgets allow now, and who may use which team.

While no change set names a team, every Hub group is one, and the settings' limits count. What a change
set says of a team counts instead of the settings.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from scheduler_bridge.engine.books import Books
from scheduler_bridge.engine.settings import Settings
from scheduler_bridge.errors import Refused
from scheduler_bridge.model.teams import DEFAULT_TEAM
from scheduler_bridge.policy.budget_checks import MAX_GPUS
from scheduler_bridge.policy.budgets import flat_rules
from scheduler_bridge.policy.values import Rules


def fleet_gpus(books: Books) -> int:
    """All GPUs, on machines that are not ready too: budgets do not sway with them."""
    return books.fleet.gpus


def rules_now(books: Books, settings: Settings) -> Rules:
    """What the planner and admission keep to: the settings, the budgets and the pauses."""
    balances = books.balances(books.clock.now()) if books.budgets.teams else {}
    teams = flat_rules(books.budgets, fleet_gpus(books), balances)
    # without a limit in its budget a team has none, whatever the settings say of others
    limits = {name: MAX_GPUS if it.limit is None else it.limit for name, it in teams.items()}
    scopes = {pause.scope for pause in books.active_pauses()}
    rules = settings.rules
    return replace(
        rules,
        team_limits={**rules.team_limits, **limits},
        teams=teams,
        parents={name: it.parent for name, it in books.budgets.teams.items() if it.parent},
        preemption=rules.preemption and scopes.isdisjoint({"preempt", "all"}),
    )


def refuse_unknown(books: Books, settings: Settings, team: str) -> None:
    """Raises `Refused` for a team whose share nobody can use, because there is no such team."""
    teams = books.budgets.teams
    if not teams or team in teams or team in settings.rules.team_limits or team == DEFAULT_TEAM:
        return
    raise Refused(
        f"team: there is no team {team!r}.",
        remedy=f"Use one of yours (hubernate teams list), or {DEFAULT_TEAM}.",
    )


def usable_teams(
    books: Books, settings: Settings, user: str, groups: Collection[str]
) -> tuple[str, ...]:
    """The teams whose share somebody in these Hub groups may use; the default one for who has none."""
    teams = books.budgets.teams
    if not teams:
        return tuple(sorted(set(groups))) or (DEFAULT_TEAM,)
    of_settings = {it for it in groups if it in settings.rules.team_limits and it not in teams}
    return tuple(sorted({*of_settings, *books.budgets.usable(user, groups)})) or (DEFAULT_TEAM,)
