"""`snapshots compat`: who could not be brought back after an upgrade."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated

import typer

from hub_config.commands.connection import ask, need_admin
from hub_config.commands.errors import FAILED, MISUSED, CommandError
from hub_config.commands.names import display_name
from hub_config.commands.output import ago, print_json, print_table
from hub_config.commands.store import in_use, repository_here
from hub_config.node_facts import node_facts
from scheduler_bridge.engine.fitting import node_state
from scheduler_bridge.errors import SchedulerError
from scheduler_bridge.model.phases import Phase
from scheduler_bridge.model.workload import Node, Workload
from scheduler_bridge.policy.demands import choose, gpus_wanted
from snapshot import compat
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


OnlyNode = Annotated[
    str, typer.Option("--node", metavar="NAME", help="Only this machine is upgraded.")
]


@dataclass(frozen=True, slots=True)
class OnNode:
    """What speaks against one machine, after the upgrade. `broken`: what the upgrade itself does."""

    node: str
    reasons: tuple[compat.Incompatibility, ...] = ()
    broken: tuple[compat.Incompatibility, ...] = ()


@dataclass(frozen=True, slots=True)
class Judged:
    """One snapshot that somebody would come back from. `reasons`: what the upgrade does to it, if no
    machine is left for it then; `unknown`: facts that it does not say; `nodes`: each machine."""

    user: str
    session: str
    phase: str
    key: str
    created_at: float
    age_seconds: float
    reasons: tuple[compat.Incompatibility, ...] = ()
    unknown: tuple[str, ...] = ()
    nodes: tuple[OnNode, ...] = ()

    @property
    def left(self) -> tuple[str, ...]:
        """The machines that can bring it back."""
        return tuple(it.node for it in self.nodes if not it.reasons)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the command prints with --json. `fewer`: who is left with only some of the machines.
    `note`: why it is not known who needs a snapshot. `facts`: of each machine, as it is now."""

    after: dict[str, str]
    judged: int
    stranded: tuple[Judged, ...]
    unknown: tuple[Judged, ...]
    fewer: tuple[Judged, ...] = ()
    note: str = ""
    facts: dict[str, dict[str, str]] = field(default_factory=dict)


def list_stranded(
    after: After = None,
    node: OnlyNode = "",
    user: Annotated[str, typer.Option("--user", help="Only snapshots of this user.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Who could not be brought back after an upgrade, and why. Exit code 1 if anybody."""
    try:
        wanted = compat.parse_after(after or ())
    except ValueError as error:
        raise CommandError(str(error), code=MISUSED) from error
    machines = _machines(node)
    with repository_here() as repository:
        found = repository.list(user or None)
    used, problem = in_use()
    waiting = _waiting(found, None if problem else used)
    upgraded = [(it, wanted if node in ("", it.name) else None) for it in machines]
    judged = [
        _judge(stored, used.get(stored.manifest), upgraded, bool(wanted)) for stored in waiting
    ]
    outcome = Outcome(
        wanted,
        len(judged),
        tuple(it for it in judged if it.reasons),
        tuple(it for it in judged if it.unknown and not it.reasons),
        tuple(it for it in judged if not it.reasons and 0 < len(it.left) < len(it.nodes)),
        problem,
        {it.name: it.facts for it in machines},
    )
    print_json(outcome) if as_json else _print(outcome)
    if outcome.stranded:
        raise typer.Exit(FAILED)


def _machines(node: str) -> tuple[Node, ...]:
    """The scheduler's machines that have told what they are; if none has, this one. Raises
    `CommandError` if `node` is given and none of them."""
    _, state = need_admin("the store")
    try:
        known = ask(lambda scheduler, _: scheduler.fleet()).nodes
    except (CommandError, SchedulerError):
        known = ()
    told = tuple(it for it in known if it.facts)
    if node and node not in {it.name for it in told}:
        names = ", ".join(it.name for it in told) or "none: the scheduler does not tell"
        raise CommandError(f"there is no machine {node}.", remedy=f"Known are: {names}.")
    return told or (Node("this machine", (), facts=node_facts(state.tools())),)


def _waiting(found: Iterable[Stored], used: Mapping[str, Workload] | None) -> list[Stored]:
    """The snapshots that sessions wait in; if nobody knows, the newest of each session."""
    if used is not None:
        waiting = {key for key, it in used.items() if it.phase not in _LIVES_IN_MEMORY}
        return [stored for stored in found if stored.manifest in waiting]
    newest = {(s.key.owner, s.key.session): s for s in found}  # they come oldest first
    return list(newest.values())


def _judge(
    stored: Stored,
    workload: Workload | None,
    machines: Iterable[tuple[Node, compat.Facts | None]],
    is_upgrade: bool,
) -> Judged:
    demands = stored.constraints
    unknown: set[str] = set()
    nodes = []
    for node, after in machines:
        facts = node.facts | _gpus_for(demands, node)
        changed = {} if after is None else (after if is_upgrade else facts)
        broken, unsaid = compat.stranded(demands, facts, changed)
        unknown.update(unsaid)
        against = compat.verdict(demands, {**facts, **changed}) or _lacks_gpus(demands, node)
        nodes.append(OnNode(node.name, against, broken))
    is_left = any(not it.reasons for it in nodes)
    reasons = () if is_left else tuple({reason: 0 for it in nodes for reason in it.broken})
    return Judged(
        stored.key.owner,
        display_name(workload) if workload else stored.key.session,
        str(workload.phase) if workload else "",
        stored.manifest,
        stored.created_at,
        round(max(time.time() - stored.created_at, 0.0), 1),
        reasons,
        tuple(sorted(unknown)),
        tuple(nodes),
    )


def _gpus_for(demands: compat.Facts, node: Node) -> dict[str, str]:
    """The GPUs that the session would get on this machine if it were empty."""
    if "gpu_models" not in demands or not node.gpus:
        return {}
    state = node_state(node)
    chosen = choose(demands, _count(demands), state, state.gpus) or state.gpus
    return {"gpu_models": "; ".join(state.kinds[uuid].model for uuid in chosen)}


def _lacks_gpus(demands: compat.Facts, node: Node) -> tuple[compat.Incompatibility, ...]:
    """Where the models would do: the very GPUs, where the driver cannot move between them, and
    their memory."""
    state = node_state(node)
    if "gpu_models" not in demands or choose(demands, _count(demands), state, state.gpus):
        return ()
    why = f"It needs {gpus_wanted(demands)} with as much memory as before, which is not here."
    return (compat.Incompatibility("gpu_models", why, "Resume it where they are."),)


def _count(demands: compat.Facts) -> int:
    return len(demands["gpu_models"].split("; "))


def _print(outcome: Outcome) -> None:
    if outcome.note:
        typer.echo(f"Judged by the newest snapshot of each session: {outcome.note}", err=True)
    rows = [(it, _why(it)) for it in outcome.stranded]
    rows += [
        (it, f"not known: the snapshot does not say {', '.join(it.unknown)}")
        for it in outcome.unknown
    ]
    rows += [(it, f"can be brought back only on {', '.join(it.left)}") for it in outcome.fewer]
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


def _why(it: Judged) -> str:
    """With the machines' names where there are several."""
    if len(it.nodes) == 1:
        return "; ".join(map(str, it.reasons))
    return "; ".join(f"{on.node}: {' '.join(map(str, on.reasons))}" for on in it.nodes)


def _age(it: Judged) -> str:
    """Unreadable snapshots have no date."""
    return ago(it.created_at, it.created_at + it.age_seconds) if it.created_at else "unknown"
