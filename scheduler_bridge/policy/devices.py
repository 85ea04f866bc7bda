"""From counted GPUs to named ones: which of a pool's GPUs a workload gets, in the driver's order, and
what snapshots that want the very same GPUs can have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from scheduler_bridge.policy.columns import Columns, Pools, Takes
from scheduler_bridge.policy.demands import choose
from scheduler_bridge.policy.values import Assignment, FleetState, Pending, Placement, Running


@dataclass(slots=True)
class Devices:
    """The GPUs of a fleet by uuid, beside the columns that count them. `holders` maps a held GPU to
    whoever holds it, `marks` one to whom it is promised; `fixed` are GPUs chosen one by one."""

    pools: Pools
    holders: dict[str, str]
    marks: Mapping[str, str]
    pool_of: dict[str, int] = field(default_factory=dict)
    fixed: dict[str, tuple[str, ...]] = field(default_factory=dict)
    _held: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for pool, gpus in enumerate(self.pools.devices):
            self.pool_of.update(dict.fromkeys(gpus, pool))

    def hold(self, lease: str, holder: str, gpus: tuple[str, ...]) -> tuple[str, ...]:
        """They are held from now on. Gives those that were free."""
        free = tuple(gpu for gpu in gpus if gpu not in self.holders)
        self.holders.update(dict.fromkeys(free, holder))
        self._held[lease] = free
        return free

    def give_back(self, lease: str) -> tuple[str, ...]:
        """What the lease held is free. Gives that."""
        gpus = self._held.pop(lease, ())
        for gpu in gpus:
            self.holders.pop(gpu, None)
        return gpus

    def takes(self, gpus: Iterable[str]) -> Takes:
        """The same, counted. GPUs that are not in the fleet are left out."""
        counts: dict[int, int] = {}
        for gpu in gpus:
            if gpu in self.pool_of:
                counts[self.pool_of[gpu]] = counts.get(self.pool_of[gpu], 0) + 1
        return tuple(sorted(counts.items()))

    def promised(self, marks: Mapping[str, str]) -> dict[str, Takes]:
        """Earmarks, counted. Those with a GPU that is not in the fleet are left out."""
        marked: dict[str, list[str]] = {}
        for gpu, owner in marks.items():
            marked.setdefault(owner, []).append(gpu)
        return {
            owner: self.takes(gpus)
            for owner, gpus in marked.items()
            if all(gpu in self.pool_of for gpu in gpus)
        }

    def pick(
        self, item: Pending, within: Sequence[bool], counts: Mapping[int, int], usable: set[str]
    ) -> Takes | None:
        """The very GPUs that a snapshot demands, out of `usable` ones of which at most `counts` of
        each pool may be taken; the first machine that has them."""
        names = {self.pools.node_of[p] for p in range(len(self.pools)) if within[p]}
        for node in self.pools.nodes:
            if node.name not in names or not node.ready:
                continue
            gpus = choose(item.demands, item.gpus, node, usable)
            takes = None if gpus is None else self.takes(gpus)
            if gpus and takes and all(counts.get(pool, 0) >= n for pool, n in takes):
                self.fixed[item.id] = gpus
                return takes
        return None

    def placements(self, placed: Sequence[tuple[str, Takes]]) -> tuple[Placement, ...]:
        """Named GPUs for all of these, none twice; what is earmarked for one goes to it."""
        taken = {gpu for name, _ in placed for gpu in self.fixed.get(name, ())}
        found = []
        for name, takes in placed:
            gpus = self.fixed.get(name) or self._named(name, takes, taken, frozenset())
            taken.update(gpus)
            found.append(Placement(name, self._by_node(takes, gpus)))
        return tuple(found)

    def earmarks(
        self,
        promised: Mapping[str, Takes],
        placed: Iterable[Placement],
        leaving: Iterable[str],
    ) -> dict[str, str]:
        """Named GPUs for those that wait for what is being freed: free ones before `leaving` ones."""
        taken = {gpu for placement in placed for gpu in placement.gpus}
        taken |= {gpu for name in promised for gpu in self.fixed.get(name, ())}
        soon = frozenset(leaving)
        marks: dict[str, str] = {}
        for name, takes in promised.items():
            gpus = self.fixed.get(name) or self._named(name, takes, taken, soon)
            taken.update(gpus)
            marks.update(dict.fromkeys(gpus, name))
        return dict(sorted(marks.items()))

    def _named(
        self, name: str, takes: Takes, taken: set[str], soon: frozenset[str]
    ) -> tuple[str, ...]:
        marks = self.marks
        chosen: list[str] = []
        for pool, count in takes:
            every = self.pools.devices[pool]
            open_ = [
                gpu
                for gpu in every
                if gpu not in taken and (gpu not in self.holders or gpu in soon)
            ]
            open_.sort(key=lambda gpu: (marks.get(gpu) != name, gpu in marks, gpu in soon))
            nearest = set(open_[:count])
            chosen += [gpu for gpu in every if gpu in nearest]
        return tuple(chosen)

    def _by_node(self, takes: Takes, gpus: Sequence[str]) -> tuple[Assignment, ...]:
        nodes: dict[str, list[str]] = {}
        for pool, _ in takes:
            nodes.setdefault(self.pools.node_of[pool], [])
        for gpu in gpus:
            nodes[self.pools.node_of[self.pool_of[gpu]]].append(gpu)
        return tuple(Assignment(node, tuple(mine)) for node, mine in nodes.items())


def load(
    fleet: FleetState, pending: Iterable[Pending], running: Iterable[Running]
) -> tuple[Columns, Devices]:
    """Columns of a fleet whose GPUs are named. Whoever holds GPUs without running keeps them."""
    columns = Columns(fleet.nodes)
    devices = Devices(columns.pools, dict(fleet.holders), fleet.earmarks)
    for item in sorted(running, key=lambda it: it.id):
        columns.work.put(item, devices.takes(item.gpus))
    for pool, count in devices.takes(fleet.holders):
        columns.free[pool] -= count
    for waiting in pending:
        columns.submit(waiting)
    columns.promise(devices.promised(fleet.earmarks))
    return columns, devices
