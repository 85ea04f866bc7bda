"""Can this tree be suspended, and if not, why?

Only reads (/proc, and the kernel's table of UNIX sockets): no program notices, and it may be done
every minute. `trial` does the same with a tree that it stops for a moment.

What is named here would make CRIU refuse the tree after it has been stopped, or would keep it from
ever coming back; finding it before costs the user nothing and can be said in plain words. What is not
found here, CRIU may still refuse.
"""

from __future__ import annotations

from snapshot import criu, proc
from snapshot.gpu import devices
from snapshot.inspection import rules, tree
from snapshot.inspection.verdict import Rates, Verdict, weigh
from snapshot.model import Blocker, Process

__all__ = ["Rates", "Verdict", "examine", "inspect"]


def examine(
    process: Process, *, gpu_saved: bool | None = None, rates: Rates | None = None
) -> Verdict:
    """The whole verdict on the tree of this first process: what is in the way, and what a suspend
    would cost.

    `gpu_saved`: NVIDIA devices are looked after by somebody else; None: if the driver here can.
    Blockers carry the process numbers that the session itself sees.
    """
    missing = tree.missing_capabilities(proc.read_text("/proc/self/status"))
    if missing:
        return Verdict((rules.lacking(missing),))
    saved = devices.driver_saves_memory() if gpu_saved is None else gpu_saved
    found = tree.read(process)
    if found is None:
        return Verdict((Blocker(process.pid, "session", "its processes have ended"),))
    blockers = rules.judge(found, ghost_bytes=criu.GHOST_BYTES, gpu_saved=saved)
    return weigh(found, blockers, rates)


def inspect(process: Process, *, gpu_saved: bool | None = None) -> tuple[Blocker, ...]:
    """What is in the way, as `examine` finds it."""
    return examine(process, gpu_saved=gpu_saved).blockers
