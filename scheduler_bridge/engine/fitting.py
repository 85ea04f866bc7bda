"""Nodes and snapshots as the planner compares them, and what is said at once if none fits."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from scheduler_bridge.errors import Refused
from scheduler_bridge.model.phases import Kind
from scheduler_bridge.model.workload import Node, Workload
from scheduler_bridge.policy.planner import never_fits
from scheduler_bridge.policy.values import GpuKind, NodeState, Pending, WaitReason
from scheduler_bridge.policy.wording import wait_remedy, wait_sentence


def node_state(node: Node) -> NodeState:
    """The machine, its facts and its GPUs."""
    return NodeState(
        node.name,
        tuple(gpu.uuid for gpu in node.gpus),
        node.ready,
        node.facts,
        {gpu.uuid: GpuKind(gpu.model, gpu.memory_bytes) for gpu in node.gpus},
        node.cluster,
        node.rack,
    )


def pending(workload: Workload) -> Pending:
    """The workload as it would stand in the queue."""
    spec, shot = workload.spec, workload.snapshot
    returning = spec.kind is Kind.SESSION and shot is not None
    return Pending(
        id=workload.id,
        team=spec.team,
        gpus=spec.gpus,
        nodes=spec.nodes,
        priority=int(spec.priority),
        since=workload.phase_since,
        returning=returning,
        demands=shot.constraints if shot and returning else {},
        user=spec.user,
        min_runtime=spec.min_runtime_seconds,
        max_runtime=inf if spec.max_runtime_seconds is None else spec.max_runtime_seconds,
        models=spec.gpu_models,
        clusters=spec.clusters,
        attempts=len(workload.preempted_at),
        yielded_to=tuple(sorted(set(workload.yielded_to))),
    )


def refuse_if_nowhere(workload: Workload, nodes: Iterable[Node]) -> None:
    """Raises `Refused` if no machine, ready or not, could bring the session back."""
    lacks = never_fits(pending(workload), map(node_state, nodes))
    if lacks is not None:
        reason = WaitReason.NO_NODE_FITS
        raise Refused(wait_sentence(reason, {"lacks": lacks}), remedy=wait_remedy(reason))
