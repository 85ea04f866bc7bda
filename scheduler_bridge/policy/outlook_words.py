"""Sentences about what would start work now, and about when it starts."""

from __future__ import annotations

from typing import Any, Final

from scheduler_bridge.policy.alternatives import Alternative, ChangeKind
from scheduler_bridge.policy.values import Pending
from scheduler_bridge.policy.wording import gpus

_NAMED_AT_MOST: Final = 3
_UNITS: Final = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"))


def lasting(seconds: float) -> str:
    """`15 min`, `8 h`, `1 d 6 h`; `none` for 0."""
    parts, rest = [], round(seconds / 60.0) * 60.0
    for size, name in _UNITS:
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count:g} {name}")
    return " ".join(parts) or "none"


def change_values(item: Pending, changed: Pending) -> dict[str, Any]:
    """The fields of a spec that differ, as they would be."""
    pairs: dict[str, tuple[Any, Any]] = {
        "gpus": (item.gpus, changed.gpus),
        "nodes": (item.nodes, changed.nodes),
        "min_runtime_seconds": (item.min_runtime, changed.min_runtime),
        "clusters": (item.clusters, changed.clusters),
        "gpu_models": (item.models, changed.models),
        "team": (item.team, changed.team),
    }
    return {name: new for name, (old, new) in pairs.items() if old != new}


def change_sentence(change: Alternative) -> str:
    """What would be different; whose protection is in the way, by their ids."""
    if change.kind is ChangeKind.MOMENT:
        return _moment(change)
    return _different(change.asked, change.item, change.kind)


def _different(item: Pending, changed: Pending, kind: ChangeKind) -> str:
    if kind is ChangeKind.GPUS:
        each = " on each machine" if item.nodes > 1 else ""
        return (
            f"{gpus(item.gpus - changed.gpus)} fewer{each} ({changed.gpus} instead of {item.gpus})"
        )
    if kind is ChangeKind.NODES:
        fewer = item.nodes - changed.nodes
        machines = "machine" if fewer == 1 else "machines"
        return f"{fewer} {machines} fewer ({changed.nodes} instead of {item.nodes})"
    if kind is ChangeKind.PROTECTION:
        new, old = lasting(changed.min_runtime), lasting(item.min_runtime)
        if not changed.is_allocated:
            return f"no min runtime instead of {old}: it then yields first"
        return f"min runtime {new} instead of {old}"
    if kind is ChangeKind.CLUSTER:
        return f"cluster {changed.clusters[-1]} as well"
    if kind is ChangeKind.MODEL:
        return f"GPU model {changed.models[-1]} as well"
    return f"the share of team {changed.team} instead of {item.team}'s"


def _moment(change: Alternative) -> str:
    moment = change.moment
    if moment is None or not moment.last:
        return "as it is"
    what = "the longest that it may run" if moment.ends else "the last protection in the way"
    more = len(moment.last) - _NAMED_AT_MOST
    names = ", ".join(moment.last[:_NAMED_AT_MOST]) + (f" and {more} more" if more > 0 else "")
    return f"as it is, when {what} ends: {names}"
