"""The verdict with ptrace's help: right before a dump, and when somebody asks for a test.

See `inspection.stopping` for what the tree notices of it. Apart from `proctree` because python-ptrace
takes a while to load, which a starting session would wait for in vain.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from snapshot.inspection.stopping import while_stopped, why_not
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
    blockers = _joined(stopped.blockers, verdict.blockers)
    return Trial(replace(verdict, blockers=blockers), stopped.threads, stopped.seconds)


def inspect_before_dump(process: Process, *, gpu_saved: bool | None = None) -> tuple[Blocker, ...]:
    """What is in the way of a dump that is about to begin. Nothing is stopped."""
    return _joined(why_not(process), examine(process, gpu_saved=gpu_saved).blockers)


def _joined(held: tuple[Blocker, ...], seen: tuple[Blocker, ...]) -> tuple[Blocker, ...]:
    """What ptrace told first, without programs that are known to be in the way anyhow."""
    told = {blocker.pid for blocker in seen}
    return (*(blocker for blocker in held if blocker.pid not in told), *seen)
