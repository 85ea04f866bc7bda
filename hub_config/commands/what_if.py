"""`what-if`: the price of a guarantee before submitting."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from hub_config.commands import asking
from hub_config.commands.connection import ask, find_access
from hub_config.commands.outlook_text import change_lines, estimate_line, interval
from hub_config.commands.output import moment, print_json, print_table
from reclaimer.durations import format_duration
from scheduler_bridge.model.what_if import Outlook

_ANYTHING: Final = ["what-if"]
"""What would run matters to nobody here."""

_OUTCOMES: Final = {
    "now": "starts now",
    "makes_room": "others make room",
    "waits": "waits",
    "refused": "is refused",
}


def register(parent: typer.Typer) -> None:
    """Add the command."""
    parent.command("what-if")(what_if)


def what_if(
    command: Annotated[
        list[str] | None, typer.Argument(help="-- program and arguments; may be left out")
    ] = None,
    name: asking.Name = "",
    gpus: asking.Gpus = 0,
    nodes: asking.Nodes = 1,
    priority: asking.Urgency = "normal",
    team: asking.Team = "default",
    user: asking.User = "",
    env: asking.Env = None,
    workdir: asking.Workdir = "",
    min_runtime: asking.MinRuntime = "",
    max_runtime: asking.MaxRuntime = "",
    gpu_model: asking.GpuModel = None,
    cluster: asking.Cluster = None,
    grace: asking.Grace = "30s",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Say when a job would start, as asked for and with other guarantees; nothing is submitted. Takes
    the options of `submit`."""
    asked = asking.Asked(
        *(name, gpus, nodes, priority, team, user, env, workdir),
        *(min_runtime, max_runtime, gpu_model, cluster, grace),
    )
    spec = asked.spec(find_access(), command or _ANYTHING)
    found = ask(lambda scheduler, _: scheduler.what_if(spec))
    if as_json:
        print_json(found)
        return
    print_table(
        ("MIN RUNTIME", "", "STARTS", "WHY"),
        (_row(each) for each in found),
        empty="Nothing is known.",
    )
    first = found[0]
    for line in (*change_lines(first.changes), estimate_line(first.estimate), first.remedy):
        if line:
            typer.echo(line)


def _row(outlook: Outlook) -> tuple[str, ...]:
    seconds = outlook.spec.min_runtime_seconds
    return (
        format_duration(seconds) if seconds else "none",
        _OUTCOMES[outlook.outcome],
        _start(outlook),
        outlook.text,
    )


def _start(outlook: Outlook) -> str:
    if outlook.outcome in ("now", "refused"):
        return ""
    if outlook.starts_by is not None:
        return f"by {moment(outlook.starts_by)}"
    return interval(outlook.estimate) if outlook.estimate and outlook.estimate.latest else "no ETA"
