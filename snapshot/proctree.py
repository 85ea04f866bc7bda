"""Can this tree be suspended, and if not, why?

`examine` and `inspect` only read (/proc, and the kernel's table of UNIX sockets): no program notices,
and they may be called every minute. `inspect_stopped` and `try_freeze` stop the tree for some
milliseconds (see `inspection.stopping`): right before a dump, and when somebody asked for it.

What is named here would make CRIU refuse the tree after it has been stopped, or would keep it from
ever coming back; finding it before costs the user nothing and can be said in plain words. What is not
found here, CRIU may still refuse.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from snapshot import criu
from snapshot.gpu import devices
from snapshot.inspection import rules, tree
from snapshot.inspection.stopping import Stopped, while_stopped
from snapshot.inspection.verdict import Rates, Verdict, weigh
from snapshot.model import Blocker, Process

__all__ = ["Rates", "Trial", "Verdict", "examine", "inspect", "inspect_stopped", "try_freeze"]


@dataclass(frozen=True, slots=True)
class Trial:
    """A test freeze: the verdict, and how many threads stood still for how many seconds."""

    verdict: Verdict
    threads: int
    seconds: float


def examine(
    process: Process, *, gpu_saved: bool | None = None, rates: Rates | None = None
) -> Verdict:
    """The whole verdict on the tree of this first process: what is in the way, and what a suspend
    would cost. Stops nothing.

    `gpu_saved`: NVIDIA devices are looked after by somebody else; None: if the driver here can.
    Blockers carry the process numbers that the session itself sees.
    """
    saved = devices.driver_saves_memory() if gpu_saved is None else gpu_saved
    found = tree.read(process)
    if found is None:
        return Verdict((Blocker(process.pid, "session", "its processes have ended"),))
    blockers = rules.judge(found, ghost_bytes=criu.GHOST_BYTES, gpu_saved=saved)
    return weigh(found, blockers, rates)


def inspect(process: Process, *, gpu_saved: bool | None = None) -> tuple[Blocker, ...]:
    """What is in the way, as `examine` finds it. Stops nothing."""
    return examine(process, gpu_saved=gpu_saved).blockers


def inspect_stopped(process: Process, *, gpu_saved: bool | None = None) -> tuple[Blocker, ...]:
    """The same of the stopped tree, with what only that tells. The tree runs on afterwards."""
    return try_freeze(process, gpu_saved=gpu_saved).verdict.blockers


def try_freeze(
    process: Process, *, gpu_saved: bool | None = None, rates: Rates | None = None
) -> Trial:
    """Stop the tree, examine it, let it go on."""
    stopped, verdict = while_stopped(
        process, lambda: examine(process, gpu_saved=gpu_saved, rates=rates)
    )
    blockers = (*_news(stopped, verdict), *verdict.blockers)
    return Trial(replace(verdict, blockers=blockers), stopped.threads, stopped.seconds)


def _news(stopped: Stopped, verdict: Verdict) -> list[Blocker]:
    """Blockers of the stop, without those of programs that are known to be traced."""
    told = {blocker.pid for blocker in verdict.blockers}
    return [blocker for blocker in stopped.blockers if blocker.pid not in told]
