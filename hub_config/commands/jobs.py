"""`submit`, `jobs`, `logs`, `cancel`."""

from __future__ import annotations

import secrets
import time
from typing import Annotated

import typer

from hub_config.commands import asking
from hub_config.commands.connection import Access, ask, find_access
from hub_config.commands.errors import CommandError
from hub_config.commands.logs import show_logs
from hub_config.commands.names import display_name, resolve
from hub_config.commands.output import ago, gpus_asked, phase_text, place, print_json, print_table
from hub_config.commands.output import remark as remark_of
from scheduler_bridge.model.phases import TERMINAL, Desired, Kind
from scheduler_bridge.model.workload import Workload
from scheduler_bridge.plugin import SchedulerPlugin

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
JobName = Annotated[str, typer.Argument(help="name, or the id or its beginning")]


def register(parent: typer.Typer) -> None:
    """Add the commands."""
    parent.command(context_settings={"ignore_unknown_options": False})(submit)
    parent.command("jobs")(list_jobs)
    parent.command()(logs)
    parent.command()(cancel)


def submit(
    command: Annotated[list[str], typer.Argument(help="-- program and arguments")],
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
    key: Annotated[str, typer.Option(help="Submitting the same key again adds nothing.")] = "",
    as_json: AsJson = False,
) -> None:
    """Put a program into the queue: hubernate submit --gpus 1 --name x -- python train.py"""
    asked = asking.Asked(
        *(name, gpus, nodes, priority, team, user, env, workdir),
        *(min_runtime, max_runtime, gpu_model, cluster, grace),
    )
    spec = asked.spec(find_access(), command)
    unique = key or f"job:{spec.user}/{spec.name}/{secrets.token_hex(8)}"
    workload = ask(lambda scheduler, _: scheduler.submit(spec, key=unique))
    if as_json:
        print_json(workload)
        return
    typer.echo(f"job {spec.name} is {phase_text(workload)} ({workload.id})")
    if workload.wait_reason:
        typer.echo(workload.wait_reason)


def list_jobs(
    everything: Annotated[bool, typer.Option("--all", help="Also those that have ended.")] = False,
    as_json: AsJson = False,
) -> None:
    """List jobs in the order of submission."""
    found = ask(lambda scheduler, _: scheduler.list(kind=Kind.JOB, live=not everything))
    if as_json:
        print_json(found)
        return
    now = time.time()
    print_table(
        ("JOB", "USER", "PHASE", "FOR", "GPUS", "WHERE", "TRY", "EXIT", "ID", ""),
        (_row(workload, now) for workload in found),
        empty="No jobs.",
    )


def _row(workload: Workload, now: float) -> tuple[str, ...]:
    return (
        workload.spec.name,
        workload.spec.user,
        phase_text(workload),
        ago(workload.phase_since, now),
        gpus_asked(workload),
        place(workload),
        str(workload.attempt),
        "" if workload.exit_code is None else str(workload.exit_code),
        workload.id,
        remark_of(workload, now),
    )


def logs(
    name: JobName,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Until it ends.")] = False,
) -> None:
    """Print what a job has written."""
    ask(lambda scheduler, access: _logs(scheduler, access, name, follow))


async def _logs(scheduler: SchedulerPlugin, access: Access, name: str, follow: bool) -> None:
    workload = resolve(name, await scheduler.list(live=False))
    await show_logs(scheduler, workload, follow=follow)


def cancel(name: JobName, as_json: AsJson = False) -> None:
    """End a job; it gets SIGTERM and its grace first."""
    workload = ask(lambda scheduler, access: _cancel(scheduler, access, name))
    if as_json:
        print_json(workload)
    else:
        typer.echo(f"job {display_name(workload)} is {workload.phase} ({workload.id})")


async def _cancel(scheduler: SchedulerPlugin, access: Access, name: str) -> Workload:
    workload = resolve(name, await scheduler.list(kind=Kind.JOB, live=False))
    if workload.phase in TERMINAL:
        raise CommandError(f"job {display_name(workload)} has already ended ({workload.phase}).")
    return await scheduler.desire(
        workload.id, Desired.STOPPED, actor=access.actor, reason="cancelled on the command line"
    )
