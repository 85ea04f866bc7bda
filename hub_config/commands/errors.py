"""How a command fails: one plain line that names the thing, the limit and the remedy."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from scheduler_bridge.errors import SchedulerError

FAILED = 1
MISUSED = 2


class CommandError(Exception):
    """A command cannot do what it was asked to."""

    def __init__(self, message: str, *, remedy: str = "", code: int = FAILED) -> None:
        super().__init__(f"{message} {remedy}".strip())
        self.code = code


class PlainErrors(TyperGroup):
    """Turns expected errors of any sub-command into one line on standard error."""

    def invoke(self, ctx: Any) -> Any:
        """Run the sub-command."""
        try:
            return super().invoke(ctx)
        except CommandError as error:
            typer.echo(f"hubernate: {error}", err=True)
            raise typer.Exit(error.code) from error
        except SchedulerError as error:
            typer.echo(f"hubernate: {error}", err=True)
            raise typer.Exit(FAILED) from error
