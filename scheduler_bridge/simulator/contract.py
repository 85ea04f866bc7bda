"""What a policy promises the world, and the world a policy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from scheduler_bridge.simulator.jobs import Costs, JobSpec, SimFleet, Takes


@dataclass(frozen=True, slots=True)
class Decisions:
    """What is done at once: (job, where) of every start, (victim, for whom) of every preemption. A
    victim leaves after its grace; what it held is free only when the policy is told `yielded`."""

    starts: tuple[tuple[str, Takes], ...] = ()
    preempt: tuple[tuple[str, str], ...] = ()


NOTHING = Decisions()


class Reports(Protocol):
    """What running work tells about itself."""

    def saved_at(self, job_id: str, now: float) -> float | None:
        """When its latest checkpoint in this run was taken; None before the first one."""
        ...


class SimPolicy(Protocol):
    """A scheduler as the world sees it. It is told of everything in order of time and asked to decide
    at most once per tick after something has happened. It gives no GPU that is not free, and gangs
    whole, one machine per member. Calls never fail for a job that it was told of."""

    @property
    def name(self) -> str:
        """Short, unique, for tables."""
        ...

    @property
    def promises_protection(self) -> bool:
        """Whether a job is never preempted before it ran for its `min_runtime`."""
        ...

    def submit(self, job: JobSpec, now: float) -> None:
        """It waits from now on; also each time after it has yielded, with one attempt more."""
        ...

    def finished(self, job_id: str, now: float) -> None:
        """It has ended by itself and holds nothing any more."""
        ...

    def yielded(self, job_id: str, now: float) -> None:
        """It left its GPUs after a preemption."""
        ...

    def decide(self, now: float) -> Decisions:
        """Everything to be done now."""
        ...

    def next_wake(self, now: float) -> float | None:
        """When to ask again although nothing has happened; None: never."""
        ...


@dataclass(frozen=True, slots=True)
class Setting:
    """What a policy is built for."""

    fleet: SimFleet
    costs: Costs
    reports: Reports


MakePolicy = Callable[[Setting], SimPolicy]
