"""`nodes`: machines, what holds them, and what to do when one has died."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from hub_config.commands.connection import Access, ask
from hub_config.commands.errors import CommandError
from hub_config.commands.losses import confirmed
from hub_config.commands.names import display_name
from hub_config.commands.output import ago, moment, print_json, print_table
from scheduler_bridge.model.nodes import NodeHolder, NodeRecord, NodeStanding, NodeStatus
from scheduler_bridge.model.workload import FleetView, Gpu, Node, Workload
from scheduler_bridge.plugin import SchedulerPlugin

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Name = Annotated[str, typer.Argument(help="The machine, as `nodes list` calls it.")]
Reason = Annotated[str, typer.Option(help="Kept with your name, and told to its users.")]
GiveUp = Annotated[
    list[str] | None,
    typer.Option(help="The id of a workload that is given up; repeat it for each of them."),
]

app = typer.Typer(help="Machines, GPUs, and who holds them.")


def register(parent: typer.Typer) -> None:
    """Add the commands."""
    parent.add_typer(app, name="nodes")


@app.callback(invoke_without_command=True)
def nodes(context: typer.Context, as_json: AsJson = False) -> None:
    """List machines and GPUs, and who holds them."""
    if context.invoked_subcommand is not None:
        return
    fleet, workloads = ask(lambda scheduler, _: _fleet(scheduler))
    if as_json:
        print_json(fleet)
        return
    names = {str(w.id): f"{w.spec.kind} {display_name(w)} of {w.spec.user}" for w in workloads}
    rows = [row for node in fleet.nodes for row in _gpu_rows(node, fleet, names)]
    print_table(("NODE", "GPU", "MODEL", "DEVICE", "HELD BY"), rows, empty="No nodes.")


async def _fleet(scheduler: SchedulerPlugin) -> tuple[FleetView, tuple[Workload, ...]]:
    return await scheduler.fleet(), await scheduler.list()


def _gpu_rows(node: Node, fleet: FleetView, names: dict[str, str]) -> list[tuple[str, ...]]:
    state = node.name if node.ready else f"{node.name} (not ready)"
    if not node.gpus:
        return [(state, "", "no GPUs", "", "")]
    return [
        (state, str(gpu.index), _model(gpu), gpu.device, _held_by(gpu, fleet, names))
        for gpu in node.gpus
    ]


def _model(gpu: Gpu) -> str:
    unsaid = gpu.virtual and "virtual" not in gpu.model.lower()
    return f"{gpu.model} (virtual)" if unsaid else gpu.model


def _held_by(gpu: Gpu, fleet: FleetView, names: dict[str, str]) -> str:
    holder = fleet.holders.get(gpu.uuid)
    return "free" if not holder else names.get(holder, "somebody else")


@app.command("list")
def list_nodes(as_json: AsJson = False) -> None:
    """List machines: whether they answer, since when not, what they hold and until when."""
    found = ask(lambda scheduler, _: scheduler.nodes())
    if as_json:
        print_json(found)
        return
    now = time.time()
    print_table(
        ("NODE", "STATE", "FREE", "HEARD", "LEASES KEPT UNTIL", "HELD BY", ""),
        (_row(node, now) for node in found),
        empty="No nodes.",
    )


def _row(node: NodeStatus, now: float) -> tuple[str, ...]:
    heard = ago(node.heard_at, now)
    return (
        node.name,
        str(node.state),
        f"{node.free} of {node.gpus}",
        f"{heard} ago" if heard else "",
        _kept(node, now),
        ", ".join(_holder(holder) for holder in node.holders),
        _remark(node),
    )


def _kept(node: NodeStatus, now: float) -> str:
    """Only of a machine that does not answer: of others they are renewed all the time."""
    if node.state not in (NodeStanding.SILENT, NodeStanding.UNKNOWN) or node.fenced_at is None:
        return ""
    return moment(node.fenced_at) if node.fenced_at > now else f"{moment(node.fenced_at)} (passed)"


def _holder(holder: NodeHolder) -> str:
    if holder.kind is None:
        return "somebody's work"
    return f"{holder.kind} {holder.name} of {holder.user}"


def _remark(node: NodeStatus) -> str:
    if node.still_heard:
        return f"it lives: {', '.join(node.still_heard)} still runs there and was told to stop"
    if node.death is not None:
        return (
            f"declared dead by {node.death.actor} at {moment(node.death.at)}: {node.death.reason}"
        )
    if node.state is NodeStanding.SILENT:
        return "gets no new work; `hubernate nodes declare-dead` gives its leases up"
    return ""


@app.command("declare-dead")
def declare_dead(
    name: Name,
    reason: Reason,
    now: Annotated[
        bool, typer.Option("--now", help="Although something on it may still run.")
    ] = False,
    give_up: GiveUp = None,
    as_json: AsJson = False,
) -> None:
    """Give up all leases of a machine that died: its jobs are queued again, its sessions offered from
    their last snapshots. Says what is given up, and asks."""
    record = ask(
        lambda scheduler, access: _declare(
            scheduler, access, name, reason, tuple(give_up or ()), at_once=now, err=as_json
        )
    )
    if as_json:
        print_json(record)
    else:
        typer.echo(f"{name} is dead and gets no work until `hubernate nodes revive {name}`.")


async def _declare(
    scheduler: SchedulerPlugin,
    access: Access,
    name: str,
    reason: str,
    named: tuple[str, ...],
    *,
    at_once: bool,
    err: bool,
) -> NodeRecord:
    losses = await scheduler.losses_of_node(name)
    if losses.obstacle and not at_once:
        raise CommandError(losses.obstacle, remedy="Wait, or add --now and see what is given up.")
    confirmed(losses, named, word=name, now=time.time(), err=err)
    return await scheduler.declare_dead(
        name, reason=reason, actor=access.actor, at_once=at_once, given_up=losses.ids
    )


@app.command("revive")
def revive(
    name: Name,
    reason: Annotated[str, typer.Option(help="Kept with your name.")] = "",
    as_json: AsJson = False,
) -> None:
    """Let a machine that was declared dead have work again."""
    record = ask(
        lambda scheduler, access: scheduler.revive(name, reason=reason, actor=access.actor)
    )
    if as_json:
        print_json(record)
    else:
        typer.echo(f"{name} may have work again.")
