"""Where a gang fits, and what a policy knows of the fleet."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scheduler_bridge.simulator.jobs import JobSpec, SimFleet, Takes

Counts = NDArray[np.int64]
_NO_ROOM = np.iinfo(np.int64).max


def best_fit(free: Counts, gpus: int, nodes: int) -> Takes | None:
    """The machines that have the least to spare, or None. `free` is the free GPUs of each machine."""
    if nodes == 1:
        room = np.where(free >= gpus, free, _NO_ROOM)
        node = int(room.argmin())
        return None if room[node] == _NO_ROOM else ((node, gpus),)
    found = np.flatnonzero(free >= gpus)
    if found.size < nodes:
        return None
    chosen = found[np.argsort(free[found], kind="stable")[:nodes]]
    return tuple((int(node), gpus) for node in chosen)


@dataclass(slots=True)
class Held:
    """A running job. `leaving` means that it was asked to yield."""

    spec: JobSpec
    takes: Takes
    since: float
    leaving: bool = False


class Board:
    """Who holds what."""

    def __init__(self, fleet: SimFleet) -> None:
        self.free: Counts = np.full(fleet.nodes, fleet.gpus_per_node, np.int64)
        self.held: dict[str, Held] = {}
        self.free_gpus = fleet.capacity

    def start(self, spec: JobSpec, takes: Takes, now: float) -> None:
        """It holds `takes` from now on."""
        for node, gpus in takes:
            self.free[node] -= gpus
        self.free_gpus -= spec.size
        self.held[spec.id] = Held(spec, takes, now)

    def leave(self, job_id: str) -> Held:
        """It holds nothing any more. Gives what it had."""
        held = self.held.pop(job_id)
        for node, gpus in held.takes:
            self.free[node] += gpus
        self.free_gpus += held.spec.size
        return held
