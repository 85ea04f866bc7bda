"""`teams list`, `show`, `apply`, `history`, `undo`: who owns which share of the GPUs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from hub_config.commands.connection import Access, ask
from hub_config.commands.errors import FAILED, CommandError
from hub_config.commands.output import moment, print_json, print_table
from hub_config.teams_file import TeamsFileError, as_yaml, propose, read_teams, stated
from scheduler_bridge.model.teams import ChangeSet, Proposal, Team, TeamChange, TeamsView, TeamView
from scheduler_bridge.plugin import SchedulerPlugin

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Reason = Annotated[str, typer.Option(help="Why; it stays in the history.")]

app = typer.Typer(help="Who owns which share of the GPUs.", no_args_is_help=True)


def register(parent: typer.Typer) -> None:
    """Add the commands."""
    parent.add_typer(app, name="teams")


@app.command("list")
def list_teams(
    as_json: AsJson = False,
    yaml: Annotated[bool, typer.Option("--yaml", help="Print a file for `teams apply`.")] = False,
) -> None:
    """List teams, sub-teams below their parents."""
    seen = ask(lambda scheduler, _: scheduler.teams())
    if yaml:
        typer.echo(as_yaml(_stored(seen)), nl=False)
        return
    if as_json:
        print_json(seen)
        return
    depths = _depths(seen)
    print_table(
        (
            "TEAM",
            "SHARE",
            "GPU-HOURS/DAY",
            "AT ONCE",
            "GUARANTEED",
            "LENDS",
            "BORROWS",
            "GROUPS",
            "",
        ),
        (_row(it, depths[it.team.name]) for it in seen.teams),
        empty="No teams.",
    )
    if seen.is_open:
        typer.echo("\nNo budgets are set: every group of the Hub is a team.")


def _stored(seen: TeamsView) -> tuple[Team, ...]:
    return tuple(it.team for it in seen.teams if not it.by_settings)


def _depths(seen: TeamsView) -> dict[str, int]:
    """Parents come before their sub-teams."""
    depths: dict[str, int] = {}
    for it in seen.teams:
        depths[it.team.name] = depths.get(it.team.parent, -1) + 1
    return depths


def _row(it: TeamView, depth: int) -> tuple[str, ...]:
    team = it.team
    return (
        "  " * depth + team.name,
        f"{it.share:.1%}" if it.share else "",
        f"{it.gpu_hours_per_day:g}" if it.share else "",
        _count(it.limit),
        str(team.guaranteed or ""),
        _count(team.lending_limit),
        _count(team.borrowing_limit),
        ", ".join(team.groups),
        "by the settings" if it.by_settings else "",
    )


def _count(value: int | None) -> str:
    return "" if value is None else str(value)


@app.command()
def show(name: Annotated[str, typer.Argument(help="A team.")], as_json: AsJson = False) -> None:
    """Show what a team states, and what follows from its place in the tree."""
    seen = ask(lambda scheduler, _: scheduler.teams())
    it = next((it for it in seen.teams if it.team.name == name), None)
    if it is None:
        known = ", ".join(it.team.name for it in seen.teams) or "none"
        raise CommandError(f"there is no team {name}.", remedy=f"There is: {known}.")
    if as_json:
        print_json(it)
        return
    rows = {key: _shown(value) for key, value in stated(it.team).items()}
    rows["sub-teams"] = ", ".join(o.team.name for o in seen.teams if o.team.parent == name)
    rows["part of the fleet"] = f"{it.share:.1%}, {it.gpu_hours_per_day:g} GPU-hours a day"
    rows["GPUs at once"] = "no limit" if it.limit is None else f"at most {it.limit}"
    for key, text in rows.items():
        if text:
            typer.echo(f"{key:<19} {text}")


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(value)
    if isinstance(value, dict):
        return ", ".join(f"{key} {limit}" for key, limit in value.items())
    return f"{value:g}" if isinstance(value, float) else str(value)


@app.command()
def apply(
    file: Annotated[Path, typer.Argument(help="Teams as they should be (YAML).")],
    reason: Reason = "",
    prune: Annotated[bool, typer.Option("--prune", help="Delete teams it does not name.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would change.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make teams as a file says, all of it or nothing. Teams that it does not name stay."""
    try:
        wanted = read_teams(file)
    except TeamsFileError as error:
        print_json({"mistakes": error.mistakes}) if as_json else typer.echo(str(error), err=True)
        raise typer.Exit(FAILED) from error
    _need_reason(reason, unless=dry_run)
    proposal, current, made = ask(
        lambda scheduler, access: _apply(scheduler, access, wanted, reason, prune, dry_run)
    )
    if as_json:
        print_json({"proposal": proposal, "change_set": made})
        return
    for line in _lines(_changes(proposal, current)):
        typer.echo(line)
    if not _changes(proposal, current):
        typer.echo("Nothing to change.")
    elif made is not None:
        typer.echo(f"Done as {made.id}; take it back with: hubernate teams undo {made.id}")


async def _apply(
    scheduler: SchedulerPlugin,
    access: Access,
    wanted: tuple[Team, ...],
    reason: str,
    prune: bool,
    dry_run: bool,
) -> tuple[Proposal, dict[str, Team], ChangeSet | None]:
    """The proposal, the teams before, and the change set if one was made."""
    seen = await scheduler.teams()
    current = {team.name: team for team in _stored(seen)}
    proposal = propose(current.values(), wanted, prune=prune, based_on=seen.head, reason=reason)
    made = None
    if _changes(proposal, current) and not dry_run:
        made = await scheduler.change_teams(proposal, actor=access.actor)
    return proposal, current, made


def _need_reason(reason: str, *, unless: bool = False) -> None:
    if not reason.strip() and not unless:
        raise CommandError(
            "a change of teams needs a reason.",
            remedy='For example: --reason "vision has got its grant"',
        )


def _changes(proposal: Proposal, current: dict[str, Team]) -> tuple[TeamChange, ...]:
    return (
        *(TeamChange(None, team) for team in proposal.created),
        *(TeamChange(current[team.name], team) for team in proposal.changed),
        *(TeamChange(current[name], None) for name in proposal.deleted),
    )


def _lines(changes: tuple[TeamChange, ...]) -> list[str]:
    return [f"{_verb(change)} {change.name}{_difference(change)}" for change in changes]


def _verb(change: TeamChange) -> str:
    return "create" if change.before is None else "delete" if change.after is None else "change"


def _difference(change: TeamChange) -> str:
    """Each key with its value, or with both where it changed."""
    before = stated(change.before) if change.before else {}
    after = stated(change.after) if change.after else {}
    if change.after is None:
        return ""
    told = [
        f"{key} {_shown(after.get(key, 'none'))}"
        if change.before is None
        else f"{key} {_shown(before.get(key, 'none'))} → {_shown(after.get(key, 'none'))}"
        for key in {**before, **after}
        if key != "name" and before.get(key) != after.get(key)
    ]
    return f": {', '.join(told)}" if told else ""


@app.command()
def history(as_json: AsJson = False) -> None:
    """List the changes of teams, oldest first: when, by whom, why and what."""
    found = ask(lambda scheduler, _: scheduler.team_changes())
    if as_json:
        print_json(found)
        return
    print_table(
        ("ID", "AT", "BY", "WHY", "WHAT"),
        (
            (it.id, moment(it.at), it.author, _why(it), "\n".join(_lines(it.changes)))
            for it in found
        ),
        empty="Teams were never changed.",
    )


def _why(change_set: ChangeSet) -> str:
    if change_set.undoes:
        return f"{change_set.reason} (undoes {change_set.undoes})"
    return change_set.reason


@app.command()
def undo(
    change: Annotated[str, typer.Argument(help="The id of a change, from `teams history`.")],
    reason: Reason = "",
    as_json: AsJson = False,
) -> None:
    """Take a change back. Refused where later ones depend on it; an undo can be undone too."""
    _need_reason(reason)
    made = ask(
        lambda scheduler, access: scheduler.undo_teams(change, reason=reason, actor=access.actor)
    )
    if as_json:
        print_json(made)
        return
    for line in _lines(made.changes):
        typer.echo(line)
    typer.echo(f"Done as {made.id}.")
