"""Small fleets, jobs and scripted policies."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import Any

from scheduler_bridge.simulator.contract import NOTHING, Decisions, MakePolicy
from scheduler_bridge.simulator.jobs import (
    Costs,
    JobSpec,
    Replay,
    Scenario,
    SimFleet,
    SimJob,
)
from scheduler_bridge.simulator.outcome import Outcome
from scheduler_bridge.simulator.world import World

FREE = Costs(grace=0, suspend=0, restore=0, start=0)


def job(name: str, gpus: int = 1, duration: float = 100.0, **more: Any) -> SimJob:
    """A job of team `a`; `more` are fields of the job or of what the scheduler is told."""
    whole = {k: more.pop(k) for k in ("checkpoint_every", "freezes") if k in more}
    told = {"team": "a", "limit": duration + 100} | more
    return SimJob(JobSpec(name, gpus=gpus, **told), duration, **whole)


def scenario(
    jobs: Iterable[tuple[float, SimJob]],
    *,
    nodes: int = 2,
    gpus: int = 4,
    shares: dict[str, float] | None = None,
    until: float = inf,
    costs: Costs = FREE,
) -> Scenario:
    """A replay on a small fleet of which teams `a` and `b` have half each."""
    fleet = SimFleet(nodes, gpus, shares or {"a": 0.5, "b": 0.5})
    return Scenario("small", fleet, Replay(tuple(jobs)), until, costs)


def play(what: Scenario, make: MakePolicy, **more: Any) -> Outcome:
    """Run it with decisions a second apart."""
    return World(what, make, **({"tick": 1.0} | more)).run()


def starts(outcome: Outcome) -> dict[str, float | None]:
    """When each job started for the first time."""
    return {name: record.started for name, record in outcome.records.items()}


class Scripted:
    """A policy that does what a test wrote down: decisions by the time of the pass."""

    name = "scripted"

    def __init__(self, script: dict[float, Decisions], promises_protection: bool = True) -> None:
        self.script, self.promises_protection = dict(script), promises_protection
        self.told: list[tuple[str, str, float]] = []

    def submit(self, job: JobSpec, now: float) -> None:
        self.told.append(("submit", job.id, now))

    def finished(self, job_id: str, now: float) -> None:
        self.told.append(("finished", job_id, now))

    def yielded(self, job_id: str, now: float) -> None:
        self.told.append(("yielded", job_id, now))

    def decide(self, now: float) -> Decisions:
        return self.script.pop(now, NOTHING)

    def next_wake(self, now: float) -> float | None:
        return min((at for at in self.script if at > now), default=None)


def scripted(script: dict[float, Decisions], **more: Any) -> tuple[Scripted, MakePolicy]:
    """The policy and how the world gets it."""
    policy = Scripted(script, **more)
    return policy, lambda setting: policy
