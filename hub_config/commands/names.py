"""Names as people write them -> one workload (pure).

A session is `user`, `user/server` (`user/` is the default server), its id or the id's beginning. A
job is its name, its id or the id's beginning.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hub_config.commands.errors import CommandError
from scheduler_bridge.model.phases import TERMINAL, Kind
from scheduler_bridge.model.workload import Workload

SHORTEST_PREFIX = 3


def display_name(workload: Workload) -> str:
    """How lists show it."""
    spec = workload.spec
    if spec.kind is Kind.JOB:
        return spec.name
    return f"{spec.user}/{spec.server}" if spec.server else spec.user


def resolve(name: str, workloads: Iterable[Workload]) -> Workload:
    """The workload meant by `name`. What still lives is preferred to what has ended, exact names to
    beginnings of ids. Raises `CommandError` for none, and for several with their names."""
    everything = tuple(workloads)
    for candidates in (_named(name, everything), _prefixed(name, everything)):
        living = [w for w in candidates if w.phase not in TERMINAL]
        found = living or _newest_of_each(candidates)
        if len(found) == 1:
            return found[0]
        if found:
            raise CommandError(_ambiguous(name, found), remedy="Say which one, by its id.")
    raise CommandError(
        f"there is no {name}.", remedy="See `hubernate sessions list` and `hubernate jobs --all`."
    )


def _named(name: str, workloads: Sequence[Workload]) -> list[Workload]:
    exact = [w for w in workloads if w.id == name]
    return exact or [w for w in workloads if name in _names(w)]


def _prefixed(name: str, workloads: Sequence[Workload]) -> list[Workload]:
    if len(name) < SHORTEST_PREFIX:
        return []
    return [w for w in workloads if w.id.startswith(name)]


def _names(workload: Workload) -> set[str]:
    spec = workload.spec
    if spec.kind is Kind.JOB:
        return {spec.name, f"{spec.user}/{spec.name}"}
    return {spec.user, f"{spec.user}/{spec.server}", workload.key}


def _newest_of_each(ended: Sequence[Workload]) -> list[Workload]:
    """Of things that have ended, one stands for all of the same kind, owner and name."""
    newest: dict[tuple[str, str, str, str], Workload] = {}
    for workload in sorted(ended, key=lambda w: w.created_at):
        spec = workload.spec
        newest[(spec.kind, spec.user, spec.server, spec.name)] = workload
    return list(newest.values())


def _ambiguous(name: str, found: Sequence[Workload]) -> str:
    listed = ", ".join(f"{_kind_and_name(w)} ({w.id})" for w in found[:8])
    return f"{name} can mean {len(found)} things: {listed}."


def _kind_and_name(workload: Workload) -> str:
    spec = workload.spec
    if spec.kind is Kind.JOB:
        return f"job {spec.user}/{spec.name}"
    return f"session {spec.user}/{spec.server}"
