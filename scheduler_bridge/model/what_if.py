"""What would come of work that nobody has submitted yet."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler_bridge.model.outlook import Change, Estimate
from scheduler_bridge.model.workload import WorkloadSpec


@dataclass(frozen=True, slots=True)
class Outlook:
    """What would come of `spec` if it were submitted now: `outcome` is `now` (it starts at once),
    `makes_room` (others are asked to yield for it), `waits` or `refused`. If it waits, `reason`,
    `text` and `remedy` say why, `starts_by` when it starts at the latest unless somebody with a better
    claim comes (UNIX seconds), and `changes` what would start it now."""

    spec: WorkloadSpec
    outcome: str
    reason: str = ""
    text: str = ""
    remedy: str = ""
    starts_by: float | None = None
    estimate: Estimate | None = None
    changes: tuple[Change, ...] = ()
