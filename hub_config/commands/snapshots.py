"""`snapshots list`, `verify`, `rm`: what lies in the store, for the administrator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from hub_config.commands.errors import FAILED, CommandError
from hub_config.commands.names import display_name
from hub_config.commands.output import moment, print_json, print_table
from hub_config.commands.snapshots_compat import list_stranded
from hub_config.commands.store import in_use, repository_here
from scheduler_bridge.model.workload import Workload
from snapshot.errors import SnapshotError
from snapshot.model import Stored

if TYPE_CHECKING:
    from snapshot.repository import Repository

Key = Annotated[str, typer.Argument(help="Key as `snapshots list` shows it, or a part of one.")]
Owner = Annotated[str, typer.Option("--user", help="Only snapshots of this user.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]

app = typer.Typer(help="Snapshots in the store.", no_args_is_help=True)
app.command("compat")(list_stranded)


def register(parent: typer.Typer) -> None:
    """Add the commands."""
    parent.add_typer(app, name="snapshots")


@app.command("list")
def list_snapshots(user: Owner = "", as_json: AsJson = False) -> None:
    """List snapshots with their size, and which session would be resumed from them."""
    with repository_here() as repository:
        found = repository.list(user or None)
    used, _ = in_use()
    if as_json:
        print_json([{"snapshot": s, "used_by": _user_of(s, used)} for s in found])
        return
    print_table(
        ("USER", "MADE", "MEMORY", "STORED", "FOR", "KEY"),
        (_row(stored, used) for stored in found),
        empty="No snapshots.",
    )


def _row(stored: Stored, used: dict[str, Workload]) -> tuple[str, ...]:
    return (
        stored.key.owner,
        moment(stored.created_at) if stored.created_at else "unreadable",
        size(stored.memory_bytes),
        size(stored.stored_bytes),
        _user_of(stored, used),
        stored.manifest,
    )


def _user_of(stored: Stored, used: dict[str, Workload]) -> str:
    workload = used.get(stored.manifest)
    return f"{display_name(workload)} ({workload.phase})" if workload else ""


@app.command("verify")
def verify(
    key: Annotated[str, typer.Argument(help="One of them; without it, all.")] = "",
    user: Owner = "",
    as_json: AsJson = False,
) -> None:
    """Read snapshots completely and check every byte. Exit code 1 if one is damaged."""
    with repository_here() as repository:
        found = repository.list(user or None)
        chosen = (_one(key, found),) if key else found
        results = {stored.manifest: _verified(repository, stored) for stored in chosen}
    if as_json:
        print_json([{"key": name, "error": error} for name, error in results.items()])
    else:
        for name, error in results.items():
            typer.echo(f"{name}: {error or 'good'}")
        if not results:
            typer.echo("No snapshots.")
    if any(results.values()):
        raise typer.Exit(FAILED)


def _verified(repository: Repository, stored: Stored) -> str:
    """What is wrong with a snapshot; empty if nothing is."""
    try:
        repository.open(stored.manifest).verify()
    except SnapshotError as error:
        return str(error)
    return ""


@app.command("rm")
def remove(
    key: Key,
    force: Annotated[
        bool, typer.Option("--force", help="Also one that a session would be resumed from.")
    ] = False,
) -> None:
    """Remove a snapshot for good."""
    with repository_here() as repository:
        stored = _one(key, repository.list())
        if not force:
            _refuse_if_needed(stored)
        repository.remove(stored.manifest)
    typer.echo(f"removed {stored.manifest}")


def _refuse_if_needed(stored: Stored) -> None:
    used, problem = in_use()
    remedy = "Add --force if it shall be lost."
    if problem:
        raise CommandError(
            f"it is not known whether a session needs {stored.manifest}: {problem}", remedy=remedy
        )
    workload = used.get(stored.manifest)
    if workload:
        raise CommandError(
            f"{display_name(workload)} ({workload.phase}) is resumed from {stored.manifest}.",
            remedy=remedy,
        )


def _one(key: str, found: Sequence[Stored]) -> Stored:
    """The snapshot meant by a key or by a part that only one key has."""
    exact = [stored for stored in found if stored.manifest == key]
    matching = exact or [stored for stored in found if key in stored.manifest]
    if len(matching) == 1:
        return matching[0]
    if not matching:
        raise CommandError(f"there is no snapshot {key}.", remedy="See `hubernate snapshots list`.")
    listed = ", ".join(stored.manifest for stored in matching[:8])
    raise CommandError(f"{key} can mean {len(matching)} snapshots: {listed}.")


def size(count: int) -> str:
    """Bytes as people read them: `0 B`, `12.3 MiB`."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
