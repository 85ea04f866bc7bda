"""`queue`, `why`."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from hub_config.commands.connection import ask
from hub_config.commands.names import resolve
from hub_config.commands.outlook_text import change_lines, estimate_line, interval
from hub_config.commands.output import ago, print_json, print_table
from scheduler_bridge.model.queue import QueueRow
from scheduler_bridge.model.workload import Explanation
from scheduler_bridge.plugin import SchedulerPlugin

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


def register(parent: typer.Typer) -> None:
    """Add the commands."""
    parent.command()(queue)
    parent.command()(why)


def queue(as_json: AsJson = False) -> None:
    """List what waits for GPUs, next first: your own work with the reason, of others' what the
    administrator lets you see."""
    view = ask(lambda scheduler, _: scheduler.queue())
    if as_json:
        print_json(view)
        return
    now = time.time()
    print_table(
        ("#", "WHAT", "NAME", "USER", "TEAM", "GPUS", "PRIORITY", "WAITS", "STARTS", "ID", ""),
        (_row(row, now) for row in view.rows),
        empty="Nothing waits.",
    )


def _row(row: QueueRow, now: float) -> tuple[str, ...]:
    turn = "" if row.position is None else str(row.position)
    work = row.work
    if work is None:
        if row.count > 1 and row.position is not None:
            turn = f"{turn}-{row.position + row.count - 1}"
        return (turn, f"{row.count} of others", "", "", "", str(row.gpus), "", "", "", "", "")
    return (
        turn,
        str(work.kind),
        work.name,
        work.user,
        work.team,
        f"{work.gpus}" if work.nodes == 1 else f"{work.gpus} x {work.nodes}",
        work.priority,
        ago(work.since, now),
        interval(work.estimate) if work.estimate else "",
        work.workload_id,
        work.reason,
    )


def why(
    name: Annotated[str, typer.Argument(help="A session or job, by name or id.")],
    as_json: AsJson = False,
) -> None:
    """Say why a session or job waits, runs or ended, and what would change it."""
    explanation = ask(lambda scheduler, _: _explain(scheduler, name))
    if as_json:
        print_json(explanation)
        return
    typer.echo(explanation.text or explanation.reason)
    for key, value in explanation.evidence.items():
        typer.echo(f"  {key}: {value}")
    later = (*change_lines(explanation.changes), estimate_line(explanation.estimate))
    for line in (explanation.remedy, *later):
        if line:
            typer.echo(line)


async def _explain(scheduler: SchedulerPlugin, name: str) -> Explanation:
    workload = resolve(name, await scheduler.list(live=False))
    return await scheduler.why(workload.id)
