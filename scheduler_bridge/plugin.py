"""The contract between the scheduler and everything else.

Entry-point group `hubernate.schedulers`; `http` (our client over HTTP) is the default, `in-process`
serves tests. One contract suite runs on every implementation. All methods raise the exceptions of
`scheduler_bridge.errors` and nothing else; `Unavailable` means that nothing is known.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from typing import Protocol

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
    Output,
    Pause,
    Report,
    SnapshotRef,
    Workload,
    WorkloadSpec,
)


class SchedulerPlugin(Protocol):
    """A scheduler as sessions, jobs, the reclaimer and people see it."""

    async def submit(self, spec: WorkloadSpec, *, key: str) -> Workload:
        """Put a workload into the queue. Idempotent: a live workload of the same key is returned
        as it is, but for a suspended session's team, which becomes the one that is asked for.
        Raises `Refused` at once for what can never fit, naming limit and remedy."""
        ...

    async def fork(
        self,
        workload_id: str,
        *,
        new: Fork,
        snapshot: SnapshotRef,
        source_snapshot: str,
        actor: str,
    ) -> Workload:
        """Another session out of a suspended one: suspended as `snapshot`, which is a copy of
        `source_snapshot`, with the same owner, team and size, and wanted by nobody yet. Idempotent
        for the same id. Raises `Conflict`, having changed nothing, when the first session is not
        suspended as that snapshot (any more), or the key or id is taken."""
        ...

    async def get(self, workload_id: str) -> Workload:
        """The workload now. Raises `NotFound`."""
        ...

    async def find(self, key: str) -> Workload | None:
        """The live (not terminal) workload with this key, if there is one."""
        ...

    async def list(
        self, *, kind: Kind | None = None, user: str | None = None, live: bool = True
    ) -> tuple[Workload, ...]:
        """Workloads by submission order; `live=False` adds terminal ones."""
        ...

    async def wait(self, workload_id: str, *, version: int, timeout: float) -> Workload:
        """The workload as soon as its version exceeds `version`, or after `timeout` seconds."""
        ...

    async def desire(
        self, workload_id: str, desired: Desired, *, actor: str, reason: str
    ) -> Workload:
        """Say what should become of it. RUNNING on a suspended session queues it for resume, and
        on a running one withdraws a suspend that has not begun; SUSPENDED on a queued resume puts
        it back; STOPPED cancels a job, ends a session, and discards a suspended one."""
        ...

    async def take(self, workload_id: str) -> Grant:
        """Take up the lease of a placed workload (phase starting or resuming). Renews the
        credential: an earlier holder of the same lease is fenced off. Raises `Conflict` when it
        holds no lease."""
        ...

    async def heartbeat(
        self, lease_id: str, credential: str, report: Report, *, wait: float = 0.0
    ) -> Instruction:
        """Renew the lease and learn what is desired. With `wait`, answers as soon as the desired
        state differs from the reported phase, or after that many seconds."""
        ...

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
        """Report a phase change. Idempotent for the phase it is already in. SUSPENDED needs
        `snapshot` unless it undoes a resume. A move to a phase outside `HOLDS_LEASE` releases the
        lease: report it only after the sandbox was proven empty. Raises `Conflict` for an illegal
        move or a stale epoch."""
        ...

    async def set_idleness(self, workload_id: str, idleness: Idleness) -> None:
        """Record the reclaimer's view of a session. Writes only when it changed."""
        ...

    async def announce_expiry(self, workload_id: str, expiry: Expiry | None) -> None:
        """Show the owner of a suspended session when its memory is deleted (None: it is kept after
        all). Events tell of the first date, of each other one and of warnings. Raises `Refused` for
        a date that could not be seen for `EXPIRY_NOTICE_SECONDS`, `Conflict` when it is not
        suspended as that snapshot."""
        ...

    async def expire(self, workload_id: str, *, snapshot: str) -> Workload:
        """End a suspended session whose announced date has come; its snapshot may then be deleted.
        Raises `Conflict`, having changed nothing, when it has not, or the session was resumed."""
        ...

    def events(self, *, after: int = 0) -> AsyncIterator[Event]:
        """All events with an id above `after`, then new ones as they come, without end."""
        ...

    async def history(self, workload_id: str) -> tuple[Event, ...]:
        """The events of one workload, oldest first."""
        ...

    async def output(self, workload_id: str, *, position: int = 0, serial: int = 0) -> Output:
        """The next piece of what a job has written, on the machine where it runs or ran; empty
        when there is nothing more. Raises `Refused` where the file was exchanged for something
        else."""
        ...

    async def fleet(self) -> FleetView:
        """Nodes, GPUs and who holds them."""
        ...

    async def queue(self) -> QueueView:
        """What waits, next first; of others' work what `queue_visibility` allows."""
        ...

    async def nodes(self) -> tuple[NodeStatus, ...]:
        """Machines: whether they answer, who holds what on them, until when leases are kept."""
        ...

    async def losses_of_node(self, name: str) -> Losses:
        """What is given up if the machine is declared dead now. Raises `NotFound`."""
        ...

    async def declare_dead(
        self,
        name: str,
        *,
        reason: str,
        actor: str,
        at_once: bool = False,
        given_up: tuple[str, ...] | None = None,
    ) -> NodeRecord:
        """Release every lease on a machine, queue its jobs again, offer its sessions from their last
        snapshots; no new work until `revive`. Refused (`Conflict`) while something on it may still
        run, unless `at_once`, with every workload in `given_up`. Idempotent."""
        ...

    async def revive(self, name: str, *, reason: str, actor: str) -> NodeRecord:
        """A machine that was declared dead may get work again. Raises `Conflict` while something that
        was given up with it still runs there. Idempotent."""
        ...

    async def losses_of_session(self, workload_id: str) -> Losses:
        """What is given up if the session is stopped by force now."""
        ...

    async def force_stop(
        self,
        workload_id: str,
        *,
        reason: str,
        actor: str,
        given_up: tuple[str, ...] | None = None,
    ) -> Workload:
        """Give a session up whose supervisor does not answer (`Conflict` if it does): it falls back
        to its last snapshot, and its GPUs wait for proof that it is gone, or has halted itself."""
        ...

    async def why(self, workload_id: str) -> Explanation:
        """Why it waits, runs, or ended; of what waits also the smallest changes that would start it now,
        and when it starts."""
        ...

    async def what_if(
        self, spec: WorkloadSpec, variants: Sequence[Variant] = ()
    ) -> tuple[Outlook, ...]:
        """What would come of the spec if it were submitted now, then of each variant; without variants,
        of the spec with no protection, 15 minutes and 8 hours of it. Changes nothing. What would be
        refused says so in its outlook. Raises `NotAllowed` for somebody else's work, or a team of which
        its user is not."""
        ...

    async def pause(self, scope: str, *, seconds: float, reason: str, actor: str) -> Pause:
        """Stop reclaiming, preempting, or all. `seconds` 0 ends the pause. Audited."""
        ...

    async def teams(self) -> TeamsView:
        """The tree of teams; users see those that they may use and the ones above them."""
        ...

    async def usable_teams(self, user: str, groups: Collection[str]) -> tuple[str, ...]:
        """The teams whose share a user in these Hub groups may use, at least one."""
        ...

    async def team_changes(self) -> tuple[ChangeSet, ...]:
        """All change sets of the teams, oldest first."""
        ...

    async def change_teams(self, proposal: Proposal, *, actor: str) -> ChangeSet:
        """Change teams, all that is proposed or nothing. Raises `Refused` with every mistake, and
        `Conflict` where others have changed teams since what the proposal is based on."""
        ...

    async def undo_teams(self, change_id: str, *, reason: str, actor: str) -> ChangeSet:
        """Take a change set back by another one. Raises `NotFound`, and `Refused` where later ones
        depend on what would go."""
        ...

    async def usage(self, question: UsageQuestion) -> UsageReport:
        """GPU time by team, project, user or tag, with the teams' balances; users see their teams and
        what they used themselves. Raises `Refused` for times that make no sense."""
        ...

    async def aclose(self) -> None:
        """Release connections. May be called twice."""
        ...
