"""The queue in the planner's order, with what the viewer may not know only counted."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from scheduler_bridge.engine.outlooks import ESTIMATED_AT_MOST
from scheduler_bridge.engine.scheduler import Scheduler
from scheduler_bridge.model.outlook import Estimate
from scheduler_bridge.model.phases import Phase
from scheduler_bridge.model.queue import QueuedWork, QueueRow, QueueView, called
from scheduler_bridge.model.workload import Workload
from scheduler_bridge.policy.visibility import Viewer, may_know


def queue_view(scheduler: Scheduler, viewer: Viewer) -> QueueView:
    """Everything that waits."""
    found = scheduler.books.workloads.values()
    waiting = sorted((w for w in found if w.phase is Phase.QUEUED), key=_turn)
    rule = scheduler.settings.queue_visibility
    rows = tuple(_rows(scheduler, viewer, waiting))
    scheduler.estimates.keep()
    return QueueView(rule.value, len(waiting), sum(map(_gpus, waiting)), rows)


def _turn(workload: Workload) -> tuple[bool, int, float]:
    return (workload.position is None, workload.position or 0, workload.created_at)


def _gpus(workload: Workload) -> int:
    return workload.spec.gpus * workload.spec.nodes


def _rows(scheduler: Scheduler, viewer: Viewer, waiting: list[Workload]) -> Iterator[QueueRow]:
    rule = scheduler.settings.queue_visibility

    def is_known(workload: Workload) -> bool:
        return may_know(viewer, rule, user=workload.spec.user, team=workload.spec.team)

    estimates = _Estimates(scheduler)
    for known, some in groupby(waiting, key=is_known):
        group = list(some)
        if known:
            yield from (
                QueueRow(w.position, 1, _gpus(w), _work(w, viewer, estimates)) for w in group
            )
        else:
            yield QueueRow(group[0].position, len(group), sum(map(_gpus, group)))


class _Estimates:
    """Of the first that may be told."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler, self._left = scheduler, ESTIMATED_AT_MOST

    def of(self, workload: Workload) -> Estimate | None:
        self._left -= 1
        return self._scheduler.estimate(workload) if self._left >= 0 else None


def _work(workload: Workload, viewer: Viewer, estimates: _Estimates) -> QueuedWork:
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
        estimate=estimates.of(workload) if tells_why else None,
    )
