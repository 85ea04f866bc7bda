"""Starts what was placed and looks after what may have died. Works from the books alone, so that it
goes on after a restart where it left off."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

from scheduler_bridge.clusters.base import ClusterManager, LastWords, LaunchFailed, Life
from scheduler_bridge.engine.holders import speaks_for, with_handle
from scheduler_bridge.engine.losses import stage_gone
from scheduler_bridge.engine.moves import Told, move_by_holder
from scheduler_bridge.engine.scheduler import Scheduler
from scheduler_bridge.errors import SchedulerError
from scheduler_bridge.model.phases import TERMINAL, Kind, Phase
from scheduler_bridge.model.workload import Event, Workload
from scheduler_bridge.store.base import LeaseRecord

_log = logging.getLogger(__name__)
_ACTOR: Final = "scheduler"

FORCE_AFTER_SECONDS: Final = 30.0
"""A sandbox whose lease was left behind may end by itself that long."""

STORE_WITHIN_SECONDS: Final = 300.0
"""So long may what went with a machine that was declared dead, and lives, store its memory."""

CONCLUDE_AFTER_SECONDS: Final = 20.0
"""A session that dies in the middle of a suspend may have been stored: its spawner gets that long
to find out, before the older snapshot counts."""


class Steward:
    """`step` does everything that is due; call it after every change and every few seconds."""

    def __init__(self, scheduler: Scheduler, cluster: ClusterManager) -> None:
        self._scheduler = scheduler
        self._books = scheduler.books
        self._cluster = cluster
        self._first_seen: dict[tuple[str, str], float] = {}
        self._busy: set[str] = set()
        scheduler.life_of = cluster.life
        scheduler.books.changed.append(self._on_change)

    async def step(self) -> None:
        """Launch placed jobs, then check every lease."""
        self._scheduler.hear(self._cluster.answering())
        for workload in list(self._books.workloads.values()):
            record = self._books.current_lease(workload)
            if workload.spec.kind is Kind.JOB and record and record.taken_at is None:
                await self._launch(workload.id, adopt=False)
        for record in list(self._books.leases.values()):
            if record.lease.id in self._books.leases:
                await self._check(record)
        given_up = self._given_up()
        for record in given_up:
            self._end_given_up(record)
        known = {*self._books.leases, *(record.lease.id for record in given_up)}
        for name, lease_id in list(self._first_seen):
            if lease_id not in known:
                del self._first_seen[name, lease_id]

    def _on_change(self, events: tuple[Event, ...]) -> None:
        ended = {phase.value for phase in TERMINAL}
        for event in events:
            if event.kind == "phase" and event.target in ended:
                self._cluster.forget(event.workload_id)

    # -- starting ----------------------------------------------------------------------------

    async def _launch(self, workload_id: str, *, adopt: bool) -> None:
        """Take the lease up and start a supervisor with its new credential."""
        if workload_id in self._busy:
            return
        self._busy.add(workload_id)
        try:
            grant = self._scheduler.take(workload_id, actor=_ACTOR)
            workload = self._scheduler.get(workload_id)
            try:
                handle = await self._cluster.launch(workload, grant, adopt=adopt)
            except LaunchFailed as failure:
                self._launch_failed(workload_id, grant.lease.id, failure, adopt=adopt)
            else:
                self._launched(workload_id, grant.lease.id, handle, adopt=adopt)
        finally:
            self._busy.discard(workload_id)

    def _launched(
        self, workload_id: str, lease_id: str, handle: Mapping[str, Any], *, adopt: bool
    ) -> None:
        record = self._books.leases.get(lease_id)
        if record is None:
            return
        with self._books.draft() as draft:
            # what its own heartbeat has said meanwhile is newer
            told = handle if adopt else {**handle, **record.handle}
            draft.put_lease(with_handle(record, told))
            draft.note(
                "adopted" if adopt else "launched",
                draft.workload(workload_id),
                cause="its supervisor was started",
                actor=_ACTOR,
                evidence={"lease": lease_id},
            )

    def _launch_failed(
        self, workload_id: str, lease_id: str, failure: LaunchFailed, *, adopt: bool
    ) -> None:
        _log.warning("%s could not be started: %s", workload_id, failure)
        workload = self._scheduler.get(workload_id)
        record = self._books.leases.get(lease_id)
        if record is None or adopt or self._books.is_lingering(record):
            return
        attempts = self._scheduler.settings.launch_attempts
        final = failure.permanent or workload.attempt + 1 >= attempts
        target = Phase.FAILED if final else Phase.QUEUED
        if workload.phase is Phase.CANCELLING:
            target = Phase.CANCELLED
        with self._books.draft() as draft:
            draft.release(record, ended_as=target, cause="nothing was started on it", actor=_ACTOR)
            draft.move(
                draft.workload(workload_id),
                target,
                cause="its supervisor could not be started",
                actor=_ACTOR,
                evidence={"error": str(failure)},
                attempt=workload.attempt + (target is Phase.QUEUED),
                last_error=str(failure),
                remedy="Submit it again once that is mended." if final else "",
            )
        self._scheduler.wake()

    # -- checking ----------------------------------------------------------------------------

    async def _check(self, record: LeaseRecord) -> None:
        life = self._cluster.life(record.handle)
        lingering = self._books.is_lingering(record)
        if life is Life.GONE:
            self._conclude(record, lingering=lingering)
        elif life is Life.UNKNOWN:
            self._doubt(record, lingering=lingering)
        elif lingering:
            self._press(record)
        elif life is Life.ORPHANED:
            await self._adopt(record)

    def _conclude(self, record: LeaseRecord, *, lingering: bool) -> None:
        """Neither supervisor nor sandbox lives: what it wrote down counts, else it is a loss."""
        workload = self._scheduler.get(record.lease.workload_id)
        words = None if lingering else self._cluster.last_words(workload, record.handle)
        if words is not None and self._believe(record, workload, words):
            return
        waits = workload.spec.kind is Kind.SESSION and workload.phase is Phase.SUSPENDING
        if waits and not lingering and not self._passed(record, "gone", CONCLUDE_AFTER_SECONDS):
            return
        self._lose(record)

    def _believe(self, record: LeaseRecord, workload: Workload, words: LastWords) -> bool:
        evidence = {"error": words.error, "remedy": words.remedy} if words.error else {}
        told = Told(words.phase, words.cause, evidence, words.snapshot, words.exit_code)
        try:
            with self._books.draft() as draft:
                move_by_holder(draft, record, workload, told, withdrawn=False)
        except SchedulerError as error:
            _log.error("the last words of %s are not possible: %s", workload.id, error)
            return False
        self._scheduler.wake()
        return True

    def _lose(self, record: LeaseRecord) -> None:
        _log.warning("the processes of %s are gone", record.lease.workload_id)
        with self._books.draft() as draft:
            stage_gone(draft, record, evidence={"handle": dict(record.handle)})
        self._scheduler.wake()

    def _given_up(self) -> list[LeaseRecord]:
        """Leases that went with machines that were declared dead."""
        dead = [r.death for r in self._books.node_records.values() if r.death is not None]
        found = (self._books.store.lease(name) for death in dead for name in death.leases)
        return [record for record in found if record is not None]

    def _end_given_up(self, record: LeaseRecord) -> None:
        """It was told to stop itself, may store its memory first, and is not to stay."""
        lives = self._cluster.life(record.handle) in (Life.ALIVE, Life.ORPHANED)
        if lives and self._passed(record, "given up", STORE_WITHIN_SECONDS):
            _log.warning("ending %s by force: it was given up", record.lease.workload_id)
            self._cluster.terminate(record.handle)

    def _press(self, record: LeaseRecord) -> None:
        """Its holder was told to end it; after a while it is ended by force."""
        patience = 0.0 if record.forced else FORCE_AFTER_SECONDS
        if record.handle and self._passed(record, "left behind", patience):
            _log.warning("ending %s by force", record.lease.workload_id)
            self._cluster.terminate(record.handle)

    async def _adopt(self, record: LeaseRecord) -> None:
        """A job gets a new supervisor; a session's is started by its spawner, which knows more."""
        workload = self._scheduler.get(record.lease.workload_id)
        if workload.spec.kind is Kind.JOB:
            if self._passed(record, "adopting", 0.0, again_after=10.0):
                await self._launch(workload.id, adopt=True)
        elif self._passed(record, "orphaned", 0.0, again_after=float("inf")):
            with self._books.draft() as draft:
                draft.note(
                    "supervisor_gone",
                    draft.workload(workload.id),
                    cause="its supervisor is gone, its processes live",
                    actor=_ACTOR,
                )

    def _doubt(self, record: LeaseRecord, *, lingering: bool) -> None:
        """The supervisor is known and gone, a sandbox was never seen. Either it is proven that there
        is none, or one must have stopped itself because nobody renewed its lease."""
        settings = self._scheduler.settings
        fenced = record.lease.expires_at + settings.lease_margin
        if lingering and record.forced and self._books.clock.now() >= fenced:
            self._lose(record)
        if not record.handle.get("supervisor") or record.lease.id not in self._books.leases:
            return
        if self._books.clock.now() >= fenced:
            self._lose(record)
        elif speaks_for(record) and self._cluster.has_no_sandbox(record.handle):
            self._conclude(record, lingering=lingering)

    def _passed(
        self, record: LeaseRecord, what: str, seconds: float, *, again_after: float = 0.0
    ) -> bool:
        """Whether it is that long since this was seen first; then not again for a while."""
        now = self._books.clock.now()
        key = (what, record.lease.id)
        first = self._first_seen.setdefault(key, now)
        if now - first < seconds:
            return False
        self._first_seen[key] = now + again_after
        return True
