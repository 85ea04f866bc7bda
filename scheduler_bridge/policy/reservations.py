"""When a blocked gang can start at the latest, and where: protections end at known times, so the
moment can be computed, and what ends or may be preempted before it can safely run there meanwhile."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scheduler_bridge.policy.columns import Bools, Floats, Ints, Pools, Reservation, Work
from scheduler_bridge.policy.rooms import room
from scheduler_bridge.policy.values import Pending


def reserve(
    item: Pending,
    pools: Pools,
    work: Work,
    moments_of: Floats,
    available: Ints,
    within: Bools,
    now: float,
    others: Sequence[Reservation],
) -> Reservation | None:
    """The earliest moment at which the gang has room, or None if nobody knows. `moments_of` is from when
    on each row yields to it or has ended. Whoever would have room by now but does not get it (what is
    lost would be too much) is not served by keeping GPUs for it either."""
    entries = np.flatnonzero(work.entry_gpus > 0)
    row, pool = work.entry_row[entries], work.entry_pool[entries]
    # What others have reserved is theirs from their moment on.
    available = available.copy()
    for reservation in others:
        for reserved, gpus in reservation.takes:
            available[reserved] -= gpus
    when = moments_of[row]
    moments = np.unique(when[np.isfinite(when)])
    low, high, best = 0, len(moments) - 1, None
    while low <= high:
        middle = (low + high) // 2
        back = when <= moments[middle]
        freed = np.bincount(pool[back], work.entry_gpus[entries][back], minlength=len(pools))
        takes = room(pools, item, available + freed.astype(np.int64), within)
        if takes is None:
            low = middle + 1
        else:
            best, high = Reservation(item.id, float(moments[middle]), takes), middle - 1
    return best if best is not None and best.at > now else None


def kept_for_others(
    reservations: Sequence[Reservation], item: Pending, now: float, pools: int
) -> Ints | None:
    """GPUs per pool that `item` may not use because it would neither have ended nor be preemptible
    when their reservation begins; None if there are none."""
    stays_until = now + item.stays
    kept = None
    for reservation in reservations:
        if reservation.owner != item.id and stays_until > reservation.at:
            kept = np.zeros(pools, np.int64) if kept is None else kept
            for pool, gpus in reservation.takes:
                kept[pool] += gpus
    return kept
