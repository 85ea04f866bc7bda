"""`sessions force-stop`: for a session whose supervisor does not answer."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from hub_config.commands.connection import Access, ask
from hub_config.commands.errors import CommandError
from hub_config.commands.losses import confirmed
from hub_config.commands.names import display_name, resolve
from hub_config.commands.output import phase_text, print_json
from scheduler_bridge.model.phases import Kind
from scheduler_bridge.model.workload import Workload
from scheduler_bridge.plugin import SchedulerPlugin


def force_stop(
    name: Annotated[str, typer.Argument(help="user, user/server, or the id or its beginning")],
    reason: Annotated[str, typer.Option(help="Kept with your name, and told to its user.")],
    give_up: Annotated[str, typer.Option(help="The session's id, where nobody can be asked.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Give up a session whose supervisor does not answer; it is offered from its last snapshot. Says
    what is given up, and asks."""
    stopped = ask(
        lambda scheduler, access: _stop(scheduler, access, name, reason, give_up, err=as_json)
    )
    if as_json:
        print_json(stopped)
        return
    typer.echo(f"{display_name(stopped)} is {phase_text(stopped)} ({stopped.id})")
    typer.echo("Its GPUs are free once its processes are proven gone, or have had to halt.")


async def _stop(
    scheduler: SchedulerPlugin, access: Access, name: str, reason: str, named: str, *, err: bool
) -> Workload:
    workload = resolve(name, await scheduler.list(kind=Kind.SESSION, live=False))
    losses = await scheduler.losses_of_session(workload.id)
    if losses.obstacle:
        raise CommandError(losses.obstacle, remedy=f"See `hubernate why {workload.id}`.")
    chosen = (named,) if named else ()
    confirmed(losses, chosen, word=workload.spec.user, now=time.time(), err=err)
    return await scheduler.force_stop(
        workload.id, reason=reason, actor=access.actor, given_up=losses.ids
    )
