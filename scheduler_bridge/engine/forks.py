"""Several sessions out of one: what the scheduler makes of a fork."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from scheduler_bridge.engine.admission import check
from scheduler_bridge.engine.budgets import rules_now
from scheduler_bridge.engine.scheduler import Scheduler
from scheduler_bridge.errors import Conflict, NotFound, Refused
from scheduler_bridge.model.phases import Desired, Kind, Phase
from scheduler_bridge.model.workload import Fork, SnapshotRef, Workload, WorkloadId, WorkloadSpec

_ID: Final = re.compile(r"s-[0-9a-f]{12}")
"""As `books.new_id` makes them: it becomes the name of a folder."""


def fork(
    scheduler: Scheduler,
    workload_id: str,
    *,
    new: Fork,
    snapshot: SnapshotRef,
    source_snapshot: str,
    actor: str,
) -> Workload:
    """See `plugin.SchedulerPlugin.fork`. The owner, team and size are the first session's."""
    books = scheduler.books
    known = books.workloads.get(new.id)
    if known is not None and known.key == new.key and known.snapshot == snapshot:
        return known
    if not _ID.fullmatch(new.id):
        raise Refused(f"id: {new.id!r} is no session's id.")
    source = scheduler.get(workload_id)
    _check_source(source, source_snapshot)
    _check_free(scheduler, new)
    spec = replace(source.spec, name=new.name, server=new.server)
    check(spec, new.key, books.fleet, rules_now(books, scheduler.settings))
    with books.draft() as draft:
        made = _suspended(new, spec, snapshot, actor=actor, now=draft.now)
        draft.put(made)
        draft.note(
            "forked",
            made,
            cause=f"a fork of {source.id}",
            actor=actor,
            target=Phase.SUSPENDED.value,
            evidence={"source": source.id, "source_snapshot": source_snapshot},
        )
    return scheduler.get(new.id)


def _suspended(
    new: Fork, spec: WorkloadSpec, snapshot: SnapshotRef, *, actor: str, now: float
) -> Workload:
    return Workload(
        id=WorkloadId(new.id),
        key=new.key,
        spec=spec,
        phase=Phase.SUSPENDED,
        phase_since=now,
        created_at=now,
        version=0,
        desired=Desired.SUSPENDED,
        desired_by=actor,
        desired_reason="forked",
        snapshot=snapshot,
        # what it stores itself is newer than what it comes from
        epoch=snapshot.epoch,
    )


def _check_source(source: Workload, snapshot: str) -> None:
    if source.spec.kind is not Kind.SESSION or source.phase is not Phase.SUSPENDED:
        raise Conflict(
            f"Only a suspended session can be forked; {source.id} is {source.phase.value}.",
            remedy="Suspend it first.",
        )
    if source.snapshot is None or source.snapshot.key != snapshot:
        raise Conflict(f"{source.id} is suspended as another snapshot.", remedy="Fork it again.")


def _check_free(scheduler: Scheduler, new: Fork) -> None:
    if scheduler.find(new.key) is not None:
        raise Conflict(
            f"There is already a session called {new.name}.", remedy="Choose another name."
        )
    try:
        scheduler.get(new.id)
    except NotFound:
        return
    raise Conflict(f"The id {new.id} is taken.", remedy="Fork it again.")
