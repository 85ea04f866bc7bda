"""What is given up with a machine or a session, in words, and the question whether to (pure but for
the question)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import typer

from hub_config.commands.errors import MISUSED, CommandError
from hub_config.commands.output import moment
from reclaimer.durations import format_duration
from scheduler_bridge.model.nodes import GivenUp, Losses
from scheduler_bridge.model.phases import Kind, Phase


def loss_lines(losses: Losses, now: float) -> Iterator[str]:
    """One line for each workload, and below it each thing that is given up."""
    for item in losses.items:
        what = f"{title(item)} ({item.workload_id})"
        yield f"{what} is {item.phase} and becomes {item.becomes}"
        for line in _given_up(item, now):
            yield f"  - {line}"


def title(item: GivenUp) -> str:
    """How lists call it."""
    return f"{item.kind} {item.name} of {item.user}"


def _given_up(item: GivenUp, now: float) -> Iterator[str]:
    yield _tree(item, now)
    if item.gpus and not item.is_elsewhere:
        count = "its GPU" if item.gpus == 1 else f"its {item.gpus} GPUs"
        yield (
            f"{count} may then be used twice, if the machine is alive"
            if not item.is_fenced
            else f"{count} may still be full of its memory, if the machine is alive"
        )
    yield _state(item)


def _tree(item: GivenUp, now: float) -> str:
    if item.fenced_at is None:
        return "nobody has taken its place up; nothing of it runs"
    if item.is_elsewhere:
        return "its supervisor is on another machine, and is told to end all of it"
    if not item.halts_itself:
        return "it has no GPU, so nothing halts it: its processes may still run and write files"
    if item.is_fenced:
        return "its processes have halted by now, if they are alive"
    left = format_duration(max(item.fenced_at - now, 1.0))
    return f"its processes may still run, and are halted in {left} (at {moment(item.fenced_at)})"


def _state(item: GivenUp) -> str:
    if item.fenced_at is None and item.becomes is Phase.QUEUED:
        return "nothing is lost: it waits for another place"
    if item.kind is Kind.JOB:
        return "it starts anew: what it computed since its own last checkpoint is lost"
    if item.becomes is Phase.SUSPENDED:
        when = f"the last snapshot at {moment(item.saved_at)}" if item.saved_at else "its snapshot"
        return f"what it did since {when} is lost"
    return "all of its memory is lost: there is no snapshot of it"


def confirmed(losses: Losses, named: Sequence[str], *, word: str, now: float, err: bool) -> None:
    """Say what is given up, and go on only if each workload was named, or `word` is typed. Raises
    `CommandError`."""
    for line in loss_lines(losses, now):
        typer.echo(line, err=err)
    if not losses.items:
        typer.echo("Nothing is given up: it holds no lease.", err=err)
        return
    missing = [name for name in losses.ids if name not in named]
    if named:
        if missing:
            raise CommandError(
                f"--give-up does not name {', '.join(missing)}.",
                remedy="Name all that is listed above.",
                code=MISUSED,
            )
        return
    try:
        typed = typer.prompt(f"Type {word} to give all of this up", err=err)
    except typer.Abort:
        typed = ""
    if typed.strip() != word:
        listed = " ".join(f"--give-up {name}" for name in losses.ids)
        raise CommandError(
            "nothing was given up.", remedy=f"Where nobody can be asked, add: {listed}"
        )
