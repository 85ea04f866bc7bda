"""What is asked of all machines together, worked out once for each inventory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scheduler_bridge.model.workload import Node


@dataclass(frozen=True, slots=True)
class Fleet:
    """`sizes` are the GPUs of each machine, the largest first; names are what may be asked for."""

    nodes: Sequence[Node]
    gpus: int
    sizes: tuple[int, ...]
    names: frozenset[str]
    models: frozenset[str]
    clusters: frozenset[str]

    @classmethod
    def of(cls, nodes: Sequence[Node]) -> Fleet:
        """All machines, ready or not."""
        sizes = sorted((len(node.gpus) for node in nodes), reverse=True)
        return cls(
            nodes,
            sum(sizes),
            tuple(sizes),
            frozenset(node.name for node in nodes),
            frozenset(gpu.model for node in nodes for gpu in node.gpus),
            frozenset(node.cluster for node in nodes),
        )
