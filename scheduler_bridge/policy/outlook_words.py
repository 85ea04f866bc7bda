"""Sentences about what would start work now, and about when it starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from scheduler_bridge.policy.alternatives import Alternative, ChangeKind
from scheduler_bridge.policy.trials import Outcome
from scheduler_bridge.policy.values import Pending
from scheduler_bridge.policy.wording import gpus

_NAMED_AT_MOST: Final = 3
_UNITS: Final = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"))

_NO_ESTIMATE: Final[Mapping[str, str]] = {
    "no_machine": "No ETA: no machine that is ready could run it.",
    "paused": "No ETA: an administrator paused preemption, and nobody knows what ends before that.",
    "too_few_started": "No ETA: too little work of this size has started lately to tell, and it has no "
    "reservation.",
    "too_many_wait": "No ETA: so much work of this size still waits that nobody can tell.",
    "held_back": "No ETA before that is over.",
}


def no_estimate_sentence(reason: str) -> str:
    """Why nothing is said of the start."""
    return _NO_ESTIMATE[reason]


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


def change_sentence(item: Pending, change: Alternative) -> str:
    """What would be different; whose protection is in the way, by their ids."""
    if change.kind is ChangeKind.MOMENT:
        return _moment(change)
    room = "" if change.outcome is Outcome.NOW else ", and others make room for it"
    return f"{_different(item, change.item, change.kind)}{room}"


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
