"""`snapshots gc` and `snapshots log`: what is deleted, what will be, and what was."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hub_config import audit
from hub_config.commands.connection import ask, need_admin
from hub_config.commands.errors import CommandError
from hub_config.commands.output import day, moment, print_json, print_table, size
from hub_config.commands.store import repository_here
from hub_config.hub_users import hub_users
from hub_config.paths import StateFolder
from hub_config.problems import LocalError
from hub_config.retention_file import RetentionError, read_retention
from hub_config.secrets_store import SecretFiles
from hub_config.settings import read_settings
from scheduler_bridge.errors import SchedulerError

if TYPE_CHECKING:
    from hub_config.collection import Done
    from snapshot.prune import Plan
    from snapshot.repository import Repository
    from snapshot.retention import Decision, Policy

LOCK = "collect.lock"
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


def register(app: typer.Typer) -> None:
    """Add the commands to `snapshots`."""
    app.command("gc")(collect)
    app.command("log")(show_log)


def collect(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan, do nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete what the retention policy gives up and what no snapshot needs any more."""
    from hub_config.collection import only_collector

    _, state = need_admin("collecting snapshots")
    try:
        policy = read_retention(state.retention_file)
        with repository_here() as repository, only_collector(state.run / LOCK):
            report = _run(state, repository, policy, dry_run=dry_run)
    except RetentionError as error:
        raise CommandError(f"nothing is deleted by a policy with mistakes.\n{error}") from error
    except LocalError as error:
        raise CommandError(error.message, remedy=error.remedy) from error
    if as_json:
        print_json(report)
    else:
        _print(report)


def _run(
    state: StateFolder, repository: Repository, policy: Policy, *, dry_run: bool
) -> dict[str, Any]:
    from hub_config import collection
    from snapshot.prune import check_clock, sweep

    now = time.time()
    check_clock(repository.store, now)
    inventories = collection.look(repository)
    accounts = _accounts(state)
    problem = ""
    try:
        sessions = ask(
            lambda scheduler, _: collection.sessions_of(scheduler, inventories, accounts)
        )
        needed = ask(lambda scheduler, _: collection.needed_by(scheduler))
        decision = collection.judge(policy, sessions, inventories, now, needed=needed)
        done: Decision | Done = decision
        if not dry_run:
            done = ask(lambda scheduler, _: collection.agree(scheduler, decision))
    except SchedulerError as error:
        problem = f"No snapshot was judged, as the scheduler does not tell who needs which: {error}"
        done = collection.Done()
    decided = collection.plans(inventories, done.removals, policy, now)
    if not dry_run:
        decided = collection.carry_out(repository, decided, done.removals, state.gone_file, now)
    if not dry_run:
        _tend_keys(state, repository, policy, now, judged=not problem)
    return {
        "at": now,
        "dry_run": dry_run,
        "problem": problem,
        "removed": done.removals,
        "dates": done.announcements,
        "owners": [_owner(each) for each in decided],
        "freed_bytes": sum(each.freed_bytes for each in decided),
        "waiting_bytes": sum(each.waiting_bytes for each in decided),
        "swept": 0 if dry_run else sweep(repository.store, now=now, grace=policy.grace),
    }


def _tend_keys(
    state: StateFolder, repository: Repository, policy: Policy, now: float, *, judged: bool
) -> None:
    """Finish replacing users' keys; delete those of deleted accounts, looked up anew."""
    from hub_config import collection
    from snapshot.errors import KeyUnavailableError, TamperedError
    from snapshot.renewal import finish

    for owner in repository.keys.owners():
        try:
            finish(repository, owner, now=now, grace=policy.grace)
        except (KeyUnavailableError, TamperedError) as error:
            typer.echo(f"hubernate: the keys of {owner} stay as they are: {error}", err=True)
    accounts = _accounts(state) if judged else None
    for owner in ask(lambda s, _: collection.deserted(s, repository, accounts)) if judged else ():
        collection.erase_keys(repository, owner, state.gone_file, now)


def _owner(plan: Plan) -> dict[str, Any]:
    return {
        "owner": plan.owner,
        "manifests": plan.manifests,
        "packs": len(plan.packs),
        "freed_bytes": plan.freed_bytes,
        "waiting_bytes": plan.waiting_bytes,
        "unreadable": plan.blocked_by,
    }


def _accounts(state: StateFolder) -> frozenset[str] | None:
    """Who has an account; None where the Hub does not tell."""
    try:
        settings = read_settings(state.settings_file)
    except (OSError, ValueError):
        return None
    token = SecretFiles(state.secrets).service_token("reclaimer")
    return hub_users(settings.hub_api_url, token)


def _print(report: dict[str, Any]) -> None:
    would = report["dry_run"]
    for removal in report["removed"]:
        verb = "would remove" if would else "removed"
        why = f"{removal.reason} (rule {removal.rule})"
        typer.echo(f"{verb} {removal.manifest} of {removal.owner}: {why}")
    for announcement in report["dates"]:
        date, whose = announcement.date, f"{announcement.session} of {announcement.owner}"
        if date is None:
            typer.echo(f"no date any more for {whose}")
        else:
            why = f"{date.reason} (rule {date.rule})"
            typer.echo(f"{whose} is kept until {day(date.at)}: {why}")
    for owner in report["owners"]:
        for name in owner["unreadable"]:
            typer.echo(f"no pack of {owner['owner']} goes, as {name} cannot be read", err=True)
    freed, waiting = size(report["freed_bytes"]), size(report["waiting_bytes"])
    typer.echo(
        f"{'would free' if would else 'freed'} {freed}; {waiting} more after the grace period"
    )
    if report["problem"]:
        typer.echo(f"hubernate: {report['problem']}", err=True)


def show_log(
    user: Annotated[str, typer.Option("--user", help="Only what was of this user.")] = "",
    as_json: AsJson = False,
) -> None:
    """List what was deleted for good: what, when, by which rule."""
    _, state = need_admin("the log of deletions")
    lines = [each for each in audit.read(state.gone_file) if not user or each.owner == user]
    if as_json:
        print_json(lines)
        return
    print_table(
        ("WHEN", "USER", "WHAT", "SIZE", "RULE", "WHY", "BY"),
        (_row(each) for each in lines),
        empty="Nothing was deleted.",
    )


def _row(gone: audit.Gone) -> Sequence[str]:
    return (
        moment(gone.at),
        gone.owner,
        gone.what,
        size(gone.stored_bytes),
        gone.rule,
        gone.reason,
        gone.actor,
    )
