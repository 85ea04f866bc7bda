"""`snapshots compat`: who could not be brought back after an upgrade."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated

import typer

from hub_config.commands.connection import need_admin
from hub_config.commands.errors import FAILED, MISUSED, CommandError
from hub_config.commands.names import display_name
from hub_config.commands.output import ago, print_json, print_table
from hub_config.commands.store import in_use, repository_here
from scheduler_bridge.model.phases import Phase
from scheduler_bridge.model.workload import Workload
from snapshot import compat, host_facts
from snapshot.model import Stored

_LIVES_IN_MEMORY = frozenset({Phase.STARTING, Phase.RUNNING})
"""Sessions in these phases do not need their last snapshot."""

After = Annotated[
    list[str] | None,
    typer.Option(
        "--after",
        metavar="KEY=VALUE,…",
        help="The upgrade: driver=…, kernel=…, image=sha256:…, criu=…. "
        "Without it: this machine as it is now.",
    ),
]


@dataclass(frozen=True, slots=True)
class Judged:
    """One snapshot that somebody would come back from. `unknown`: facts that it does not say."""

    user: str
    session: str
    phase: str
    key: str
    created_at: float
    age_seconds: float
    reasons: tuple[compat.Incompatibility, ...] = ()
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the command prints with --json. `note`: why it is not known who needs a snapshot."""

    after: dict[str, str]
    judged: int
    stranded: tuple[Judged, ...]
    unknown: tuple[Judged, ...]
    note: str = ""
    facts: dict[str, str] = field(default_factory=dict)


def list_stranded(
    after: After = None,
    user: Annotated[str, typer.Option("--user", help="Only snapshots of this user.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Who could not be brought back after an upgrade, and why. Exit code 1 if anybody."""
    try:
        wanted = compat.parse_after(after or ())
    except ValueError as error:
        raise CommandError(str(error), code=MISUSED) from error
    here = _this_machine()
    with repository_here() as repository:
        found = repository.list(user or None)
    used, problem = in_use()
    waiting = _waiting(found, None if problem else used)
    judged = [_judge(stored, used.get(stored.manifest), here, wanted) for stored in waiting]
    outcome = Outcome(
        wanted,
        len(judged),
        tuple(it for it in judged if it.reasons),
        tuple(it for it in judged if it.unknown and not it.reasons),
        problem,
        here,
    )
    print_json(outcome) if as_json else _print(outcome)
    if outcome.stranded:
        raise typer.Exit(FAILED)


def _this_machine() -> dict[str, str]:
    _, state = need_admin("the store")
    facts = host_facts.machine() | {"gpu_driver": host_facts.driver(), "image": ""}
    if version := asyncio.run(host_facts.criu_version(state.tools())):
        facts["criu"] = version
    return facts


def _waiting(found: Iterable[Stored], used: Mapping[str, Workload] | None) -> list[Stored]:
    """The snapshots that sessions wait in; if nobody knows, the newest of each session."""
    if used is not None:
        waiting = {key for key, it in used.items() if it.phase not in _LIVES_IN_MEMORY}
        return [stored for stored in found if stored.manifest in waiting]
    newest = {(s.key.owner, s.key.session): s for s in found}  # they come oldest first
    return list(newest.values())


def _judge(
    stored: Stored, workload: Workload | None, here: compat.Facts, after: compat.Facts
) -> Judged:
    reasons, unknown = compat.stranded(stored.constraints, here, after or here)
    return Judged(
        stored.key.owner,
        display_name(workload) if workload else stored.key.session,
        str(workload.phase) if workload else "",
        stored.manifest,
        stored.created_at,
        round(max(time.time() - stored.created_at, 0.0), 1),
        reasons,
        unknown,
    )


def _print(outcome: Outcome) -> None:
    if outcome.note:
        typer.echo(f"Judged by the newest snapshot of each session: {outcome.note}", err=True)
    rows = [(it, "; ".join(map(str, it.reasons))) for it in outcome.stranded]
    rows += [
        (it, f"not known: the snapshot does not say {', '.join(it.unknown)}")
        for it in outcome.unknown
    ]
    print_table(
        ("USER", "SESSION", "AGE", "WHY"),
        ((it.user, it.session, _age(it), why) for it, why in rows),
        empty="Everybody can be brought back.",
    )
    if rows:
        typer.echo(
            f"{len(outcome.stranded)} of {outcome.judged} could not be brought back. They can be "
            "resumed before the upgrade, or on a machine that stays as it is."
            if outcome.stranded
            else f"Nobody of {outcome.judged} is known to be stranded."
        )


def _age(it: Judged) -> str:
    """Unreadable snapshots have no date."""
    return ago(it.created_at, it.created_at + it.age_seconds) if it.created_at else "unknown"
