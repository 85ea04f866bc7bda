"""The scheduler in the caller's own process: the same engine, an in-memory store, no HTTP.

For tests and simulations. Jobs are placed but launched by nobody: take up their lease yourself.
"""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterator, Collection, Sequence
from pathlib import Path

from scheduler_bridge.agent.inventory import virtual_gpus
from scheduler_bridge.clusters.output import read_output
from scheduler_bridge.engine import teams
from scheduler_bridge.engine.books import Books
from scheduler_bridge.engine.budgets import usable_teams
from scheduler_bridge.engine.expiry import announce, expire
from scheduler_bridge.engine.fleet_view import node_statuses
from scheduler_bridge.engine.forks import fork
from scheduler_bridge.engine.giving_up import (
    declare_dead,
    force_stop,
    losses_of_node,
    losses_of_session,
    revive,
)
from scheduler_bridge.engine.queue_view import queue_view
from scheduler_bridge.engine.scheduler import Scheduler
from scheduler_bridge.engine.settings import Clock, ManualClock, Settings, SystemClock
from scheduler_bridge.engine.usage import report
from scheduler_bridge.model.nodes import Losses, NodeRecord, NodeStatus
from scheduler_bridge.model.outlook import Variant
from scheduler_bridge.model.phases import Desired, Kind, Phase
from scheduler_bridge.model.queue import QueueView
from scheduler_bridge.model.teams import ChangeSet, Proposal, TeamsView
from scheduler_bridge.model.usage import UsageQuestion, UsageReport
from scheduler_bridge.model.what_if import Outlook
from scheduler_bridge.model.workload import (
    Event,
    Expiry,
    Explanation,
    FleetView,
    Fork,
    Grant,
    Idleness,
    Instruction,
    Node,
    Output,
    Pause,
    Report,
    SnapshotRef,
    Workload,
    WorkloadSpec,
)
from scheduler_bridge.policy.visibility import Viewer
from scheduler_bridge.store.opening import open_memory

_ACTOR = "in-process"


class InProcessScheduler:
    """Implements `plugin.SchedulerPlugin`. Plans at once after every change.

    With a `ManualClock`, `advance` moves time and does what time demands; with the system's clock,
    call `advance(0)` for that. `url` and `token` mean nothing here: they let it be made from a trait
    in the same way as the client.
    """

    def __init__(
        self,
        url: str = "",
        *,
        token: str = "",
        gpus: int = 4,
        nodes: tuple[Node, ...] | None = None,
        device_folder: Path = Path("/dev"),
        settings: Settings | None = None,
        clock: Clock | None = None,
    ) -> None:
        if nodes is None:
            nodes = (
                Node("local", virtual_gpus(gpus, device_folder, node="local", mark="in-process")),
            )
        self.clock = clock or SystemClock()
        self.engine = Scheduler(Books(open_memory(), self.clock, nodes), settings)

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        if isinstance(self.clock, ManualClock):
            self.clock.advance(seconds)
        self.engine.settle()

    async def submit(self, spec: WorkloadSpec, *, key: str) -> Workload:
        return self.engine.submit(spec, key=key, actor=_ACTOR)

    async def fork(
        self,
        workload_id: str,
        *,
        new: Fork,
        snapshot: SnapshotRef,
        source_snapshot: str,
        actor: str,
    ) -> Workload:
        return fork(
            self.engine,
            workload_id,
            new=new,
            snapshot=snapshot,
            source_snapshot=source_snapshot,
            actor=actor,
        )

    async def get(self, workload_id: str) -> Workload:
        return self.engine.get(workload_id)

    async def find(self, key: str) -> Workload | None:
        return self.engine.find(key)

    async def list(
        self, *, kind: Kind | None = None, user: str | None = None, live: bool = True
    ) -> builtins.tuple[Workload, ...]:
        return self.engine.list(kind=kind, user=user, live=live)

    async def wait(self, workload_id: str, *, version: int, timeout: float) -> Workload:
        return await self.engine.wait(workload_id, version=version, timeout=timeout, waiter=_ACTOR)

    async def desire(
        self, workload_id: str, desired: Desired, *, actor: str, reason: str
    ) -> Workload:
        return self.engine.desire(workload_id, desired, actor=actor, reason=reason)

    async def take(self, workload_id: str) -> Grant:
        return self.engine.take(workload_id, actor=_ACTOR)

    async def heartbeat(
        self, lease_id: str, credential: str, report: Report, *, wait: float = 0.0
    ) -> Instruction:
        return await self.engine.heartbeat(lease_id, credential, report, wait=wait)

    async def move(
        self,
        lease_id: str,
        credential: str,
        target: Phase,
        *,
        cause: str,
        evidence: dict[str, object] | None = None,
        snapshot: SnapshotRef | None = None,
        exit_code: int | None = None,
    ) -> Workload:
        return self.engine.move(
            lease_id,
            credential,
            target,
            cause=cause,
            evidence=evidence,
            snapshot=snapshot,
            exit_code=exit_code,
        )

    async def set_idleness(self, workload_id: str, idleness: Idleness) -> None:
        self.engine.set_idleness(workload_id, idleness, actor=_ACTOR)

    async def announce_expiry(self, workload_id: str, expiry: Expiry | None) -> None:
        announce(self.engine, workload_id, expiry, actor=_ACTOR)

    async def expire(self, workload_id: str, *, snapshot: str) -> Workload:
        return expire(self.engine, workload_id, snapshot=snapshot, actor=_ACTOR)

    def events(self, *, after: int = 0) -> AsyncIterator[Event]:
        return self.engine.events(after=after)

    async def history(self, workload_id: str) -> builtins.tuple[Event, ...]:
        return self.engine.history(workload_id)

    async def output(self, workload_id: str, *, position: int = 0, serial: int = 0) -> Output:
        return read_output(self.engine.get(workload_id), position=position, serial=serial)

    async def fleet(self) -> FleetView:
        return self.engine.fleet()

    async def what_if(
        self, spec: WorkloadSpec, variants: Sequence[Variant] = ()
    ) -> builtins.tuple[Outlook, ...]:
        return self.engine.outlooks.what_if(spec, variants, ())

    async def queue(self) -> QueueView:
        return queue_view(self.engine, Viewer("", sees_all=True))

    async def nodes(self) -> builtins.tuple[NodeStatus, ...]:
        return node_statuses(self.engine)

    async def losses_of_node(self, name: str) -> Losses:
        return losses_of_node(self.engine, name)

    async def declare_dead(
        self,
        name: str,
        *,
        reason: str,
        actor: str,
        at_once: bool = False,
        given_up: builtins.tuple[str, ...] | None = None,
    ) -> NodeRecord:
        return declare_dead(
            self.engine, name, reason=reason, actor=actor, at_once=at_once, given_up=given_up
        )

    async def revive(self, name: str, *, reason: str, actor: str) -> NodeRecord:
        return revive(self.engine, name, reason=reason, actor=actor)

    async def losses_of_session(self, workload_id: str) -> Losses:
        return losses_of_session(self.engine, workload_id)

    async def force_stop(
        self,
        workload_id: str,
        *,
        reason: str,
        actor: str,
        given_up: builtins.tuple[str, ...] | None = None,
    ) -> Workload:
        return force_stop(self.engine, workload_id, reason=reason, actor=actor, given_up=given_up)

    async def why(self, workload_id: str) -> Explanation:
        return self.engine.why(workload_id)

    async def pause(self, scope: str, *, seconds: float, reason: str, actor: str) -> Pause:
        return self.engine.pause(scope, seconds=seconds, reason=reason, actor=actor)

    async def teams(self) -> TeamsView:
        return teams.view(self.engine.books, self.engine.settings.rules)

    async def usable_teams(self, user: str, groups: Collection[str]) -> builtins.tuple[str, ...]:
        return usable_teams(self.engine.books, self.engine.settings, user, groups)

    async def team_changes(self) -> builtins.tuple[ChangeSet, ...]:
        return self.engine.books.change_sets

    async def change_teams(self, proposal: Proposal, *, actor: str) -> ChangeSet:
        return teams.change(self.engine, proposal, author=actor)

    async def undo_teams(self, change_id: str, *, reason: str, actor: str) -> ChangeSet:
        return teams.undo(self.engine, change_id, author=actor, reason=reason)

    async def usage(self, question: UsageQuestion) -> UsageReport:
        return report(self.engine, question)

    async def aclose(self) -> None:
        self.engine.close()
