"""The scheduler itself: every operation of the plugin contract, with the caller's name.

It belongs to one event loop. `api` and `inprocess` are its only callers.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from scheduler_bridge.clusters.base import Handle, Life
from scheduler_bridge.engine import desires, holders
from scheduler_bridge.engine.admission import check
from scheduler_bridge.engine.board import Board
from scheduler_bridge.engine.books import EVENTS_BELL, Books
from scheduler_bridge.engine.budgets import refuse_unknown, rules_now
from scheduler_bridge.engine.cycle import forecast, run_cycle, why_it_waits
from scheduler_bridge.engine.estimates import Estimates
from scheduler_bridge.engine.explain import explain
from scheduler_bridge.engine.holders import Standing
from scheduler_bridge.engine.ledger import Ledger
from scheduler_bridge.engine.losses import keep_late_snapshot
from scheduler_bridge.engine.moves import Told, move_by_holder
from scheduler_bridge.engine.outlooks import Outlooks
from scheduler_bridge.engine.presence import Presence
from scheduler_bridge.engine.renewals import Renewals, renew_all
from scheduler_bridge.engine.settings import Settings
from scheduler_bridge.engine.timers import Timers
from scheduler_bridge.errors import Conflict, Refused
from scheduler_bridge.model.outlook import Estimate
from scheduler_bridge.model.phases import HOLDS_LEASE, TERMINAL, Desired, Kind, Phase
from scheduler_bridge.model.workload import (
    Event,
    Explanation,
    FleetView,
    Grant,
    Idleness,
    Instruction,
    Pause,
    Report,
    SnapshotRef,
    Workload,
    WorkloadId,
    WorkloadSpec,
)
from scheduler_bridge.store.base import LeaseRecord

PAUSE_SCOPES: Final = ("reclaim", "preempt", "all")
MAX_PAUSE_SECONDS: Final = 30 * 86400.0
_LISTED_AT_MOST = 1000
_EVENTS_AT_ONCE = 500


class Scheduler:
    """See `plugin.SchedulerPlugin` for what each operation promises.

    `wake` is called after every change that the planner may react to. By default it plans at once;
    a `Runner` plans a moment later instead, so that a burst of changes costs one pass. `life_of` looks
    at the processes of a holder, where somebody can.
    """

    def __init__(self, books: Books, settings: Settings | None = None) -> None:
        self.books = books
        self.settings = settings or Settings()
        self.wake: Callable[[], object] = self.settle
        self.unfinished = False
        self.life_of: Callable[[Handle], Life] = lambda _handle: Life.UNKNOWN
        self.waiters: Counter[tuple[str, str]] = Counter()
        self._withdrawn: set[str] = set()
        self._failed_suspends: dict[str, float] = {}
        self.ledger = Ledger(
            books, self.settings.usage_window, stored_every=self.settings.usage_stored_every
        )
        self._timers = Timers(books, self.settings)
        self._board = Board(books, self.settings, self._failed_suspends)
        renew_all(books, self.settings)
        self.presence = Presence(books, self.settings, lambda: self.wake())
        self._renewals = Renewals(books, self.settings, self.presence)
        self.estimates = Estimates(books)
        self.outlooks = Outlooks(self._board, self.estimates, lambda it: self._admit(it, "what-if"))

    # -- time --------------------------------------------------------------------------------

    def tick(self) -> None:
        """Do what time demands, then plan. If `unfinished` afterwards, not everybody who waits was
        looked at, and another one is due soon."""
        self.presence.look()
        self._timers.enforce()
        self.unfinished = run_cycle(self._board).unfinished
        self.ledger.keep()

    def settle(self) -> None:
        """Tick until everybody who waits was looked at."""
        self.tick()
        while self.unfinished:
            self.tick()

    def next_due(self) -> float | None:
        """UNIX seconds at which `tick` is needed without any event."""
        return self._timers.next_due()

    # -- what callers ask for ----------------------------------------------------------------

    def submit(self, spec: WorkloadSpec, *, key: str, actor: str) -> Workload:
        """Queue a workload, or return the live one of this key."""
        known = self.find(key)
        if known is not None:
            return self._for_team(known, spec.team, actor)
        self._admit(spec, key)
        with self.books.draft() as draft:
            workload = Workload(
                id=WorkloadId(self.books.ids("s" if spec.kind is Kind.SESSION else "j")),
                key=key,
                spec=spec,
                phase=Phase.QUEUED,
                phase_since=draft.now,
                created_at=draft.now,
                version=0,
            )
            draft.put(workload)
            draft.note(
                "submitted",
                workload,
                cause="submitted",
                actor=actor,
                target=Phase.QUEUED.value,
                # whoever replays the past needs no other table
                evidence={
                    "gpus": spec.gpus,
                    "nodes": spec.nodes,
                    "team": spec.team,
                    "min_runtime_seconds": spec.min_runtime_seconds,
                    "priority": spec.priority.name.lower(),
                },
            )
        self.wake()
        return self.get(workload.id)

    def _for_team(self, workload: Workload, team: str, actor: str) -> Workload:
        """A suspended session uses nobody's share, and may come back with another team's."""
        if workload.phase is not Phase.SUSPENDED or workload.spec.team == team:
            return workload
        spec = replace(workload.spec, team=team)
        self._admit(spec, workload.key)
        with self.books.draft() as draft:
            draft.put(replace(workload, spec=spec))
            draft.note(
                "team",
                workload,
                cause="asked for again, with the share of another team",
                actor=actor,
                source=workload.spec.team,
                target=team,
            )
        return self.get(workload.id)

    def _admit(self, spec: WorkloadSpec, key: str) -> None:
        refuse_unknown(self.books, self.settings, spec.team)
        check(spec, key, self.books.fleet, rules_now(self.books, self.settings))

    def get(self, workload_id: str) -> Workload:
        """The workload now."""
        return self.books.get(workload_id)

    def find(self, key: str) -> Workload | None:
        """The live workload of this key."""
        known = self.books.keys.get(key)
        return None if known is None else self.books.workloads[known]

    def list(
        self, *, kind: Kind | None = None, user: str | None = None, live: bool = True
    ) -> tuple[Workload, ...]:
        """Workloads by submission order; with `live=False` the latest ended ones as well."""
        if live:
            found = tuple(self.books.workloads.values())
        else:
            stored = self.books.store.workloads(
                kind=kind.value if kind else None, user=user, limit=_LISTED_AT_MOST
            )
            found = tuple(self.books.workloads.get(w.id, w) for w in stored)
        return tuple(
            w
            for w in found
            if (kind is None or w.spec.kind is kind) and (user is None or w.spec.user == user)
        )

    async def wait(
        self, workload_id: str, *, version: int, timeout: float, waiter: str
    ) -> Workload:
        """The workload as soon as its version is another one. `waiter` counts as waiting meanwhile."""
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout
        self.waiters[workload_id, waiter] += 1
        try:
            while True:
                workload = self.get(workload_id)
                if workload.version != version or workload.phase in TERMINAL:
                    return workload
                if not await self.books.bells.wait(workload_id, end - loop.time()):
                    return self.get(workload_id)
        finally:
            self.waiters[workload_id, waiter] -= 1
            if self.waiters[workload_id, waiter] <= 0:
                del self.waiters[workload_id, waiter]

    def desire(self, workload_id: str, desired: Desired, *, actor: str, reason: str) -> Workload:
        """Say what should become of it."""
        with self.books.draft() as draft:
            before = draft.workload(workload_id)
            desires.desire(draft, before, desired, actor=actor, reason=reason)
        if before.lease and before.phase in HOLDS_LEASE:
            withdraws = desired is Desired.RUNNING and before.desired is Desired.SUSPENDED
            (self._withdrawn.add if withdraws else self._withdrawn.discard)(before.lease.id)
        self.wake()
        return self.get(workload_id)

    def take(self, workload_id: str, *, actor: str) -> Grant:
        """Take up the lease; an earlier holder is fenced off."""
        with self.books.draft() as draft:
            workload = draft.workload(workload_id)
            record = self.books.current_lease(workload)
            if record is None:
                raise Conflict(
                    f"{workload_id} holds no lease; it is {workload.phase.value}.",
                    remedy="Wait until it is placed.",
                )
            lease = replace(record.lease, expires_at=draft.now + self.settings.lease_seconds)
            record, credential = holders.renew_credential(replace(record, lease=lease), draft.now)
            draft.put_lease(record)
            workload = draft.put(replace(workload, lease=lease))
            draft.note(
                "lease_taken",
                workload,
                cause="taken up",
                actor=actor,
                evidence={"lease": lease.id, "epoch": lease.epoch},
            )
        return Grant(lease, credential)

    # -- what lease holders say --------------------------------------------------------------

    async def heartbeat(
        self, lease_id: str, credential: str, report: Report, *, wait: float
    ) -> Instruction:
        """Renew, and learn what is desired."""
        return await self._renewals.beat(lease_id, credential, report, wait=wait)

    def move(
        self,
        lease_id: str,
        credential: str,
        target: Phase,
        *,
        cause: str,
        evidence: Mapping[str, Any] | None = None,
        snapshot: SnapshotRef | None = None,
        exit_code: int | None = None,
    ) -> Workload:
        """Take over what a holder reports of its own sandbox."""
        record, standing = holders.identify(self.books, lease_id, credential)
        self.presence.hear(record, standing)
        workload = self.get(record.lease.workload_id)
        if standing is Standing.RELEASED and record.ended_as == target.value:
            return workload
        if standing is not Standing.FENCED and record.forced and target is Phase.SUSPENDED:
            keep_late_snapshot(self.books, record, snapshot)
        if standing is Standing.LEFT_BEHIND and target not in HOLDS_LEASE:
            return self._end_left_behind(record, target, cause)
        if standing is not Standing.CURRENT:
            raise Conflict(
                f"Lease {lease_id} (epoch {record.lease.epoch}) is no longer this holder's.",
                remedy="End the sandbox.",
            )
        if workload.phase is target:
            return workload
        with self.books.draft() as draft:
            told = Told(target, cause, evidence or {}, snapshot, exit_code)
            withdrawn = lease_id in self._withdrawn
            move_by_holder(draft, record, workload, told, withdrawn=withdrawn)
        self._remember(lease_id, before=workload, target=target)
        self.wake()
        return self.get(workload.id)

    def _end_left_behind(self, record: LeaseRecord, target: Phase, cause: str) -> Workload:
        with self.books.draft() as draft:
            draft.release(record, ended_as=target, cause=cause, actor="supervisor")
        self.wake()
        return self.get(record.lease.workload_id)

    def _remember(self, lease_id: str, *, before: Workload, target: Phase) -> None:
        if before.phase is Phase.SUSPENDING and target is Phase.RUNNING:
            self._failed_suspends[before.id] = self.books.clock.now()
        if target not in HOLDS_LEASE:
            self._failed_suspends.pop(before.id, None)
            self._withdrawn.discard(lease_id)
            self._renewals.forget(lease_id)

    # -- the rest ----------------------------------------------------------------------------

    def set_idleness(self, workload_id: str, idleness: Idleness, *, actor: str) -> None:
        """Record the reclaimer's view, if it changed."""
        with self.books.draft() as draft:
            workload = draft.workload(workload_id)
            if workload.phase in TERMINAL or workload.idleness == idleness:
                return
            was_idle = workload.idleness.since is not None
            workload = draft.put(replace(workload, idleness=idleness))
            if was_idle != (idleness.since is not None):
                draft.note(
                    "busy" if was_idle else "idle",
                    workload,
                    cause=idleness.reason,
                    actor=actor,
                    evidence={"since": idleness.since, "suspend_at": idleness.suspend_at},
                )
        self.wake()

    async def events(self, *, after: int) -> AsyncIterator[Event]:
        """Events without end; ends only when the scheduler closes."""
        while not self.books.bells.closed:
            batch = self.books.store.events(after=after, limit=_EVENTS_AT_ONCE)
            for event in batch:
                after = event.id
                yield event
            if not batch:
                await self.books.bells.wait(EVENTS_BELL, self.settings.max_wait)

    def history(self, workload_id: str) -> tuple[Event, ...]:
        """The events of one workload. Raises `NotFound`."""
        self.get(workload_id)
        return self.books.store.history(workload_id)

    def fleet(self) -> FleetView:
        """What exists and what is taken."""
        queued = sum(w.phase is Phase.QUEUED for w in self.books.workloads.values())
        books = self.books
        return FleetView(books.nodes, books.holders(), queued, books.active_pauses())

    def why(self, workload_id: str, teams: Iterable[str] = ()) -> Explanation:
        """Why it waits, runs, or ended. `teams` are those of its owner, as far as the asker knows."""
        workload = self.get(workload_id)
        resume = None
        if workload.phase is Phase.SUSPENDED:
            resume = forecast(self._board, workload)
        wait = why_it_waits(self._board, workload) if workload.phase is Phase.QUEUED else None
        found = explain(self.books, workload, wait, resume)
        if wait is None:
            return found
        changes, estimate = self.outlooks.tell(workload, wait, teams)
        self.estimates.keep()
        return replace(found, changes=changes, estimate=estimate)

    def estimate(self, workload: Workload) -> Estimate | None:
        """When a queued workload starts; None before the planner has come to it."""
        wait = why_it_waits(self._board, workload)
        return None if wait is None else self.outlooks.estimate(workload, wait)

    def learn(self, node: str, facts: Mapping[str, str]) -> None:
        """Take over what a machine is now."""
        nodes = tuple(
            replace(known, facts=dict(facts)) if known.name == node else known
            for known in self.books.inventory
        )
        if nodes != self.books.inventory:
            self.books.set_inventory(nodes)
            self.wake()

    def hear(self, nodes: Iterable[str]) -> None:
        """These machines tell that they are there."""
        self.presence.report(nodes)

    def pause(self, scope: str, *, seconds: float, reason: str, actor: str) -> Pause:
        """Set or end a pause."""
        _check_pause(scope, seconds, reason)
        with self.books.draft() as draft:
            now = draft.now
            pause = Pause(scope, now + seconds, reason, actor, now)
            others = tuple(p for p in self.books.active_pauses() if p.scope != scope)
            draft.set_pauses((*others, pause) if seconds else others)
            draft.note(
                "paused" if seconds else "resumed",
                None,
                cause=reason,
                actor=actor,
                target=scope,
                evidence={"until": pause.until},
            )
        self.wake()
        return pause

    def close(self) -> None:
        """Wake everybody who waits and release the store. May be called twice."""
        self.books.bells.close()
        self.ledger.close()
        self.books.store.close()


def _check_pause(scope: str, seconds: float, reason: str) -> None:
    if scope not in PAUSE_SCOPES:
        raise Refused(
            f"scope: {scope!r} cannot be paused.", remedy=f"Use {', '.join(PAUSE_SCOPES)}."
        )
    if not 0 <= seconds <= MAX_PAUSE_SECONDS:
        raise Refused(
            f"seconds: must be between 0 and {MAX_PAUSE_SECONDS:g}; it is {seconds}.",
            remedy="Set the pause again when it runs out.",
        )
    if seconds and not reason.strip():
        raise Refused("reason: a pause needs one.", remedy="Say why; everybody sees it.")
