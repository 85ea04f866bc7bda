"""The planner's columns, kept from pass to pass: before each one they are brought up to date with what
the books say has changed, which costs as much as the change and not as the fleet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from scheduler_bridge.engine.books import Books
from scheduler_bridge.engine.budgets import rules_now
from scheduler_bridge.engine.digest import Known, named
from scheduler_bridge.engine.fitting import node_state, pending
from scheduler_bridge.engine.settings import Settings
from scheduler_bridge.engine.timers import ends_by, protected_until, recent, retry_at
from scheduler_bridge.model.phases import HOLDS_LEASE, Desired, Phase
from scheduler_bridge.model.workload import Node, Workload
from scheduler_bridge.policy.columns import Columns, Group
from scheduler_bridge.policy.devices import Devices
from scheduler_bridge.policy.habits import LossBucket
from scheduler_bridge.policy.values import (
    Pending,
    Rules,
    Running,
    WaitReason,
)

_YIELDS: Final = frozenset({Phase.RUNNING})


LOOK_AGAIN_SECONDS: Final = 60.0
"""How often also those are looked at for whom nothing has ended: what would be lost changes with time."""


class Board:
    """Columns and named GPUs of one scheduler. `failed_suspends`: when a workload last failed to
    yield; the caller adds to it."""

    def __init__(
        self, books: Books, settings: Settings, failed_suspends: Mapping[str, float]
    ) -> None:
        self.books, self.settings = books, settings
        self._failed = failed_suspends
        self._nodes: tuple[Node, ...] = ()
        self.rules = Rules()
        self._lasting: tuple[object, ...] = ()
        self._next_yield = self._look_again = 0.0
        self._changes = books.follow()
        self.losses = LossBucket(settings.habits)
        self._begin()

    def _begin(self) -> None:
        self._nodes = self.books.nodes
        self.gpus = {gpu.uuid: gpu for node in self._nodes for gpu in node.gpus}
        self.columns = Columns(map(node_state, self._nodes))
        self.devices = Devices(self.columns.pools, {}, {})
        self._leases: dict[str, str] = {}  # lease -> workload
        self._leases_of: dict[str, set[str]] = {}
        self._timed: set[str] = set()
        self._known = Known()
        self._known.nodes.follow({node.name: node for node in self.columns.pools.nodes})
        self._changes.workloads.update(self.books.workloads)
        self._changes.leases.update(self.books.leases)

    def refresh(self, now: float) -> frozenset[Group]:
        """Take over what has changed, and what the `rules` are now. Gives the groups of which something
        might be placed."""
        books, rules = self.books, rules_now(self.books, self.settings)
        if self._nodes is not books.nodes and self._nodes != books.nodes:
            self._begin()
        for lease in sorted(self._changes.leases):
            self._sync_lease(lease)
        for name in sorted(self._changes.workloads | self._timed):
            self._sync(name, now)
        self._changes.workloads.clear()
        self._changes.leases.clear()
        self.devices.marks = books.earmarks
        self.columns.promise(self.devices.promised(books.earmarks))
        if _lasting(rules) != self._lasting or now >= min(self._next_yield, self._look_again):
            self.columns.stuck.clear()
            self._look_again = now + LOOK_AGAIN_SECONDS
        self._lasting, self._next_yield = _lasting(rules), self._soonest_yield(now)
        self.rules = self._with_habits(rules, now)
        return frozenset(self.columns.queue.groups.keys() - self.columns.stuck)

    def _with_habits(self, rules: Rules, now: float) -> Rules:
        """The rules, with what preemptions may cost now and what is left free for debug work."""
        work, ready = self.columns.work, self.columns.pools.ready
        rows = len(work.ids)
        gpus = work.gpus[:rows]
        capacity = int(self.columns.pools.size[ready].sum())
        return replace(
            rules,
            loss_budget=self.losses.allowance(now, capacity, int(gpus.sum())),
            headroom=self.settings.habits.free_for_debug(capacity, work.debug_gpus()),
        )

    def inputs(self, now: float) -> str:
        """The digest of all that a pass sees after `refresh`."""
        return named(self._known, self.rules, self.devices.marks, now)

    def _sync_lease(self, name: str) -> None:
        record = self.books.leases.get(name)
        if record is None and name in self._leases:
            workload = self._leases.pop(name)
            self._leases_of[workload].discard(name)
            self._count(self.devices.give_back(name), 1, None)
            self.columns.stuck.clear()
        elif record is not None and name not in self._leases:
            workload = str(record.lease.workload_id)
            self._leases[name] = workload
            self._leases_of.setdefault(workload, set()).add(name)
            gpus = tuple(gpu.uuid for gpu in record.lease.gpus)
            self._count(self.devices.hold(name, workload, gpus), -1, workload)
        else:
            return
        self._changes.workloads.add(workload)

    def _count(self, gpus: tuple[str, ...], sign: int, holder: str | None) -> None:
        for gpu in gpus:
            self._known.holders.tell(gpu, holder)
        for pool, count in self.devices.takes(gpus):
            self.columns.free[pool] += sign * count

    def _sync(self, name: str, now: float) -> None:
        workload = self.books.workloads.get(name)
        self._timed.discard(name)
        if workload is not None and workload.phase is Phase.QUEUED:
            item = self.pending(workload, now)
            if self.columns.queue.items.get(name) != item:
                self.columns.submit(item)
            if item.blocked is WaitReason.RETRY_LATER:
                self._timed.add(name)
        else:
            self.columns.withdraw(name)
        if workload is not None and workload.lease is not None:
            self._run(workload, now)
        elif name in self.columns.work.row_of:
            self.columns.work.drop(name)
        if not self._leases_of.get(name, True) and workload is None:
            del self._leases_of[name]
        self._known.pending.tell(name, self.columns.queue.items.get(name))
        row = self.columns.work.row_of.get(name)
        running = None if row is None else self.columns.work.running[row]
        self._known.running.tell(name, running)

    def _run(self, workload: Workload, now: float) -> None:
        item = self._running(workload, now)
        if item.preemptions or workload.id in self._failed:
            self._timed.add(workload.id)  # days pass, and pauses end
        work = self.columns.work
        row = work.row_of.get(workload.id)
        if row is None or work.running[row].gpus != item.gpus:
            work.put(item, self.devices.takes(item.gpus))
        elif work.running[row] != item:
            self.columns.change(item)

    def _soonest_yield(self, now: float) -> float:
        """When the next protection ends."""
        work = self.columns.work
        moments = work.yields_from[: len(work.ids)][work.gpus[: len(work.ids)] > 0]
        return float(np.min(moments, where=moments > now, initial=np.inf))

    def pending(self, workload: Workload, now: float) -> Pending:
        """The workload as it stands in the queue, and why it is not considered yet if it is not."""
        current = workload.lease.id if workload.lease else None
        blocked = None
        if any(lease != current for lease in self._leases_of.get(workload.id, ())):
            blocked = WaitReason.STILL_LEAVING
        elif retry_at(workload, self.settings) > now:
            blocked = WaitReason.RETRY_LATER
        return replace(pending(workload), blocked=blocked)

    def _running(self, workload: Workload, now: float) -> Running:
        spec, lease = workload.spec, workload.lease
        failed = self._failed.get(workload.id)
        yields_from = protected_until(workload)
        if failed is not None:
            yields_from = max(yields_from, failed + self.settings.failed_suspend_pause)
        going = workload.desired is not Desired.RUNNING or workload.phase is Phase.CANCELLING
        return Running(
            id=workload.id,
            kind=spec.kind,
            team=spec.team,
            gpus=tuple(gpu.uuid for gpu in lease.gpus) if lease else (),
            priority=int(spec.priority),
            since=lease.granted_at if lease else workload.phase_since,
            preemptible=spec.preemptible and workload.phase in _YIELDS,
            idle_since=workload.idleness.since,
            yields_from=yields_from,
            leaving=going and workload.phase in HOLDS_LEASE,
            user=spec.user,
            is_allocated=spec.min_runtime_seconds > 0,
            saved_at=workload.snapshot.created_at if workload.snapshot else None,
            ends_by=ends_by(workload),
            preemptions=len(recent(workload.preempted_at, now)),
        )


def _lasting(rules: Rules) -> tuple[object, ...]:
    """What makes a difference at once. Balances change all the time, and count when next looked at."""
    teams = {name: replace(team, balance=0.0) for name, team in rules.teams.items()}
    return (replace(rules, teams={}), teams)
