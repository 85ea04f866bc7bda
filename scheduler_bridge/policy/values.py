"""Inputs and outputs of the planner, all immutable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from typing import Any, Final

from scheduler_bridge.model.phases import Kind


@dataclass(frozen=True, slots=True)
class GpuKind:
    """What a GPU is, as far as a snapshot asks for it."""

    model: str
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class NodeState:
    """One machine: its GPUs' uuids in the driver's order. `facts` and `kinds` (by uuid) are compared
    with what snapshots demand; what is missing in them is not judged. `rack` is the part of the
    cluster in which machines reach each other fast."""

    name: str
    gpus: tuple[str, ...]
    ready: bool = True
    facts: Mapping[str, str] = field(default_factory=dict)
    kinds: Mapping[str, GpuKind] = field(default_factory=dict)
    cluster: str = "local"
    rack: str = ""


@dataclass(frozen=True, slots=True)
class FleetState:
    """What exists. `holders` maps a leased GPU to its workload, `earmarks` a GPU to the workload
    that others were asked to make room for."""

    nodes: tuple[NodeState, ...]
    holders: Mapping[str, str] = field(default_factory=dict)
    earmarks: Mapping[str, str] = field(default_factory=dict)


class WaitReason(StrEnum):
    """The one dominant reason why a workload waits."""

    NO_FREE_GPUS = "no_free_gpus"
    SCATTERED = "scattered"
    PROMISED = "promised"
    FITTING_NODE = "fitting_node"
    NO_NODE_FITS = "no_node_fits"
    TEAM_LIMIT = "team_limit"
    PRIORITY_LIMIT = "priority_limit"
    GUARANTEED = "guaranteed"
    RESERVED = "reserved"
    HEADROOM = "headroom"
    TOO_LARGE = "too_large"
    BEING_FREED = "being_freed"
    PREEMPTION_PAUSED = "preemption_paused"
    NO_READY_NODE = "no_ready_node"
    STILL_LEAVING = "still_leaving"
    RETRY_LATER = "retry_later"


class PreemptionReason(StrEnum):
    """Why a running workload has to yield."""

    IDLE = "idle"
    OUTRANKED = "outranked"
    UNALLOCATED = "unallocated"
    GUARANTEE = "guarantee"
    TURN_ENDED = "turn_ended"
    RETURNING_SESSION = "returning_session"


DEBUG_SECONDS: Final = 900.0
DEBUG_GPUS: Final = 2
"""Work that asks for no more than this is debug work."""


def is_debug(protection: float, gpus: int) -> bool:
    """Whether work with so many seconds of protection and GPUs is short and small."""
    return 0 < protection <= DEBUG_SECONDS and gpus <= DEBUG_GPUS


@dataclass(frozen=True, slots=True)
class Pending:
    """A queued workload. `since` orders FIFO; `returning` is a suspended session that comes back;
    `demands` are what its snapshot asks of a machine; `blocked` names a reason outside the planner's
    reach.

    `min_runtime` (seconds) is the protection that it asks for: with one it is allocated work, which
    its team's budget pays; without, it runs on slack and yields first. It ends by itself after
    `max_runtime` seconds at most. `models` and `clusters` are where it may run; empty means anywhere.
    `attempts` counts how often it was placed before, `yielded_to` are those to which it did in the
    last 24 hours: it never makes them yield in turn."""

    id: str
    team: str
    gpus: int
    nodes: int
    priority: int
    since: float
    returning: bool = False
    demands: Mapping[str, str] = field(default_factory=dict)
    blocked: WaitReason | None = None
    blocked_evidence: Mapping[str, Any] = field(default_factory=dict)
    user: str = ""
    min_runtime: float = 0.0
    max_runtime: float = inf
    models: tuple[str, ...] = ()
    clusters: tuple[str, ...] = ()
    attempts: int = 0
    yielded_to: tuple[str, ...] = ()

    @property
    def is_allocated(self) -> bool:
        """Whether its team's budget pays for it."""
        return self.min_runtime > 0

    @property
    def stays(self) -> float:
        """For how many seconds after its start nobody may have its GPUs."""
        return min(self.min_runtime, self.max_runtime)

    @property
    def is_debug(self) -> bool:
        """Short and small: somebody sits there and waits for it."""
        return is_debug(self.stays, self.gpus * self.nodes)


@dataclass(frozen=True, slots=True)
class Running:
    """A workload that holds GPUs. `yields_from` is the time from which it may be asked to yield
    (end of its protection, or of the pause after a failed suspend); `leaving` means it was asked.

    `saved_at` is when it last reported a checkpoint (sessions: when it was last suspended), None if it
    never did; `restore_seconds` is what bringing it back takes, on each of its GPUs. `ends_by` is when
    it ends by itself at the latest. `preemptions` counts those of the last 24 hours."""

    id: str
    kind: Kind
    team: str
    gpus: tuple[str, ...]
    priority: int
    since: float
    preemptible: bool = True
    idle_since: float | None = None
    yields_from: float = 0.0
    leaving: bool = False
    user: str = ""
    is_allocated: bool = True
    saved_at: float | None = None
    restore_seconds: float = 20.0
    ends_by: float = inf
    preemptions: int = 0


@dataclass(frozen=True, slots=True)
class TeamRules:
    """What one team may have and is owed, all of it including its sub-teams.

    `limit` is how many GPUs it may hold at once, `priority_limits` the same for work of one priority
    (and above it); None is no limit. `guaranteed` GPUs are its own: it gets them back at once, and
    they are lent only to work without protection, at most `lending_limit` of them. It may hold at most
    `borrowing_limit` GPUs above them. `balance` is owed minus delivered GPU-seconds, `share` its part
    of the fleet's GPU time between 0 and 1."""

    limit: int | None = None
    priority_limits: Mapping[int, int] = field(default_factory=dict)
    guaranteed: int = 0
    lending_limit: int | None = None
    borrowing_limit: int | None = None
    balance: float = 0.0
    share: float = 0.0


@dataclass(frozen=True, slots=True)
class Rules:
    """Limits, budgets and habits. A team that is not named has `default_team_limit` (None: no limit).
    What sub-teams hold counts to the limits of the team above them, which `parents` names.

    Work of a team that is owed more may end the turn of another's only if its balance is larger by
    `slice_margin` GPU-seconds per GPU that it asks for, and if what is lost with the turn is at most
    `turn_loss` of it (of who never reported a checkpoint: if it had its protection twice). Work without
    protection is left alone for its first `slack_turn` seconds, except by guaranteed claims. Nobody is
    preempted more than `max_preemptions` times in 24 hours, and one pass costs others at most
    `loss_budget` GPU-seconds of work, guaranteed claims apart. `reservations` is how many blocked
    gangs get one, one of each team. `headroom` GPUs are left free for debug work."""

    team_limits: Mapping[str, int] = field(default_factory=dict)
    default_team_limit: int | None = None
    preemption: bool = True
    teams: Mapping[str, TeamRules] = field(default_factory=dict)
    parents: Mapping[str, str] = field(default_factory=dict)
    slice_margin: float = 900.0
    turn_loss: float = 0.01
    slack_turn: float = 300.0
    max_preemptions: int = 6
    loss_budget: float = inf
    reservations: int = 16
    headroom: int = 0

    def limit_of(self, team: str) -> int | None:
        """GPUs that the team may hold at once."""
        return self.team_limits.get(team, self.default_team_limit)


@dataclass(frozen=True, slots=True)
class Assignment:
    """GPUs on one node."""

    node: str
    gpus: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Placement:
    """A whole gang, one assignment per node."""

    id: str
    assignments: tuple[Assignment, ...]

    @property
    def gpus(self) -> tuple[str, ...]:
        """All its GPUs."""
        return tuple(gpu for assignment in self.assignments for gpu in assignment.gpus)


@dataclass(frozen=True, slots=True)
class Preemption:
    """`victim` is to yield to `preemptor`."""

    victim: str
    preemptor: str
    reason: PreemptionReason


@dataclass(frozen=True, slots=True)
class Wait:
    """Why a workload was not placed. `position` 1 is considered first."""

    id: str
    position: int
    reason: WaitReason
    evidence: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do now. `earmarks` replaces the fleet's. `stuck` are the kinds of waiting work (see
    `columns.Group`) of which nothing can be placed until something ends or may be preempted;
    `reservations` (`columns.Reservation`) are for the first of those that wait for much. An `unfinished` plan has not
    looked at everybody. `lost` are the GPU-seconds of work that the preemptions cost."""

    placements: tuple[Placement, ...] = ()
    preemptions: tuple[Preemption, ...] = ()
    waits: tuple[Wait, ...] = ()
    earmarks: Mapping[str, str] = field(default_factory=dict)
    stuck: frozenset[Any] = frozenset()
    reservations: tuple[Any, ...] = ()
    unfinished: bool = False
    lost: float = 0.0
