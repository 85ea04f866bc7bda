"""One planning pass: order -> place -> wait for what is being freed -> preempt -> explain.

Precedence when rules meet: no GPU twice > protection > whole gangs > earmarks > team limit > order.
A workload that does not fit never blocks those behind it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from scheduler_bridge.policy.demands import Lack, gpus_wanted, lacking
from scheduler_bridge.policy.ordering import Queue
from scheduler_bridge.policy.placement import could_ever_fit, fit
from scheduler_bridge.policy.preemption import candidates, choose_victims
from scheduler_bridge.policy.values import (
    Assignment,
    FleetState,
    NodeState,
    Pending,
    Placement,
    Plan,
    Preemption,
    Rules,
    Running,
    Wait,
    WaitReason,
)


def plan(
    fleet: FleetState,
    pending: Iterable[Pending],
    running: Iterable[Running],
    rules: Rules,
    now: float,
) -> Plan:
    """Decide about every pending workload. `now` is in UNIX seconds."""
    items = tuple(pending)
    desk = _Desk(fleet, items, tuple(running), rules, now)
    queue = Queue(items)
    while queue:
        desk.decide(queue.pop(desk.used))
    return Plan(tuple(desk.placements), tuple(desk.preemptions), tuple(desk.waits), desk.earmarks)


def never_fits(item: Pending, nodes: Iterable[NodeState]) -> dict[str, Lack] | None:
    """What each machine lacks to bring the workload back, if no machine can, ready or not; None if
    there is one, or if it would not fit without its demands either."""
    every = tuple(nodes)
    lacks = {node.name: lacking(item.demands, item.gpus, node) for node in every}
    fitting = [node for node in every if not lacks[node.name]]
    if could_ever_fit(item, fitting) or not could_ever_fit(item, every):
        return None
    return {name: lack for name, lack in lacks.items() if lack}


class _Desk:
    """The scratch values of one pass. Nothing of it is seen outside."""

    def __init__(
        self,
        fleet: FleetState,
        pending: Sequence[Pending],
        running: Sequence[Running],
        rules: Rules,
        now: float,
    ) -> None:
        self.fleet, self.rules, self.now = fleet, rules, now
        self.running = list(running)
        every = [gpu for node in fleet.nodes if node.ready for gpu in node.gpus]
        self.free = {gpu for gpu in every if gpu not in fleet.holders}
        self.leaving = {
            gpu for item in running if item.leaving for gpu in item.gpus if gpu in set(every)
        }
        self.used: Counter[str] = Counter()
        for item in running:
            self.used[item.team] += len(item.gpus)
        self.going: Counter[str] = Counter()
        for item in running:
            if item.leaving:
                self.going[item.team] += len(item.gpus)
        self.earmarks = _valid_earmarks(fleet, pending, self.free | self.leaving)
        self.placements: list[Placement] = []
        self.preemptions: list[Preemption] = []
        self.waits: list[Wait] = []
        self._lacks: dict[str, dict[str, Lack]] = {}

    def decide(self, item: Pending) -> None:
        """Place the workload, or make room for it, or say why it waits."""
        if item.blocked is not None:
            self._wait(item, item.blocked, dict(item.blocked_evidence))
            return
        placement = self._fit(item, self._open_to(item, self.free), 0)
        if placement is not None:
            self._place(item, placement)
        elif not (self._await_freed(item) or self._preempt(item)):
            self._explain(item)

    def _open_to(self, item: Pending, gpus: set[str]) -> set[str]:
        return {gpu for gpu in gpus if self.earmarks.get(gpu, item.id) == item.id}

    def _fit(
        self, item: Pending, available: set[str], given_back: int
    ) -> tuple[Assignment, ...] | None:
        """The placement, if also the team's limit allows it once `given_back` GPUs are back."""
        limit = self.rules.limit_of(item.team)
        wanted = item.gpus * item.nodes
        if wanted and limit is not None and self.used[item.team] - given_back + wanted > limit:
            return None
        nodes = self._nodes_for(item)
        own = {gpu for gpu in available if gpu in self.earmarks}
        if wanted and len(own) == wanted and (exact := fit(item, nodes, own)):
            return exact
        return fit(item, nodes, available)

    def _nodes_for(self, item: Pending) -> Sequence[NodeState]:
        """The machines that could bring the workload back."""
        if not item.demands:
            return self.fleet.nodes
        if item.id not in self._lacks:
            lacks = {n.name: lacking(item.demands, item.gpus, n) for n in self.fleet.nodes}
            self._lacks[item.id] = lacks
        return [node for node in self.fleet.nodes if not self._lacks[item.id][node.name]]

    def _place(self, item: Pending, assignments: tuple[Assignment, ...]) -> None:
        placement = Placement(item.id, assignments)
        self.placements.append(placement)
        self.free.difference_update(placement.gpus)
        self.used[item.team] += len(placement.gpus)
        self.earmarks = {gpu: who for gpu, who in self.earmarks.items() if who != item.id}

    def _await_freed(self, item: Pending) -> bool:
        """Whether GPUs that are being freed anyway will do; they are spoken for in this pass."""
        soon = self._open_to(item, self.free | self.leaving)
        assignments = self._fit(item, soon, self.going[item.team])
        if assignments is None:
            return False
        gpus = [gpu for assignment in assignments for gpu in assignment.gpus]
        self._claim(item, gpus)
        coming = sorted(gpu for gpu in gpus if gpu in self.fleet.holders)
        holders = sorted({self.fleet.holders[gpu] for gpu in coming})
        self._wait(item, WaitReason.BEING_FREED, {"gpus": len(coming), "from": holders})
        return True

    def _claim(self, item: Pending, gpus: Iterable[str]) -> None:
        """Nobody behind it may count on these GPUs in this pass."""
        self.free.difference_update(gpus)
        self.leaving.difference_update(gpus)

    def _preempt(self, item: Pending) -> bool:
        if not could_ever_fit(item, self._nodes_for(item)):
            return False
        open_gpus = self._open_to(item, self.free | self.leaving)

        def simulate(victims: Sequence[Running]) -> tuple[Assignment, ...] | None:
            gained = {gpu for victim in victims for gpu in victim.gpus}
            given_back = sum(len(v.gpus) for v in victims if v.team == item.team)
            return self._fit(item, open_gpus | gained, given_back + self.going[item.team])

        chosen = choose_victims(candidates(item, self.running, self.now), simulate)
        if chosen is None:
            return False
        victims, assignments = chosen
        names = sorted(victim.running.id for victim in victims)
        if not self.rules.preemption:
            self._wait(item, WaitReason.PREEMPTION_PAUSED, {"would_yield": names})
            return True
        gone = {victim.running.id for victim in victims}
        self.running = [other for other in self.running if other.id not in gone]
        self.preemptions += [Preemption(v.running.id, item.id, v.reason) for v in victims]
        for victim in victims:
            self.leaving.update(victim.running.gpus)
            self.going[victim.running.team] += len(victim.running.gpus)
        gpus = [gpu for assignment in assignments for gpu in assignment.gpus]
        self._claim(item, gpus)
        self.earmarks = {**self.earmarks, **dict.fromkeys(gpus, item.id)}
        self._wait(item, WaitReason.BEING_FREED, {"gpus": len(gpus), "from": names})
        return True

    def _explain(self, item: Pending) -> None:
        wanted = item.gpus * item.nodes
        limit = self.rules.limit_of(item.team)
        used = self.used[item.team]
        mine = self._open_to(item, self.free)
        evidence: dict[str, Any] = {"needed": wanted, "free": len(mine)}
        if (lacks := never_fits(item, self.fleet.nodes)) is not None:
            reason, evidence = WaitReason.NO_NODE_FITS, {"lacks": lacks}
        elif not any(node.ready for node in self.fleet.nodes):
            reason = WaitReason.NO_READY_NODE
        elif not could_ever_fit(item, self.fleet.nodes):
            reason = WaitReason.TOO_LARGE
            evidence["largest"] = max((len(node.gpus) for node in self.fleet.nodes), default=0)
        elif limit is not None and used + wanted > limit:
            reason = WaitReason.TEAM_LIMIT
            evidence |= {"team": item.team, "limit": limit, "used": used}
        elif self._is_kept_out(item, mine):
            reason, evidence = WaitReason.FITTING_NODE, self._fitting(item)
        elif len(mine) >= wanted:
            reason = WaitReason.SCATTERED
        elif len(self.free) >= wanted:
            reason = WaitReason.PROMISED
        else:
            reason = WaitReason.NO_FREE_GPUS
        self._wait(item, reason, evidence)

    def _is_kept_out(self, item: Pending, mine: set[str]) -> bool:
        """Whether only its demands keep it from a place, or from any machine that is ready."""
        if not item.demands:
            return False
        ready = any(node.ready for node in self._nodes_for(item))
        return not ready or fit(replace(item, demands={}), self.fleet.nodes, mine) is not None

    def _fitting(self, item: Pending) -> dict[str, Any]:
        fitting = [node.name for node in self._nodes_for(item)]
        needs = {words for lack in self._lacks[item.id].values() for words in lack}
        return {"needs": sorted(needs or {gpus_wanted(item.demands)}), "machines": fitting}

    def _wait(self, item: Pending, reason: WaitReason, evidence: dict[str, Any]) -> None:
        self.waits.append(Wait(item.id, len(self.waits) + 1, reason, evidence))


def _valid_earmarks(
    fleet: FleetState, pending: Sequence[Pending], reachable: set[str]
) -> dict[str, str]:
    """Earmarks of workloads that still wait and whose whole placement is free or being freed.

    If one victim could not yield after all, the rest is let go and planned anew.
    """
    wanted = {item.id: item.gpus * item.nodes for item in pending}
    marked: dict[str, list[str]] = {}
    for gpu, owner in fleet.earmarks.items():
        marked.setdefault(owner, []).append(gpu)
    return {
        gpu: owner
        for owner, gpus in marked.items()
        if wanted.get(owner) == len(gpus) and reachable.issuperset(gpus)
        for gpu in gpus
    }
