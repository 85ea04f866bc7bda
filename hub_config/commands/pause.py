"""`pause`: the red button."""

from __future__ import annotations

import time
from typing import Annotated, Final

import typer

from hub_config.commands.connection import Access, ask
from hub_config.commands.errors import MISUSED, CommandError
from hub_config.commands.output import moment, print_json
from reclaimer.durations import format_duration, parse_duration
from scheduler_bridge.model.workload import Pause
from scheduler_bridge.plugin import SchedulerPlugin

SCOPES: Final = ("reclaim", "preempt", "all")
LONGEST_SECONDS: Final = 30 * 86400.0


def register(parent: typer.Typer) -> None:
    """Add the command."""
    parent.command()(pause)


def pause(
    scope: Annotated[str, typer.Argument(help="reclaim, preempt or all; none: show it")] = "",
    duration: Annotated[str, typer.Option("--for", help="30m, 2h, 1d; at most 30d.")] = "",
    reason: Annotated[str, typer.Option(help="Shown on every page.")] = "",
    end: Annotated[bool, typer.Option("--end", help="End the pause now.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Stop reclaiming idle sessions, preempting, or all of it, for a while."""
    if scope and scope not in SCOPES:
        raise CommandError(
            f"{scope} cannot be paused.", remedy=f"Known: {', '.join(SCOPES)}.", code=MISUSED
        )
    if end:
        ended = ask(lambda scheduler, access: _end(scheduler, access, scope, reason))
        print_json(ended) if as_json else typer.echo(_ended_text(ended))
    elif not scope:
        current = ask(lambda scheduler, _: _current(scheduler))
        print_json(current) if as_json else _print(current)
    else:
        seconds = _checked(duration, reason)
        made = ask(
            lambda scheduler, access: scheduler.pause(
                scope, seconds=seconds, reason=reason, actor=access.actor
            )
        )
        print_json([made]) if as_json else _print((made,))


def _checked(duration: str, reason: str) -> float:
    """The duration in seconds. Raises `CommandError` unless it and a reason were given."""
    if not duration or not reason:
        raise CommandError(
            "a pause needs an end and a reason.",
            remedy='For example: hubernate pause reclaim --for 2h --reason "moving the store"',
            code=MISUSED,
        )
    try:
        seconds = parse_duration(duration)
    except ValueError as error:
        raise CommandError(f"--for: {error}.", code=MISUSED) from error
    if not 0 < seconds <= LONGEST_SECONDS:
        longest = format_duration(LONGEST_SECONDS)
        raise CommandError(f"--for must be more than 0 and at most {longest}.", code=MISUSED)
    return seconds


async def _current(scheduler: SchedulerPlugin) -> tuple[Pause, ...]:
    now = time.time()
    return tuple(p for p in (await scheduler.fleet()).pauses if p.until > now)


async def _end(
    scheduler: SchedulerPlugin, access: Access, scope: str, reason: str
) -> tuple[Pause, ...]:
    """End the pause of one scope, or every one there is."""
    ending = tuple(p for p in await _current(scheduler) if not scope or p.scope == scope)
    for one in ending:
        await scheduler.pause(one.scope, seconds=0.0, reason=reason or "ended", actor=access.actor)
    return ending


def _ended_text(ended: tuple[Pause, ...]) -> str:
    if not ended:
        return "Nothing was paused."
    return f"No longer paused: {', '.join(pause.scope for pause in ended)}."


def _print(pauses: tuple[Pause, ...]) -> None:
    if not pauses:
        typer.echo("Nothing is paused.")
    for one in pauses:
        left = format_duration(one.until - time.time())
        typer.echo(
            f"{one.scope} is paused until {moment(one.until)} ({left} more) "
            f"by {one.actor}: {one.reason}"
        )
