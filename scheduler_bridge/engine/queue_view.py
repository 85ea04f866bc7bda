"""The queue in the planner's order, with what the viewer may not know only counted."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from scheduler_bridge.engine.scheduler import Scheduler
from scheduler_bridge.model.phases import Phase
from scheduler_bridge.model.queue import QueuedWork, QueueRow, QueueView, called
from scheduler_bridge.model.workload import Workload
from scheduler_bridge.policy.visibility import Viewer, may_know


def queue_view(scheduler: Scheduler, viewer: Viewer) -> QueueView:
    """Everything that waits."""
    found = scheduler.books.workloads.values()
    waiting = sorted((w for w in found if w.phase is Phase.QUEUED), key=_turn)
    rule = scheduler.settings.queue_visibility
    return QueueView(
        rule.value, len(waiting), sum(map(_gpus, waiting)), tuple(_rows(scheduler, viewer, waiting))
    )


def _turn(workload: Workload) -> tuple[bool, int, float]:
    return (workload.position is None, workload.position or 0, workload.created_at)


def _gpus(workload: Workload) -> int:
    return workload.spec.gpus * workload.spec.nodes


def _rows(scheduler: Scheduler, viewer: Viewer, waiting: list[Workload]) -> Iterator[QueueRow]:
    rule = scheduler.settings.queue_visibility

    def is_known(workload: Workload) -> bool:
        return may_know(viewer, rule, user=workload.spec.user, team=workload.spec.team)

    for known, some in groupby(waiting, key=is_known):
        group = list(some)
        if known:
            yield from (QueueRow(w.position, 1, _gpus(w), _work(w, viewer)) for w in group)
        else:
            yield QueueRow(group[0].position, len(group), sum(map(_gpus, group)))


def _work(workload: Workload, viewer: Viewer) -> QueuedWork:
    spec = workload.spec
    tells_why = viewer.sees_all or viewer.user == spec.user
    return QueuedWork(
        workload_id=str(workload.id),
        kind=spec.kind,
        name=called(spec),
        user=spec.user,
        team=spec.team,
        priority=spec.priority.name.lower(),
        gpus=spec.gpus,
        nodes=spec.nodes,
        since=workload.phase_since,
        attempt=workload.attempt,
        reason=workload.wait_reason if tells_why else "",
    )
