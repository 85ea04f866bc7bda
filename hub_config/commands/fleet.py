"""`queue`, `why`, `nodes`."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from hub_config.commands.connection import ask
from hub_config.commands.names import display_name, resolve
from hub_config.commands.output import ago, gpus_asked, print_json, print_table
from scheduler_bridge.model.phases import Phase
from scheduler_bridge.model.workload import Explanation, FleetView, Gpu, Node, Workload
from scheduler_bridge.plugin import SchedulerPlugin

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


def register(parent: typer.Typer) -> None:
    """Add the commands."""
    parent.command()(queue)
    parent.command()(why)
    parent.command()(nodes)


def queue(as_json: AsJson = False) -> None:
    """List what waits for GPUs, next first, and why it waits."""
    found = ask(lambda scheduler, _: scheduler.list())
    waiting = sorted((w for w in found if w.phase is Phase.QUEUED), key=_turn)
    if as_json:
        print_json(waiting)
        return
    now = time.time()
    print_table(
        ("#", "WHAT", "NAME", "USER", "TEAM", "GPUS", "PRIORITY", "WAITS", "ID", ""),
        (_row(workload, now) for workload in waiting),
        empty="Nothing waits.",
    )


def _turn(workload: Workload) -> tuple[bool, int, float]:
    return (workload.position is None, workload.position or 0, workload.created_at)


def _row(workload: Workload, now: float) -> tuple[str, ...]:
    spec = workload.spec
    return (
        "" if workload.position is None else str(workload.position),
        str(spec.kind),
        display_name(workload),
        spec.user,
        spec.team,
        gpus_asked(workload),
        spec.priority.name.lower(),
        ago(workload.phase_since, now),
        workload.id,
        workload.wait_reason,
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
    if explanation.remedy:
        typer.echo(explanation.remedy)


async def _explain(scheduler: SchedulerPlugin, name: str) -> Explanation:
    workload = resolve(name, await scheduler.list(live=False))
    return await scheduler.why(workload.id)


def nodes(as_json: AsJson = False) -> None:
    """List machines and GPUs, and who holds them."""
    fleet, workloads = ask(lambda scheduler, _: _fleet(scheduler))
    if as_json:
        print_json(fleet)
        return
    names = {str(w.id): f"{w.spec.kind} {display_name(w)} of {w.spec.user}" for w in workloads}
    rows = [row for node in fleet.nodes for row in _node_rows(node, fleet, names)]
    print_table(("NODE", "GPU", "MODEL", "DEVICE", "HELD BY"), rows, empty="No nodes.")


async def _fleet(scheduler: SchedulerPlugin) -> tuple[FleetView, tuple[Workload, ...]]:
    return await scheduler.fleet(), await scheduler.list()


def _node_rows(node: Node, fleet: FleetView, names: dict[str, str]) -> list[tuple[str, ...]]:
    state = node.name if node.ready else f"{node.name} (not ready)"
    if not node.gpus:
        return [(state, "", "no GPUs", "", "")]
    return [
        (state, str(gpu.index), _model(gpu), gpu.device, _holder(gpu, fleet, names))
        for gpu in node.gpus
    ]


def _model(gpu: Gpu) -> str:
    unsaid = gpu.virtual and "virtual" not in gpu.model.lower()
    return f"{gpu.model} (virtual)" if unsaid else gpu.model


def _holder(gpu: Gpu, fleet: FleetView, names: dict[str, str]) -> str:
    holder = fleet.holders.get(gpu.uuid)
    return "free" if not holder else names.get(holder, "somebody else")
