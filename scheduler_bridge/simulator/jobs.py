"""What is simulated: work, fleet and the costs of moving work about."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Final, Protocol

from scheduler_bridge.policy.values import DEBUG_GPUS, DEBUG_SECONDS

MINUTE: Final = 60.0
HOUR: Final = 3600.0
DAY: Final = 86400.0

LONGEST_PROTECTION: Final = 8 * HOUR

LOW: Final = 0
NORMAL: Final = 1

Takes = tuple[tuple[int, int], ...]
"""(node, GPUs) of every machine that a workload holds; a node occurs once."""


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What a scheduler is told of a job. `gpus` are per node.

    `min_runtime` is the protection asked for, 0 for unallocated work. `limit` is the time after which
    its user says that it will have ended, counted from a start. `attempts` is how often it was
    started before.
    """

    id: str
    team: str
    gpus: int
    nodes: int = 1
    min_runtime: float = 0.0
    limit: float = inf
    priority: int = NORMAL
    attempts: int = 0

    @property
    def size(self) -> int:
        """GPUs in all."""
        return self.gpus * self.nodes

    @property
    def is_allocated(self) -> bool:
        """Whether its team's budget pays for it."""
        return self.min_runtime > 0


@dataclass(frozen=True, slots=True)
class SimJob:
    """A job with what no scheduler knows beforehand.

    `duration` is the useful work in seconds. It saves a checkpoint after every `checkpoint_every`
    seconds of work and goes on from the last one; infinite: it never does, and begins anew. One that
    `freezes` is suspended with its whole memory and loses nothing.
    """

    spec: JobSpec
    duration: float
    checkpoint_every: float = inf
    freezes: bool = False

    @property
    def is_debug(self) -> bool:
        """Short, small and protected: somebody sits there and waits for it."""
        spec = self.spec
        return spec.is_allocated and self.duration <= DEBUG_SECONDS and spec.size <= DEBUG_GPUS


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds in which GPUs are held without useful work. A job that yields stays for `grace`, or for
    `suspend` if it freezes; every start takes `start`, every return `restore` on top of it."""

    grace: float = 60.0
    suspend: float = 20.0
    restore: float = 20.0
    start: float = 30.0

    def __post_init__(self) -> None:
        for name in ("grace", "suspend", "restore", "start"):
            if not 0 <= getattr(self, name) < inf:
                raise ValueError(f"The cost `{name}` has to be 0 or more seconds.")


@dataclass(frozen=True, slots=True)
class SimFleet:
    """Machines that are all alike, and each team's share of their GPU time (0 to 1)."""

    nodes: int
    gpus_per_node: int
    shares: Mapping[str, float]

    def __post_init__(self) -> None:
        if self.nodes < 1 or self.gpus_per_node < 1:
            raise ValueError("A fleet needs at least one node with at least one GPU.")
        if any(share < 0 for share in self.shares.values()):
            raise ValueError("A team's share cannot be negative.")
        if sum(self.shares.values()) > 1 + 1e-6:
            raise ValueError(
                f"Shares sum up to {sum(self.shares.values()):.0%}; 100% is the limit."
            )

    @property
    def capacity(self) -> int:
        """All GPUs."""
        return self.nodes * self.gpus_per_node


class Source(Protocol):
    """Where work comes from. The same source gives the same jobs under every policy; only when a job
    is submitted may depend on when another one has ended."""

    def first(self) -> Iterable[tuple[float, SimJob]]:
        """What is submitted in any case, and when."""
        ...

    def after(self, job: SimJob, now: float) -> tuple[float, SimJob] | None:
        """What whoever submitted `job`, which has just ended, submits next, and when."""
        ...


@dataclass(frozen=True, slots=True)
class Replay:
    """A source whose times are given."""

    arrivals: tuple[tuple[float, SimJob], ...]

    def first(self) -> Iterable[tuple[float, SimJob]]:
        """Everything."""
        return self.arrivals

    def after(self, job: SimJob, now: float) -> tuple[float, SimJob] | None:
        """Nothing."""
        return None


@dataclass(frozen=True, slots=True)
class Scenario:
    """Work on a fleet until `until` (infinite: until all of it has ended)."""

    name: str
    fleet: SimFleet
    source: Source
    until: float = inf
    costs: Costs = field(default_factory=Costs)
