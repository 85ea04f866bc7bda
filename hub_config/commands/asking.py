"""What is asked of the scheduler for a job, as options that `submit` and `what-if` share."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from hub_config.commands.connection import USER_VARIABLE, Access
from hub_config.commands.errors import MISUSED, CommandError
from reclaimer.durations import parse_duration
from scheduler_bridge.model.phases import Kind
from scheduler_bridge.model.workload import Priority, WorkloadSpec

MOST_GPUS: Final = 100_000

Name = Annotated[str, typer.Option(help="What lists call it.")]
Gpus = Annotated[int, typer.Option(min=0, max=MOST_GPUS, help="GPUs on each node.")]
Nodes = Annotated[int, typer.Option(min=1, max=MOST_GPUS, help="Nodes, all at once.")]
Urgency = Annotated[str, typer.Option(help="low, normal, high or urgent.")]
Team = Annotated[str, typer.Option(help="Team whose share it uses.")]
User = Annotated[str, typer.Option(help="Whose job it is (administrator only).")]
Env = Annotated[list[str] | None, typer.Option(help="KEY=VALUE; repeat it for more.")]
Workdir = Annotated[str, typer.Option(help="Folder it starts in. Default: here.")]
MinRuntime = Annotated[
    str,
    typer.Option(
        help="How long it may not be preempted (15m, 8h). Without it runs on what others "
        "leave: it starts soonest, and yields first."
    ),
]
MaxRuntime = Annotated[str, typer.Option(help="It is ended after this long.")]
GpuModel = Annotated[
    list[str] | None, typer.Option(help="A GPU model it may run on; repeat it for more.")
]
Cluster = Annotated[
    list[str] | None, typer.Option(help="A cluster it may run in; repeat it for more.")
]
Grace = Annotated[str, typer.Option(help="Time between SIGTERM and its end.")]


@dataclass(frozen=True, slots=True)
class Asked:
    """The options as they were typed."""

    name: str
    gpus: int
    nodes: int
    priority: str
    team: str
    user: str
    env: list[str] | None
    workdir: str
    min_runtime: str
    max_runtime: str
    gpu_model: list[str] | None
    cluster: list[str] | None
    grace: str

    def spec(self, access: Access, command: list[str]) -> WorkloadSpec:
        """A job. Raises `CommandError` naming the option that makes no sense."""
        return WorkloadSpec(
            kind=Kind.JOB,
            name=self.name or Path(command[0]).name,
            user=_owner(access, self.user),
            team=self.team,
            gpus=self.gpus,
            nodes=self.nodes,
            priority=_priority(self.priority),
            min_runtime_seconds=_seconds_if(self.min_runtime, "--min-runtime") or 0.0,
            max_runtime_seconds=_seconds_if(self.max_runtime, "--max-runtime"),
            gpu_models=tuple(self.gpu_model or ()),
            clusters=tuple(self.cluster or ()),
            grace_seconds=_seconds(self.grace, "--grace"),
            command=tuple(command),
            environment=_environment(self.env or []),
            folder=self.workdir or _here(access),
        )


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


def _seconds_if(text: str, option: str) -> float | None:
    return _seconds(text, option) if text else None


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
