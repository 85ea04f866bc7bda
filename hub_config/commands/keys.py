"""`keys rotate`, `export`, `import`, `destroy`: the keys that open snapshots."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from hub_config import audit
from hub_config.commands.connection import Access, ask, need_admin
from hub_config.commands.errors import CommandError
from hub_config.commands.names import display_name
from hub_config.commands.output import print_json
from hub_config.commands.store import plain_errors, repository_here, state_here
from hub_config.key_record import Exported, note_export
from scheduler_bridge.model.phases import Desired, Kind, Phase
from scheduler_bridge.model.workload import Workload
from scheduler_bridge.plugin import SchedulerPlugin

if TYPE_CHECKING:
    from snapshot.repository import Repository

IN_BETWEEN: Final = frozenset({Phase.SUSPENDING, Phase.PARKED, Phase.RESUMING, Phase.FILLING})
BY_HAND: Final = "by hand"
STANDARD: Final = "-"

PassphraseFile = Annotated[
    Path | None,
    typer.Option("--passphrase-file", help="Its first line; without it you are asked."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]

app = typer.Typer(help="Keys that open snapshots.", no_args_is_help=True)


def register(parent: typer.Typer) -> None:
    """Add the commands."""
    parent.add_typer(app, name="keys")


@app.command()
def rotate(
    user: Annotated[
        str, typer.Option("--user", help="Replace the key of this user, not the outermost one.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Replace the key-encryption key. Nothing is stored again; sessions notice nothing."""
    if user:
        _rotate_user(user, as_json)
        return
    from snapshot.keyfiles import LocalWrapping
    from snapshot.rotation import rotate as rotate_all

    _, state = need_admin("rotating keys")
    with repository_here() as repository:
        done = rotate_all(repository.keys, LocalWrapping(state.keys))
    if as_json:
        print_json(done)
    else:
        typer.echo(f"{done.key} is the key now; {done.rewrapped} user key(s) were wrapped anew")
        typer.echo("Back it up: hubernate keys export FILE (backups of the old key open no more).")
    for problem in done.problems:
        typer.echo(f"hubernate: not wrapped anew: {problem}", err=True)
    if done.problems:
        raise typer.Exit(1)


def _rotate_user(user: str, as_json: bool) -> None:
    from snapshot.renewal import renew

    need_admin("rotating keys")
    with repository_here() as repository:
        count = renew(repository, user, now=time.time())
    if as_json:
        print_json({"user": user, "resealed": count})
        return
    typer.echo(f"{user} has a new key; {count} snapshot(s) were sealed anew under it")
    typer.echo("The old key goes with a later `snapshots gc`, when nothing needs it any more.")


@app.command()
def export(
    file: Annotated[Path, typer.Argument(help="Where to; - is standard output.")],
    passphrase_file: PassphraseFile = None,
) -> None:
    """Write a backup of the key-encryption key that only its passphrase opens."""
    from snapshot.key_backup import open_backup, seal_backup
    from snapshot.keyfiles import LocalWrapping

    state = state_here("a backup of keys")
    with plain_errors():
        keys = dict(LocalWrapping(state.keys).all())
        passphrase = _passphrase(passphrase_file, confirm=True)
        backup = seal_backup(keys, passphrase)
        path = _write_backup(file, backup)
        if open_backup(path.read_bytes() if path else backup, passphrase) != keys:
            raise CommandError(f"the backup {file} does not open again.", remedy="Do not use it.")
    same_disk = path is not None and path.stat().st_dev == state.keys.stat().st_dev
    note_export(state.keys, Exported(next(iter(keys)), time.time(), str(path or ""), same_disk))
    if path is not None:
        typer.echo(f"wrote {path}; it was opened again with the passphrase")
        if same_disk:
            typer.echo("It lies on the same disk as the key: move it off this machine.")


@app.command("import")
def bring_back(
    file: Annotated[Path, typer.Argument(help="A backup that `keys export` wrote.")],
    passphrase_file: PassphraseFile = None,
) -> None:
    """Bring keys back from a backup. Keys that are here stay."""
    from snapshot.key_backup import open_backup
    from snapshot.keyfiles import LocalWrapping

    state = state_here("bringing keys back")
    try:
        backup = file.read_bytes()
    except OSError as error:
        raise CommandError(f"{file} cannot be read: {error.strerror}.") from error
    with plain_errors():
        wrapping = LocalWrapping(state.keys)
        had_one = bool(wrapping.all())
        added = wrapping.bring_back(open_backup(backup, _passphrase(passphrase_file)))
    if not added:
        typer.echo("everything in this backup is here already")
    elif had_one:
        typer.echo(f"{', '.join(added)} came back beside the key that is in use")
        typer.echo("To have one key again: hubernate keys rotate")
    else:
        typer.echo(f"{added[0]} is the key again")


@app.command()
def destroy(
    user: Annotated[str, typer.Argument(help="Whose keys.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask. There is no way back.")] = False,
) -> None:
    """Destroy a user's keys: everything stored of their memory is gone for good, in every copy."""
    access, state = need_admin("destroying keys")
    sessions = ask(lambda scheduler, _: scheduler.list(kind=Kind.SESSION, user=user))
    _refuse_in_between(sessions)
    with repository_here() as repository:
        if not repository.keys.ids(user) and not repository.list(user):
            raise CommandError(f"nothing is stored of {user}.")
        if not yes:
            _confirm(user, len(repository.list(user)), sessions)
        line = audit.Gone(
            time.time(), user, "", f"keys/{user}", BY_HAND, "keys destroyed", actor=access.actor
        )
        audit.note(state.gone_file, (line,))
        removed = _erase(repository, user)
    stopped = ask(lambda scheduler, who: _end_suspended(scheduler, who, sessions))
    typer.echo(
        f"destroyed the keys of {user}: {removed} snapshot(s) can be opened by nobody any more; "
        f"{stopped} suspended session(s) ended"
    )


def _erase(repository: Repository, user: str) -> int:
    """Keys first: from then on it is done. Packs are of no use to anybody and are collected."""
    manifests = [stored.manifest for stored in repository.list(user)]
    repository.keys.erase(user)
    for manifest in manifests:
        repository.remove(manifest)
    return len(manifests)


def _refuse_in_between(sessions: tuple[Workload, ...]) -> None:
    for session in sessions:
        if session.phase in IN_BETWEEN:
            raise CommandError(
                f"{display_name(session)} is {session.phase}; its memory is on the way.",
                remedy="Wait until that is over.",
            )


def _confirm(user: str, snapshots: int, sessions: tuple[Workload, ...]) -> None:
    lost = [display_name(session) for session in sessions if session.phase is Phase.SUSPENDED]
    typer.echo(f"This destroys the keys of {user} for good. There is no way back, not even from")
    typer.echo("backups of the store that are restored later without their keys. It takes")
    typer.echo(f"  {snapshots} snapshot(s), and the memory of these suspended sessions:")
    typer.echo(f"  {', '.join(lost) or 'none'}")
    typer.echo("Files stay. Running sessions go on.")
    typed = typer.prompt("Type the user's name to go on")
    if typed.strip() != user:
        raise CommandError("that is another name; nothing was destroyed.")


async def _end_suspended(
    scheduler: SchedulerPlugin, access: Access, sessions: tuple[Workload, ...]
) -> int:
    ended = 0
    for session in sessions:
        now = await scheduler.get(session.id)
        if now.phase is Phase.SUSPENDED:
            await scheduler.desire(
                session.id,
                Desired.STOPPED,
                actor=access.actor,
                reason="its user's keys were destroyed",
            )
            ended += 1
    return ended


def _passphrase(file: Path | None, *, confirm: bool = False) -> str:
    if file is None:
        asked: str = typer.prompt(
            "Passphrase", hide_input=True, confirmation_prompt=confirm, err=True
        )
        return asked
    try:
        return file.read_text().splitlines()[0]
    except (OSError, UnicodeDecodeError, IndexError) as error:
        raise CommandError(f"there is no passphrase in {file}.") from error


def _write_backup(file: Path, backup: bytes) -> Path | None:
    """Write it, readable by root only; None for standard output."""
    if str(file) == STANDARD:
        sys.stdout.buffer.write(backup + b"\n")
        sys.stdout.flush()
        return None
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise CommandError(f"{file} cannot be written: {error.strerror}.") from error
    with os.fdopen(descriptor, "wb") as handle:
        handle.write(backup)
        handle.flush()
        os.fsync(handle.fileno())
    return file.absolute()
