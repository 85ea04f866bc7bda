"""`snapshots list`, `verify`, `rm`: what lies in the store, for the administrator."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import track

from hub_config import audit
from hub_config.commands import collect
from hub_config.commands.connection import need_admin
from hub_config.commands.errors import FAILED, CommandError
from hub_config.commands.names import display_name
from hub_config.commands.output import day, moment, print_json, print_table, size
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
    collect.register(app)
    parent.add_typer(app, name="snapshots")


@app.command("list")
def list_snapshots(user: Owner = "", as_json: AsJson = False) -> None:
    """List snapshots with their size, and which session would be resumed from them."""
    with repository_here() as repository:
        found = repository.list(user or None)
    used, _ = in_use()
    if as_json:
        print_json([_document(stored, used) for stored in found])
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
    if workload is None:
        return ""
    until = f" until {day(workload.deletion.at)}" if workload.deletion else ""
    return f"{display_name(workload)} ({workload.phase}{until})"


def _document(stored: Stored, used: dict[str, Workload]) -> dict[str, object]:
    workload = used.get(stored.manifest)
    expiry = workload.deletion if workload else None
    return {"snapshot": stored, "used_by": _user_of(stored, used), "expiry": expiry}


@app.command("verify")
def verify(
    key: Annotated[str, typer.Argument(help="One of them; without it, all.")] = "",
    user: Owner = "",
    as_json: AsJson = False,
) -> None:
    """Read snapshots completely and check every byte. Exit code 1 if one is damaged."""
    with repository_here() as repository:
        found = repository.list(user or None)
        chosen = [_one(key, found)] if key else found
        used, _ = in_use()
        results = [_verified(repository, stored, used) for stored in _shown(chosen)]
    if as_json:
        print_json(results)
    else:
        for one in results:
            typer.echo(f"{one.key}: {one.error or 'good'}{_whose(one)}")
        if not results:
            typer.echo("No snapshots.")
    if any(one.error for one in results):
        raise typer.Exit(FAILED)


@dataclass(frozen=True, slots=True)
class _Verified:
    """What is wrong with a snapshot (empty if nothing is), and whose it is: `used_by` is the session
    that would come back from it."""

    key: str
    error: str
    owner: str
    used_by: str


def _verified(repository: Repository, stored: Stored, used: dict[str, Workload]) -> _Verified:
    error = ""
    try:
        repository.open(stored.manifest).verify()
    except SnapshotError as found:
        error = str(found)
    return _Verified(stored.manifest, error, stored.key.owner, _user_of(stored, used))


def _whose(one: _Verified) -> str:
    if not one.error:
        return ""
    needed = f", needed by {one.used_by}" if one.used_by else ""
    return f" (snapshot of {one.owner}{needed})"


def _shown(chosen: Sequence[Stored]) -> Iterable[Stored]:
    """The same one by one, with a bar for people who wait at a terminal."""
    bar = Console(stderr=True)
    return track(chosen, "checking", console=bar, transient=True, disable=not sys.stderr.isatty())


@app.command("rm")
def remove(
    key: Key,
    force: Annotated[
        bool, typer.Option("--force", help="Also one that a session would be resumed from.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Remove a snapshot for good."""
    access, state = need_admin("removing snapshots")
    with repository_here() as repository:
        stored = _one(key, repository.list())
        if not force:
            _refuse_if_needed(stored)
        line = audit.Gone(
            time.time(),
            stored.key.owner,
            stored.key.session,
            stored.manifest,
            "by hand",
            "removed with --force" if force else "removed",
            stored.stored_bytes,
            access.actor,
        )
        audit.note(state.gone_file, (line,))
        repository.remove(stored.manifest)
    if as_json:
        print_json({"removed": line})
    else:
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
