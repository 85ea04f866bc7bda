"""`submit`, `jobs`, `logs`, `cancel`."""

from __future__ import annotations

import os
import secrets
import time
from pathlib import Path
from typing import Annotated

import typer

from hub_config.commands.connection import USER_VARIABLE, Access, ask, find_access
from hub_config.commands.errors import MISUSED, CommandError
from hub_config.commands.logs import show_logs
from hub_config.commands.names import display_name, resolve
from hub_config.commands.output import ago, gpus_asked, phase_text, place, print_json, print_table
from hub_config.commands.output import remark as remark_of
from reclaimer.durations import parse_duration
from scheduler_bridge.model.phases import TERMINAL, Desired, Kind
from scheduler_bridge.model.workload import Priority, Workload, WorkloadSpec
from scheduler_bridge.plugin import SchedulerPlugin

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
JobName = Annotated[str, typer.Argument(help="name, or the id or its beginning")]

MOST_GPUS = 100_000


def register(parent: typer.Typer) -> None:
    """Add the commands."""
    parent.command(context_settings={"ignore_unknown_options": False})(submit)
    parent.command("jobs")(list_jobs)
    parent.command()(logs)
    parent.command()(cancel)


def submit(
    command: Annotated[list[str], typer.Argument(help="-- program and arguments")],
    name: Annotated[str, typer.Option(help="What lists call it.")] = "",
    gpus: Annotated[int, typer.Option(min=0, max=MOST_GPUS, help="GPUs on each node.")] = 0,
    nodes: Annotated[int, typer.Option(min=1, max=MOST_GPUS, help="Nodes, all at once.")] = 1,
    priority: Annotated[str, typer.Option(help="low, normal, high or urgent.")] = "normal",
    team: Annotated[str, typer.Option(help="Team whose share it uses.")] = "default",
    user: Annotated[str, typer.Option(help="Whose job it is (administrator only).")] = "",
    env: Annotated[list[str] | None, typer.Option(help="KEY=VALUE; repeat it for more.")] = None,
    workdir: Annotated[str, typer.Option(help="Folder it starts in. Default: here.")] = "",
    min_runtime: Annotated[
        str,
        typer.Option(
            help="How long it may not be preempted (15m, 8h). Without it runs on what others "
            "leave: it starts soonest, and yields first."
        ),
    ] = "",
    max_runtime: Annotated[str, typer.Option(help="It is ended after this long.")] = "",
    gpu_model: Annotated[
        list[str] | None, typer.Option(help="A GPU model it may run on; repeat it for more.")
    ] = None,
    cluster: Annotated[
        list[str] | None, typer.Option(help="A cluster it may run in; repeat it for more.")
    ] = None,
    grace: Annotated[str, typer.Option(help="Time between SIGTERM and its end.")] = "30s",
    key: Annotated[str, typer.Option(help="Submitting the same key again adds nothing.")] = "",
    as_json: AsJson = False,
) -> None:
    """Put a program into the queue: hubernate submit --gpus 1 --name x -- python train.py"""
    access = find_access()
    spec = WorkloadSpec(
        kind=Kind.JOB,
        name=name or Path(command[0]).name,
        user=_owner(access, user),
        team=team,
        gpus=gpus,
        nodes=nodes,
        priority=_priority(priority),
        min_runtime_seconds=_seconds(min_runtime, "--min-runtime") if min_runtime else 0.0,
        max_runtime_seconds=_seconds(max_runtime, "--max-runtime") if max_runtime else None,
        gpu_models=tuple(gpu_model or ()),
        clusters=tuple(cluster or ()),
        grace_seconds=_seconds(grace, "--grace"),
        command=tuple(command),
        environment=_environment(env or []),
        folder=workdir or _here(access),
    )
    unique = key or f"job:{spec.user}/{spec.name}/{secrets.token_hex(8)}"
    workload = ask(lambda scheduler, _: scheduler.submit(spec, key=unique))
    if as_json:
        print_json(workload)
        return
    typer.echo(f"job {spec.name} is {phase_text(workload)} ({workload.id})")
    if workload.wait_reason:
        typer.echo(workload.wait_reason)


def _owner(access: Access, user: str) -> str:
    """The user that a job runs as; never the administrator by accident."""
    if access.is_admin:
        if not user:
            raise CommandError(
                "a job runs as a user, and the administrator is none.",
                remedy="Say whose it is: --user NAME.",
                code=MISUSED,
            )
        return user
    if user and access.user and user != access.user:
        raise CommandError(
            f"a job of {user} cannot be submitted by {access.user}.", remedy="Leave --user out."
        )
    owner = user or access.user
    if not owner:
        raise CommandError(
            "it is not known who you are.", remedy=f"Say it: --user NAME, or set {USER_VARIABLE}."
        )
    return owner


def _here(access: Access) -> str:
    """Where the submitter stands; the administrator's folders say nothing to a user's job."""
    return "" if access.is_admin else os.getcwd()


def _priority(text: str) -> Priority:
    try:
        return Priority[text.upper()]
    except KeyError as error:
        known = ", ".join(p.name.lower() for p in Priority)
        raise CommandError(
            f"priority {text} is not known; known are {known}.", code=MISUSED
        ) from error


def _seconds(text: str, option: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise CommandError(f"{option}: {error}.", code=MISUSED) from error


def _environment(pairs: list[str]) -> dict[str, str]:
    variables: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise CommandError(f"--env {pair} is not KEY=VALUE.", code=MISUSED)
        variables[name] = value
    return variables


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
