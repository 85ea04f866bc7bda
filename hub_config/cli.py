"""`hubernate`: joins the sub-commands."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated

import typer

from hub_config.commands import (
    fleet,
    jobs,
    keys,
    nodes,
    pause,
    policy,
    sessions,
    simulate,
    snapshots,
    teams,
    usage,
    what_if,
)
from hub_config.commands.errors import PlainErrors

app = typer.Typer(
    cls=PlainErrors,
    help="Sessions that are never lost and GPUs that are never idle.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"hubernate {version('hubernate')}")
        raise typer.Exit


@app.callback()
def _options(
    _: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Sessions that are never lost and GPUs that are never idle."""


def _register_local() -> None:
    """`up`, `demo` and `doctor`, where the machine's own programs are part of the installation."""
    try:
        from hub_config.commands import local
    except ModuleNotFoundError as error:
        if error.name != "hub_config.commands.local":
            raise
        return
    local.register(app)


_register_local()
for _part in (
    *(sessions, jobs, what_if, fleet, nodes, teams, usage),
    *(pause, policy, simulate, snapshots, keys),
):
    _part.register(app)


def main() -> None:
    """Entry point."""
    app()


if __name__ == "__main__":
    main()
