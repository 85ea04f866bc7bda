"""`hubernate up`, `down`, `doctor` and `demo`: what concerns this machine and no scheduler."""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path
from time import monotonic
from typing import Annotated

import typer

from hub_config.commands.errors import CommandError
from hub_config.installation import Prepared, Wishes, prepare, refuse_without_root
from hub_config.paths import StateFolder, state_folder
from hub_config.problems import LocalError
from hub_config.runtime import Ending, Runtime, down, only_run
from hub_config.screen import Screen, follow_events, log_in_lines
from hub_config.settings import DEFAULT_PORT
from hub_config.state import check_version
from reclaimer.durations import parse_duration

log = logging.getLogger("hubernate")


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(up)
    app.command("down")(down_command)
    app.command()(doctor)
    app.command()(demo)


def up(
    port: Annotated[
        int | None,
        typer.Option(
            min=1, max=65531, help=f"First of five ports. [{DEFAULT_PORT}, then as last time]"
        ),
    ] = None,
    gpus: Annotated[
        int | None, typer.Option(min=0, max=64, help="Virtual GPUs, marked as such everywhere.")
    ] = None,
    idle_after: Annotated[
        str | None, typer.Option(help="Idle time for all sessions, such as 2m; kept in the policy.")
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="At the end leave sessions and jobs running.")
    ] = False,
    plain: Annotated[
        bool, typer.Option("--plain", help="Lines instead of the live screen in a terminal.")
    ] = False,
) -> None:
    """Start JupyterHub and everything around it; Ctrl-C suspends all sessions and ends."""
    wishes = Wishes(port, gpus, _seconds(idle_after))
    use_screen = sys.stdout.isatty() and not plain
    try:
        asyncio.run(_up(state_folder(), wishes, keep=keep, use_screen=use_screen))
    except LocalError as error:
        raise CommandError(error.message, remedy=error.remedy) from error


def down_command(
    keep: Annotated[bool, typer.Option("--keep", help="Leave sessions and jobs running.")] = False,
) -> None:
    """Suspend all sessions and end what `hubernate up` started."""
    try:
        did = asyncio.run(down(state_folder(), typer.echo, keep=keep))
    except LocalError as error:
        raise CommandError(error.message, remedy=error.remedy) from error
    typer.echo("ended" if did else "nothing was running")


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
) -> None:
    """Say what is wrong on this machine and what to do; list what is used outside our folder."""
    from hub_config.doctor import examine, print_report

    report = examine(state_folder())
    print_report(report, as_json=as_json)
    if not report.is_well:
        raise typer.Exit(1)


def demo() -> None:
    """Play the whole story without a person, with timings; exit 0 only if all of it held."""
    from hub_config.demo.run import run_demo

    folder = state_folder()
    raise typer.Exit(run_demo(folder, list(folder.proxy_command())))


def _seconds(text: str | None) -> float | None:
    try:
        return None if text is None else parse_duration(text)
    except ValueError as error:
        raise CommandError(f"--idle-after: {error}.", code=2) from error


async def _up(folder: StateFolder, wishes: Wishes, *, keep: bool, use_screen: bool) -> None:
    begun = monotonic()
    ending = Ending(keep=keep)
    ending.listen()
    refuse_without_root()
    check_version(folder)
    with only_run(folder):
        prepared = prepare(folder, wishes)
        _log_to(folder.logs / "up.log", also_here=not use_screen)
        for note in prepared.notes:
            typer.echo(note)
        runtime = Runtime(prepared, typer.echo)
        try:
            await _start_or_stop(runtime, ending)
            if not ending.asked.is_set():
                typer.echo(f"ready after {monotonic() - begun:.1f} s")
                for line in log_in_lines(prepared.settings, prepared.secret_files):
                    typer.echo(line)
                await _watch(prepared, runtime, ending.asked, use_screen=use_screen)
        except LocalError:
            # Sessions of an earlier run have no part in a program that does not start.
            ending.keep = True
            raise
        finally:
            leave = await runtime.end(ending)
            typer.echo(f"ended; {leave.suspended} session(s) suspended")


async def _watch(
    prepared: Prepared, runtime: Runtime, asked: asyncio.Event, *, use_screen: bool
) -> None:
    """Show what happens until the end is asked for."""
    if use_screen:
        screen = Screen(prepared.settings, prepared.secret_files, runtime.children)
        await screen.show(asked)
    else:
        token = prepared.secret_files.service_token("admin")
        await follow_events(prepared.settings, token, asked)


async def _start_or_stop(runtime: Runtime, ending: Ending) -> None:
    """Start all programs, unless the end is asked for meanwhile."""
    starting = asyncio.create_task(runtime.start())
    asked = asyncio.create_task(ending.asked.wait())
    try:
        await asyncio.wait({starting, asked}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
    finally:
        for task in (starting, asked):
            task.cancel()
        await asyncio.gather(starting, asked, return_exceptions=True)


def _log_to(path: Path, *, also_here: bool) -> None:
    handlers: list[logging.Handler] = [logging.FileHandler(path)]
    if also_here:
        handlers.append(logging.StreamHandler())
    form = "%(asctime)s %(levelname)s %(message)s"
    logging.basicConfig(level=logging.INFO, format=form, handlers=handlers)
    logging.getLogger("httpx").setLevel(logging.WARNING)
