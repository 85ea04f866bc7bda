"""The one dominant reason why a workload waits, with the figures behind it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from scheduler_bridge.policy.demands import Lack, gpus_wanted, lacking
from scheduler_bridge.policy.passing import Desk
from scheduler_bridge.policy.rooms import room
from scheduler_bridge.policy.values import NodeState, Pending, WaitReason

Answer = tuple[WaitReason, dict[str, Any]]


def never_fits(item: Pending, nodes: Iterable[NodeState]) -> dict[str, Lack] | None:
    """What each machine lacks to bring the workload back, if no machine can, ready or not; None if
    there is one, or if it would not fit without its demands either."""
    every = tuple(nodes)
    lacks = {node.name: lacking(item.demands, item.gpus, node) for node in every}
    fitting = [node for node in every if not lacks[node.name]]
    if _large_enough(item, fitting) or not _large_enough(item, every):
        return None
    return {name: lack for name, lack in lacks.items() if lack}


def _large_enough(item: Pending, nodes: Iterable[NodeState]) -> bool:
    return sum(len(node.gpus) >= item.gpus for node in nodes) >= item.nodes


class Reasons:
    """Asked when everything was tried for one workload."""

    def __init__(self, desk: Desk) -> None:
        self._desk, self._pools = desk, desk.columns.pools

    def why(self, item: Pending) -> Answer:
        """The first reason that holds."""
        for find in (
            self._no_node_fits,
            self._no_node,
            self._too_large,
            self._refused,
            self._kept_out,
        ):
            if (found := find(item)) is not None:
                return found
        return self._capacity(item)

    def _free(self, item: Pending) -> int:
        """GPUs that it could have, were they in the right places."""
        open_ = np.maximum(self._desk.open_to(item, self._desk.free), 0)
        return int(open_[self._where(item)].sum())

    def _where(self, item: Pending) -> Any:
        limited = item.models or item.clusters
        return self._desk.within(item) if limited else slice(None)

    def _evidence(self, item: Pending, **more: Any) -> dict[str, Any]:
        return {"needed": item.gpus * item.nodes, "free": self._free(item), **more}

    def _no_node_fits(self, item: Pending) -> Answer | None:
        lacks = never_fits(item, self._pools.nodes) if item.demands else None
        return None if lacks is None else (WaitReason.NO_NODE_FITS, {"lacks": lacks})

    def _no_node(self, item: Pending) -> Answer | None:
        if self._pools.ready.any():
            return None
        return WaitReason.NO_READY_NODE, self._evidence(item)

    def _too_large(self, item: Pending) -> Answer | None:
        if _large_enough(item, self._pools.nodes):
            return None
        largest = max((len(node.gpus) for node in self._pools.nodes), default=0)
        return WaitReason.TOO_LARGE, self._evidence(item, largest=largest)

    def _refused(self, item: Pending) -> Answer | None:
        refusal = self._desk.accounts.refusal(item)
        return (
            None if refusal is None else (refusal.reason, self._evidence(item, **refusal.evidence))
        )

    def _kept_out(self, item: Pending) -> Answer | None:
        """Whether only its demands keep it from a place, or from any machine that is ready."""
        if not item.demands:
            return None
        within = self._desk.within(item)
        plain = replace(item, demands={})
        open_ = self._desk.open_to(item, self._desk.free)
        if (within & self._pools.ready).any() and not room(
            self._pools, plain, open_, self._desk.within(plain)
        ):
            return None
        lacks = {n.name: lacking(item.demands, item.gpus, n) for n in self._pools.nodes}
        needs = {words for lack in lacks.values() for words in lack}
        fitting = [name for name, lack in lacks.items() if not lack]
        needs = needs or {gpus_wanted(item.demands)}
        return WaitReason.FITTING_NODE, {"needs": sorted(needs), "machines": fitting}

    def _capacity(self, item: Pending) -> Answer:
        wanted, free = item.gpus * item.nodes, self._desk.free
        where = self._where(item)
        if not self._desk.leaves_headroom(item) and self._free(item) >= wanted:
            return WaitReason.HEADROOM, self._evidence(item, headroom=self._desk.rules.headroom)
        own = next((r for r in self._desk.reservations if r.owner == item.id), None)
        evidence = self._evidence(item, **({} if own is None else {"starts_by": own.at}))
        if self._free(item) >= wanted:
            return WaitReason.SCATTERED, evidence
        unspoken = np.maximum(free - self._desk.spoken, 0)
        if int(unspoken[where].sum()) >= wanted:
            return WaitReason.RESERVED, evidence
        if int(np.maximum(free, 0)[where].sum()) >= wanted:
            return WaitReason.PROMISED, evidence
        return WaitReason.NO_FREE_GPUS, evidence
