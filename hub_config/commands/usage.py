"""`usage`: who used how much GPU time, and what teams were owed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Final

import typer

from hub_config.commands.connection import ask
from hub_config.commands.errors import MISUSED, CommandError
from hub_config.commands.output import moment, print_json, print_table
from reclaimer.durations import parse_duration
from scheduler_bridge.model.usage import (
    Bucket,
    Grouping,
    UsageLine,
    UsageQuestion,
    UsageReport,
)

HOUR: Final = 3600.0
_OF_TEAMS: Final = (
    "TEAM",
    "OWED",
    "DELIVERED",
    "ALLOCATED",
    "UNALLOCATED",
    "IDLE",
    "LENT",
    "BORROWED",
    "BALANCE",
    "COST",
)
_OF_OTHERS: Final = (
    "DELIVERED",
    "ALLOCATED",
    "UNALLOCATED",
    "IDLE",
    "INTERRUPTIBLE",
    "SUSPENDING",
    "GIVEN BACK",
    "COST",
)


def register(parent: typer.Typer) -> None:
    """Add the command."""
    parent.command()(usage)


def usage(
    since: Annotated[
        str,
        typer.Option("--from", help="How long ago (7d), or a date (2026-11-01, 2026-11-01T12)."),
    ] = "30d",
    until: Annotated[str, typer.Option("--to", help="The same; without it: now.")] = "",
    by: Annotated[Grouping, typer.Option("--by", help="What each line is about.")] = Grouping.TEAM,
    each: Annotated[Bucket | None, typer.Option("--each", help="Lines for each of these.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON (GPU-seconds) instead of text.")
    ] = False,
) -> None:
    """Show GPU-hours by team, project, user or tag, and what teams were owed."""
    now = time.time()
    question = UsageQuestion(
        read_moment("--from", since, now),
        read_moment("--to", until, now) if until else None,
        by,
        each,
    )
    seen = ask(lambda scheduler, _: scheduler.usage(question))
    if as_json:
        print_json(seen)
        return
    print_table(*table_of(seen, by, each), empty="No GPU was used.")
    for sentence in () if each else sentences_of(seen):
        typer.echo(sentence)


def read_moment(option: str, text: str, now: float) -> float:
    """UNIX seconds of a time ago or a local date. Raises `CommandError`."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        pass
    try:
        return now - parse_duration(text)
    except ValueError as error:
        raise CommandError(
            f"{option}: {text!r} is no time.",
            remedy="Write how long ago (12h, 7d), or a date (2026-11-01, 2026-11-01T12:00).",
            code=MISUSED,
        ) from error


def table_of(
    seen: UsageReport, by: Grouping, each: Bucket | None
) -> tuple[tuple[str, ...], Iterator[tuple[str, ...]]]:
    """Headings and rows of a report, in GPU-hours."""
    when = ("FROM",) if each else ()
    if by is Grouping.TEAM:
        balances = {it.team: it.balance for it in seen.balances}
        rows = ((*_when(it, each), *_team_row(it, balances.get(it.team))) for it in seen.lines)
        return (*when, *_OF_TEAMS), rows
    names = ("TEAM", "PROJECT") if by is Grouping.PROJECT else (by.upper(),)
    rows = ((*_when(it, each), *_names(it, by), *_row(it)) for it in seen.lines)
    return (*when, *names, *_OF_OTHERS), rows


def _when(line: UsageLine, each: Bucket | None) -> tuple[str, ...]:
    return (moment(line.at),) if each else ()


def _names(line: UsageLine, by: Grouping) -> tuple[str, ...]:
    if by is Grouping.PROJECT:
        return (line.team, line.project)
    return (line.user if by is Grouping.USER else line.tag,)


def _team_row(line: UsageLine, balance: float | None) -> tuple[str, ...]:
    return (
        line.team,
        gpu_hours(line.owed),
        gpu_hours(line.delivered),
        gpu_hours(line.allocated),
        gpu_hours(line.unallocated),
        gpu_hours(line.idle),
        gpu_hours(line.lent),
        gpu_hours(line.borrowed),
        gpu_hours(balance),
        _cost(line),
    )


def _row(line: UsageLine) -> tuple[str, ...]:
    return (
        gpu_hours(line.delivered),
        gpu_hours(line.allocated),
        gpu_hours(line.unallocated),
        gpu_hours(line.idle),
        gpu_hours(line.interruptible),
        gpu_hours(line.suspended),
        gpu_hours(line.given_back),
        _cost(line),
    )


def gpu_hours(seconds: float | None) -> str:
    """`12.50`; nothing where nothing is known."""
    return "" if seconds is None else f"{seconds / HOUR:.2f}"


def _cost(line: UsageLine) -> str:
    return "" if line.cost is None else f"{line.cost:.2f}"


def sentences_of(seen: UsageReport) -> Iterator[str]:
    """What a table cannot say."""
    if seen.fleet is not None and seen.fleet.capacity > 0:
        used = seen.fleet.held / seen.fleet.capacity
        yield (
            f"\nAll amounts are GPU-hours. Of {gpu_hours(seen.fleet.capacity)} of the whole fleet "
            f"{used:.1%} were held."
        )
    for line in seen.lines:
        if line.guaranteed_unused:
            yield (
                f"{line.team} did not use {gpu_hours(line.guaranteed_unused)} of its guaranteed "
                f"GPUs; others had {gpu_hours(line.guaranteed_lent)} of that."
            )
        if line.on_guarantees:
            yield f"{line.team} had {gpu_hours(line.on_guarantees)} of others' guaranteed GPUs."
    for it in seen.balances:
        if it.forgiven:
            yield f"{it.team} is forgiven {gpu_hours(it.forgiven)} that it had above its due."
