"""`sessions check`: would a suspend of this session succeed, and what would it cost?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from hub_config.commands.connection import ask, need_admin
from hub_config.commands.errors import FAILED, CommandError
from hub_config.commands.names import display_name, resolve
from hub_config.commands.output import console, print_json
from hub_config.paths import StateFolder
from scheduler_bridge.model.phases import Kind, Phase
from scheduler_bridge.model.workload import Workload
from snapshot.model import Process

if TYPE_CHECKING:
    from snapshot.trial import Trial

Name = Annotated[str, typer.Argument(help="user, user/server, or the id or its beginning")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


def check(name: Name, as_json: AsJson = False) -> None:
    """Stop a session for some milliseconds, look whether it could be suspended, let it go on.

    Tells everything that is in the way, also what shows only in a program that stands still (a
    debugger on one of its threads). Programs notice nothing but that a wait for events may end early.
    Exit code 1 if it could not be suspended.
    """
    _, state = need_admin("a test freeze")
    workload = resolve(name, ask(lambda scheduler, _: scheduler.list(kind=Kind.SESSION)))
    found = _try_freeze(_tree(workload, state))
    if as_json:
        print_json(found)
    else:
        _print(display_name(workload), found)
    if found.verdict.blockers:
        raise typer.Exit(FAILED)


def _try_freeze(process: Process) -> Trial:
    from snapshot.trial import try_freeze  # loads python-ptrace

    return try_freeze(process)


def _tree(workload: Workload, state: StateFolder) -> Process:
    """The sandbox of a running session. Raises `CommandError` for any other."""
    from spawner.local_order import workload_directory
    from spawner.site import read_site
    from spawner.supervisor.status import read_status

    name = display_name(workload)
    if workload.phase is not Phase.RUNNING:
        raise CommandError(f"only a running session can be checked; {name} is {workload.phase}.")
    try:
        status = read_status(workload_directory(read_site(state.site_file), workload.id))
    except (OSError, ValueError) as error:
        raise CommandError(
            f"{name} is not found on this machine: {error}.",
            remedy="Run it where the session runs.",
        ) from error
    if status is None or status.sandbox is None:
        raise CommandError(
            f"{name} has no supervisor on this machine.", remedy="Run it where the session runs."
        )
    if status.phase != Phase.RUNNING:
        raise CommandError(f"{name} is {status.phase}.", remedy="Try again when it runs.")
    return status.sandbox


def _print(name: str, found: Trial) -> None:
    from spawner.badge import possible, refused
    from spawner.supervisor.signals import describe

    verdict = found.verdict
    outlook = (
        refused(tuple(describe(each) for each in verdict.blockers))
        if verdict.blockers
        else possible(verdict.bytes, verdict.seconds, verdict.outside)
    )
    console().print(f"{name}: {outlook.headline}", soft_wrap=True)
    for reason in outlook.reasons:
        console().print(f"  {reason}", soft_wrap=True)
    console().print(f"{found.threads} threads stood still for {found.seconds:.3f} s.")
