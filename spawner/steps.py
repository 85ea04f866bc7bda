"""What opening a session has to do next, from the scheduler's view and this machine's (pure)."""

from __future__ import annotations

from enum import StrEnum

from scheduler_bridge.model.phases import Desired, Phase
from scheduler_bridge.model.workload import Workload
from spawner.hosting import Seen


class Step(StrEnum):
    """One move of `spawner.opening`; it looks again after each."""

    SUBMIT = "submit"
    ASK_TO_RUN = "ask_to_run"
    WAIT = "wait"
    START = "start"
    RESUME = "resume"
    ADOPT = "adopt"
    ATTACH = "attach"


_PLACED = frozenset({Phase.STARTING, Phase.RESUMING, Phase.FILLING, Phase.RUNNING})
_TREE_MAY_LIVE = _PLACED | {Phase.SUSPENDING, Phase.LOST}


def next_step(workload: Workload | None, seen: Seen) -> Step:
    """The numbered rules, first match wins:

    1. nothing at the scheduler: submit;
    2. an end was ordered and is not reached: wait for it (a new one follows);
    3. suspended, or to be suspended: say that it is wanted;
    4. a live supervisor of a placed session: attach (never a second one);
    5. a live tree without supervisor: adopt;
    6. placed and nothing there: start or resume;
    7. else wait: in the queue, while it is being saved, until a lost one is proven gone.
    """
    if workload is None:
        return Step.SUBMIT
    phase = workload.phase
    if workload.desired is Desired.STOPPED:
        return Step.WAIT
    if phase is Phase.SUSPENDED or workload.desired is Desired.SUSPENDED:
        return Step.ASK_TO_RUN
    if seen.supervisor_alive and phase in _PLACED:
        return Step.ATTACH
    if seen.sandbox_alive and not seen.supervisor_alive and phase in _TREE_MAY_LIVE:
        return Step.ADOPT
    if phase is Phase.STARTING:
        return Step.START
    if phase is Phase.RESUMING:
        return Step.RESUME
    return Step.WAIT
