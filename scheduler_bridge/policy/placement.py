"""Where a gang fits. Whole gangs or nothing; the tightest nodes first, so that large holes stay."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from scheduler_bridge.policy.values import Assignment, NodeState, Pending


def fit(
    item: Pending, nodes: Iterable[NodeState], available: Collection[str]
) -> tuple[Assignment, ...] | None:
    """The gang's assignments using only `available` GPUs of ready nodes, or None."""
    candidates = []
    for node in nodes:
        if not node.ready:
            continue
        open_gpus = [gpu for gpu in node.gpus if gpu in available] if item.gpus else []
        if len(open_gpus) >= item.gpus:
            candidates.append((len(open_gpus), node.name, open_gpus))
    if len(candidates) < item.nodes:
        return None
    chosen = sorted(candidates, key=lambda entry: entry[:2])[: item.nodes]
    return tuple(Assignment(name, tuple(gpus[: item.gpus])) for _, name, gpus in chosen)


def could_ever_fit(item: Pending, nodes: Iterable[NodeState]) -> bool:
    """Whether the gang fits the fleet when it is empty, ready or not."""
    return sum(len(node.gpus) >= item.gpus for node in nodes) >= item.nodes
