"""First come, first served: the head of the queue blocks everybody behind it. Best fit on machines."""

from __future__ import annotations

from collections import deque

from scheduler_bridge.simulator.contract import Decisions, Setting
from scheduler_bridge.simulator.fitting import Board, best_fit
from scheduler_bridge.simulator.jobs import JobSpec, Takes


class Fifo:
    """The simplest reference."""

    name = "fifo"
    promises_protection = True

    def __init__(self, setting: Setting) -> None:
        self.board = Board(setting.fleet)
        self.queue: deque[JobSpec] = deque()

    def submit(self, job: JobSpec, now: float) -> None:
        """See `SimPolicy`."""
        self.queue.append(job)

    def finished(self, job_id: str, now: float) -> None:
        """See `SimPolicy`."""
        self.board.leave(job_id)

    def yielded(self, job_id: str, now: float) -> None:
        """See `SimPolicy`."""
        self.board.leave(job_id)

    def decide(self, now: float) -> Decisions:
        """Start from the head while it fits."""
        starts: list[tuple[str, Takes]] = []
        while self.queue and self.queue[0].size <= self.board.free_gpus:
            takes = best_fit(self.board.free, self.queue[0].gpus, self.queue[0].nodes)
            if takes is None:
                break
            job = self.queue.popleft()
            self.board.start(job, takes, now)
            starts.append((job.id, takes))
        return Decisions(tuple(starts))

    def next_wake(self, now: float) -> float | None:
        """Only events change anything."""
        return None
