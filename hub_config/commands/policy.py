"""`policy show` and `policy check`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from hub_config.commands.connection import ask, need_admin
from hub_config.commands.errors import FAILED, CommandError
from hub_config.commands.names import display_name
from hub_config.commands.output import moment, print_json, print_table
from reclaimer.durations import format_duration
from reclaimer.policy import Policy
from reclaimer.policy_file import PolicyError, default_policy_text, read_policy
from reclaimer.preview import Forecast, preview
from scheduler_bridge.errors import SchedulerError
from scheduler_bridge.model.phases import Kind
from scheduler_bridge.plugin import SchedulerPlugin

app = typer.Typer(help="Who is suspended when.", no_args_is_help=True)


def register(parent: typer.Typer) -> None:
    """Add the commands."""
    parent.add_typer(app, name="policy")


@app.command("show")
def show(
    shipped: Annotated[bool, typer.Option("--default", help="The one that is shipped.")] = False,
) -> None:
    """Print the policy file in force, or the one that is shipped."""
    if shipped:
        typer.echo(default_policy_text(), nl=False)
        return
    _, state = need_admin("the policy file")
    try:
        text = state.policy_file.read_text(encoding="utf-8")
    except FileNotFoundError:
        typer.echo(f"# {state.policy_file} is not there; this is the policy that is shipped.")
        text = default_policy_text()
    except OSError as error:
        raise CommandError(f"{state.policy_file} cannot be read: {error.strerror}.") from error
    typer.echo(text, nl=False)


@app.command("check")
def check(
    file: Annotated[
        Path | None, typer.Argument(help="Policy file (YAML). Without it, the one in force.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Find mistakes in a policy file, and say what it would do with the sessions that run now."""
    file = file or need_admin("the policy file")[1].policy_file
    try:
        policy = read_policy(file)
    except PolicyError as error:
        print_json({"mistakes": error.mistakes}) if as_json else typer.echo(str(error), err=True)
        raise typer.Exit(FAILED) from error
    forecasts, problem = _forecasts(policy)
    if as_json:
        print_json({"mistakes": [], "rules": policy.rules, "sessions": forecasts})
        return
    typer.echo(f"{file} is good; {len(policy.rules)} rule(s).")
    _print_rules(policy)
    if problem:
        typer.echo(f"\nWhat it would do with running sessions is not known: {problem}", err=True)
    else:
        _print_forecasts(forecasts)


def _forecasts(policy: Policy) -> tuple[tuple[Forecast, ...], str]:
    """What would happen now; without a scheduler, why that cannot be told."""

    async def look(scheduler: SchedulerPlugin) -> tuple[Forecast, ...]:
        sessions = await scheduler.list(kind=Kind.SESSION)
        fleet = await scheduler.fleet()
        return preview(policy, sessions, time.time(), fleet.pauses)

    try:
        return ask(lambda scheduler, _: look(scheduler)), ""
    except (CommandError, SchedulerError) as error:
        return (), str(error)


def _print_rules(policy: Policy) -> None:
    typer.echo("")
    print_table(
        ("RULE", "ACTION", "IDLE AFTER", "WARNS BEFORE", "MINIMUM AGE"),
        (
            (
                rule.name,
                str(rule.action),
                format_duration(rule.idle_after),
                format_duration(rule.warn_before),
                format_duration(rule.minimum_age),
            )
            for rule in policy.rules
        ),
        empty="",
    )


def _print_forecasts(forecasts: tuple[Forecast, ...]) -> None:
    typer.echo("")
    print_table(
        ("SESSION", "RULE", "WOULD", "AT", "WHY"),
        ((display_name(f.workload), f.rule, f.action, moment(f.at), _reason(f)) for f in forecasts),
        empty="No sessions run now.",
    )


def _reason(forecast: Forecast) -> str:
    return "; ".join((forecast.why, *forecast.evidence))
