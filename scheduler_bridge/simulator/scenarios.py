"""The scenarios and policies that have names, and how several are run side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Final

from scheduler_bridge.simulator.ai2 import DAYS, ai2
from scheduler_bridge.simulator.borrow import Borrow
from scheduler_bridge.simulator.contract import MakePolicy
from scheduler_bridge.simulator.fairshare import FairShare
from scheduler_bridge.simulator.fifo import Fifo
from scheduler_bridge.simulator.jobs import Costs, Scenario, SimFleet
from scheduler_bridge.simulator.meters import Sample
from scheduler_bridge.simulator.ours import Ours
from scheduler_bridge.simulator.philly import HOURS, philly
from scheduler_bridge.simulator.report import Figures, figures
from scheduler_bridge.simulator.traces import TraceError, read_events
from scheduler_bridge.simulator.world import World

POLICIES: Final[Mapping[str, MakePolicy]] = {
    policy.name: policy for policy in (Ours, Fifo, FairShare, Borrow)
}
REFERENCES: Final = ("fifo", "fairshare", "borrow")
SCENARIOS: Final = ("ai2", "philly-96x8", "philly-80x8", "trace")


class UnknownName(Exception):
    """No scenario or policy has this name. Says which there are."""


@dataclass(frozen=True, slots=True)
class Request:
    """One simulation. `days` shortens generated work; `nodes` and `gpus_per_node` are the fleet on
    which a trace of our own events is replayed."""

    scenario: str = "ai2"
    policy: str = Ours.name
    trace: Path | None = None
    seed: int = 1
    days: float | None = None
    nodes: int = 1
    gpus_per_node: int = 8
    costs: Costs = field(default_factory=Costs)
    tick: float = 10.0

    def build(self) -> Scenario:
        """The work and the fleet. Raises `TraceError`."""
        if self.scenario == "ai2":
            return ai2(self.seed, self.days or DAYS)
        if self.scenario in ("philly-96x8", "philly-80x8"):
            nodes = int(self.scenario.removeprefix("philly-").partition("x")[0])
            hours = HOURS if self.days is None else max(1, round(self.days * 24))
            return philly(nodes, trace=self.trace, seed=self.seed, hours=hours)
        return self._own_past()

    def _own_past(self) -> Scenario:
        if self.trace is None:
            raise TraceError(
                "The scenario `trace` needs the file of an export of the events table."
            )
        replay, shares = read_events(self.trace, self.seed)
        fleet = SimFleet(self.nodes, self.gpus_per_node, shares)
        for _, job in replay.arrivals:
            if job.spec.gpus > self.gpus_per_node or job.spec.nodes > self.nodes:
                raise TraceError(
                    f"{job.spec.id} needs {job.spec.gpus} GPUs on {job.spec.nodes} machines; the fleet "
                    f"has {self.nodes} with {self.gpus_per_node}. Simulate a larger one."
                )
        return Scenario("trace", fleet, replay)


@dataclass(frozen=True, slots=True)
class Result:
    """What one simulation gave. `course` is how things stood, once an hour."""

    request: Request
    figures: Figures
    fleet: SimFleet
    course: tuple[Sample, ...]


def check(requests: Iterable[Request]) -> None:
    """Says wrong names before anything is simulated. Raises `UnknownName`."""
    for request in requests:
        for what, name, known in (
            ("scenario", request.scenario, SCENARIOS),
            ("policy", request.policy, tuple(POLICIES)),
        ):
            if name not in known:
                raise UnknownName(f"There is no {what} {name}; there are {', '.join(known)}.")


def simulate(request: Request) -> Result:
    """Run it here. Raises `UnknownName`, `TraceError`."""
    check([request])
    scenario = request.build()
    world = World(scenario, POLICIES[request.policy], costs=request.costs, tick=request.tick)
    outcome = world.run()
    return Result(request, figures(outcome), scenario.fleet, tuple(outcome.meter.samples))


def simulate_all(
    requests: Iterable[Request],
    *,
    workers: int,
    done: Callable[[Result], None] = lambda result: None,
) -> Iterator[Result]:
    """Several, in as many processes, in the order asked for; `done` hears of each as it ends."""
    asked = list(requests)
    if workers <= 1 or len(asked) == 1:
        for request in asked:
            result = simulate(request)
            done(result)
            yield result
        return
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(simulate, request) for request in asked]
        for future in as_completed(futures):
            done(future.result())
        yield from (future.result() for future in futures)


def at_restore_cost(request: Request, seconds: float) -> Request:
    """The same with another cost of bringing work back."""
    return replace(request, costs=replace(request.costs, restore=seconds))
