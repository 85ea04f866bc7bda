"""`simulate`: what policies would have done with a month of work."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hub_config.commands.errors import MISUSED, CommandError
from hub_config.commands.output import console, print_json

if TYPE_CHECKING:
    from scheduler_bridge.simulator.scenarios import Result


def register(parent: typer.Typer) -> None:
    """Add the command."""
    parent.command()(simulate)


def simulate(
    scenario: Annotated[
        list[str] | None,
        typer.Option(
            help="ai2, philly-96x8, philly-80x8, or trace (an export of our events). Repeatable."
        ),
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(help="hubernate, fifo, fairshare or borrow. Repeatable; without it, all."),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            envvar="TRACE",
            help="The Philly trace (CSV), or for `trace` rows of events (JSON lines).",
        ),
    ] = None,
    days: Annotated[
        float | None, typer.Option(min=0.01, help="Shortens work that is generated.")
    ] = None,
    nodes: Annotated[int, typer.Option(min=1, help="Machines, for `trace`.")] = 1,
    gpus_per_node: Annotated[int, typer.Option(min=1, help="Their GPUs, for `trace`.")] = 8,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same work.")] = 1,
    grace: Annotated[
        float, typer.Option(min=0, help="Seconds from the wish that a job yields to its end.")
    ] = 60.0,
    suspend: Annotated[
        float, typer.Option(min=0, help="The same for work that is frozen with its memory.")
    ] = 20.0,
    restore: Annotated[
        float, typer.Option(min=0, help="Seconds that bringing work back takes.")
    ] = 20.0,
    start: Annotated[float, typer.Option(min=0, help="Seconds that every start takes.")] = 30.0,
    tick: Annotated[
        float, typer.Option(min=0.001, help="Seconds between two decisions at least.")
    ] = 10.0,
    plots: Annotated[
        Path | None, typer.Option(help="Folder for pictures (needs matplotlib).")
    ] = None,
    workers: Annotated[
        int, typer.Option(min=0, help="Processes at once; 0: as many as processors.")
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Play a month of work under several policies and compare them. Nothing real is touched."""
    from scheduler_bridge.simulator.jobs import Costs
    from scheduler_bridge.simulator.plots import NoPlots, save_plots
    from scheduler_bridge.simulator.scenarios import (
        POLICIES,
        Request,
        UnknownName,
        check,
        simulate_all,
    )
    from scheduler_bridge.simulator.traces import TraceError

    costs = Costs(grace, suspend, restore, start)
    requests = [
        Request(name, of, trace, seed, days, nodes, gpus_per_node, costs, tick)
        for name in scenario or ["ai2"]
        for of in policy or list(POLICIES)
    ]
    try:
        check(requests)
        results = list(simulate_all(requests, workers=workers or os.cpu_count() or 1, done=_tell))
        files = save_plots(results, plots) if plots else []
    except (UnknownName, TraceError, NoPlots) as error:
        raise CommandError(str(error), code=MISUSED) from error
    except OSError as error:
        raise CommandError(f"{plots} cannot be written: {error.strerror}.") from error
    if as_json:
        print_json([result.figures.as_json() for result in results])
        return
    _show(results, files)


def _tell(result: Result) -> None:
    """Progress, apart from the results."""
    figures = result.figures
    typer.echo(f"{figures.scenario}, {figures.policy}: {figures.seconds:.0f} s", err=True)


def _show(results: list[Result], files: list[Path]) -> None:
    from scheduler_bridge.simulator.tables import by_team, comparison

    for name in dict.fromkeys(result.figures.scenario for result in results):
        mine = [result.figures for result in results if result.figures.scenario == name]
        console().print(comparison(mine))
        typer.echo("")
        console().print(by_team(mine))
        typer.echo("")
    for file in files:
        typer.echo(f"Written: {file}")
