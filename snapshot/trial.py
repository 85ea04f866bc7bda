"""The verdict on a tree that stands still: right before a dump, and when somebody asks for a test.

The tree is stopped for some milliseconds (see `inspection.stopping`). Apart from `proctree` because
python-ptrace takes a while to load, which a starting session would wait for in vain.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from snapshot.inspection.stopping import Stopped, while_stopped
from snapshot.inspection.verdict import Rates, Verdict
from snapshot.model import Blocker, Process
from snapshot.proctree import examine


@dataclass(frozen=True, slots=True)
class Trial:
    """A test freeze: the verdict, and how many threads stood still for how many seconds."""

    verdict: Verdict
    threads: int
    seconds: float


def try_freeze(
    process: Process, *, gpu_saved: bool | None = None, rates: Rates | None = None
) -> Trial:
    """Stop the tree, examine it, let it go on."""
    stopped, verdict = while_stopped(
        process, lambda: examine(process, gpu_saved=gpu_saved, rates=rates)
    )
    blockers = (*_news(stopped, verdict), *verdict.blockers)
    return Trial(replace(verdict, blockers=blockers), stopped.threads, stopped.seconds)


def inspect_stopped(process: Process, *, gpu_saved: bool | None = None) -> tuple[Blocker, ...]:
    """What is in the way, as `try_freeze` finds it."""
    return try_freeze(process, gpu_saved=gpu_saved).verdict.blockers


def _news(stopped: Stopped, verdict: Verdict) -> list[Blocker]:
    """Blockers of the stop, without those of programs that are known to be in the way."""
    told = {blocker.pid for blocker in verdict.blockers}
    return [blocker for blocker in stopped.blockers if blocker.pid not in told]
