"""Machines as the scheduler keeps and shows them, and what is given up with one."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from scheduler_bridge.model.phases import Kind, Phase


class NodeStanding(StrEnum):
    """What may be expected of a machine."""

    READY = "ready"
    UNREADY = "unready"
    """It answers, and says itself that it cannot take work."""
    SILENT = "silent"
    """It stopped answering: it gets no new work and keeps its leases."""
    DEAD = "dead"
    """An administrator declared it dead; its leases were given up."""
    UNKNOWN = "unknown"
    """It is not part of the fleet (any more), and something still holds a lease on it."""


@dataclass(frozen=True, slots=True)
class Death:
    """That a machine was declared dead: when (UNIX seconds), by whom, why, and the leases that were
    given up with it."""

    at: float
    actor: str
    reason: str
    leases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """What is stored of a machine. `reports`: something on it, or its cluster, tells by itself that
    it is there, so that silence means something. `silent_since` is when it was heard last, while it
    is silent."""

    name: str
    reports: bool = False
    silent_since: float | None = None
    death: Death | None = None


@dataclass(frozen=True, slots=True)
class NodeHolder:
    """A workload that holds a lease on a machine. All texts are empty for who may not know whose it
    is. `renewed_at`: when its supervisor was heard last; None before it was heard at all."""

    workload_id: str
    gpus: int
    kind: Kind | None = None
    name: str = ""
    user: str = ""
    team: str = ""
    phase: Phase | None = None
    renewed_at: float | None = None


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """A machine as it is now. `heard_at` is when it, or a workload on it, was heard last (None: not
    since this scheduler started). Its leases are kept until `fenced_at`: by then every holder that
    could not renew had to halt itself (None: nothing is held on it)."""

    name: str
    state: NodeStanding
    gpus: int = 0
    free: int = 0
    cluster: str = ""
    heard_at: float | None = None
    silent_since: float | None = None
    fenced_at: float | None = None
    holders: tuple[NodeHolder, ...] = ()
    death: Death | None = None
    still_heard: tuple[str, ...] = ()
    """Workloads that were given up with it and that still report from it: it is alive."""


@dataclass(frozen=True, slots=True)
class GivenUp:
    """What becomes of one workload if its lease is given up now.

    Until `fenced_at` its processes may run; from then on they are halted (never, if it has no GPU:
    `halts_itself` is false). What its memory has gained since `saved_at` is lost; None: all of it.
    `is_elsewhere`: its supervisor is on another machine and is told to end it.
    """

    workload_id: str
    kind: Kind
    name: str
    user: str
    phase: Phase
    becomes: Phase
    gpus: int
    since: float
    fenced_at: float | None
    is_fenced: bool
    halts_itself: bool
    saved_at: float | None = None
    is_elsewhere: bool = False


@dataclass(frozen=True, slots=True)
class Losses:
    """What is given up, and why it cannot be done yet (`obstacle`, empty if it can)."""

    items: tuple[GivenUp, ...] = ()
    obstacle: str = ""
    node: str = ""

    @property
    def ids(self) -> tuple[str, ...]:
        """The workloads, as a confirmation has to name them."""
        return tuple(item.workload_id for item in self.items)
