"""Where a gang fits. Whole gangs or nothing; the tightest nodes first, so that large holes stay."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from scheduler_bridge.policy.demands import choose
from scheduler_bridge.policy.values import Assignment, NodeState, Pending


def fit(
    item: Pending, nodes: Iterable[NodeState], available: Collection[str]
) -> tuple[Assignment, ...] | None:
    """The gang's assignments using only `available` GPUs of ready nodes, or None. The nodes' facts
    must be what the workload demands."""
    candidates = []
    for node in nodes:
        if not node.ready:
            continue
        gpus = choose(item.demands, item.gpus, node, available)
        if gpus is not None:
            spare = sum(gpu in available for gpu in node.gpus) if item.gpus else 0
            candidates.append((spare, node.name, gpus))
    if len(candidates) < item.nodes:
        return None
    chosen = sorted(candidates, key=lambda entry: entry[:2])[: item.nodes]
    return tuple(Assignment(name, gpus) for _, name, gpus in chosen)


def could_ever_fit(item: Pending, nodes: Iterable[NodeState]) -> bool:
    """Whether the gang fits the fleet when it is empty, ready or not."""
    return sum(len(node.gpus) >= item.gpus for node in nodes) >= item.nodes
