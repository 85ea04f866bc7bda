"""What of a workload counts for the ledger, and how events change it, forwards and backwards.

Going back from what is known now tells how things stood at an earlier event, so that nothing has to be
stored beside the events themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from scheduler_bridge.model.phases import HOLDS_LEASE, TERMINAL, Phase
from scheduler_bridge.model.usage import MILLI
from scheduler_bridge.model.workload import Event, Workload, WorkloadSpec
from scheduler_bridge.policy.ledger import Holding, Waiting
from scheduler_bridge.store.base import LeaseRecord

BIRTHS: Final = frozenset({"submitted", "forked"})
TICK: Final = 10
_KINDS: Final = BIRTHS | {"phase", "lease_released", "idle", "busy", "team"}
_PLACED: Final = frozenset({Phase.STARTING, Phase.RESUMING})
_ON_ITS_WAY: Final = frozenset({Phase.SUSPENDING, Phase.PARKED, Phase.PREEMPTING})


def milliseconds(at: float) -> int:
    """UNIX seconds in whole milliseconds, to the hundredth of a second: what changes within it is one
    change, so that counting costs little however much is decided at once."""
    return round(at * MILLI / TICK) * TICK


@dataclass(frozen=True, slots=True)
class LeaseTrack:
    """GPUs (in thousandths) held since `granted` (milliseconds)."""

    epoch: int
    granted: int
    gpus: int

    @classmethod
    def of(cls, record: LeaseRecord) -> LeaseTrack:
        """What counts of a lease."""
        lease = record.lease
        return cls(lease.epoch, milliseconds(lease.granted_at), len(lease.gpus) * MILLI)


@dataclass(frozen=True, slots=True)
class Track:
    """A workload as the ledger sees it. `wanted` is in thousandths of a GPU."""

    team: str
    user: str
    wanted: int
    protection: int
    preemptible: bool
    phase: Phase
    is_idle: bool = False
    leases: tuple[LeaseTrack, ...] = ()

    @classmethod
    def of(
        cls,
        spec: WorkloadSpec,
        phase: Phase,
        *,
        is_idle: bool = False,
        leases: Iterable[LeaseRecord] = (),
    ) -> Track:
        """What counts of a workload."""
        return cls(
            spec.team,
            spec.user,
            spec.gpus * spec.nodes * MILLI,
            milliseconds(spec.min_runtime_seconds),
            spec.preemptible,
            phase,
            is_idle,
            tuple(map(LeaseTrack.of, leases)),
        )

    @classmethod
    def of_workload(cls, workload: Workload, leases: Iterable[LeaseRecord] = ()) -> Track:
        """As it is now."""
        is_idle = workload.idleness.since is not None
        return cls.of(workload.spec, workload.phase, is_idle=is_idle, leases=leases)

    @property
    def is_over(self) -> bool:
        """Whether nothing can come of it any more."""
        return self.phase in TERMINAL and not self.leases

    @property
    def holdings(self) -> Iterator[tuple[str, Holding]]:
        """What it holds, by names that differ within it; and what it gave back."""
        leaves = self.phase in _ON_ITS_WAY or self.phase not in HOLDS_LEASE
        for lease in self.leases:
            yield (
                str(lease.epoch),
                Holding(
                    self.team,
                    self.user,
                    lease.gpus,
                    is_allocated=self.protection > 0,
                    is_idle=self.is_idle,
                    is_suspended=leaves,
                    interruptible_from=lease.granted + self.protection
                    if self.preemptible
                    else None,
                ),
            )
        if self.phase is Phase.SUSPENDED and not self.leases:
            yield "given back", Holding(self.team, self.user, self.wanted, is_given_back=True)

    @property
    def waiting(self) -> Waiting | None:
        """What it waits for above what it still holds."""
        missing = self.wanted - sum(lease.gpus for lease in self.leases)
        return Waiting(self.team, missing) if self.phase is Phase.QUEUED and missing > 0 else None


def counts(event: Event) -> bool:
    """Whether it may change what the ledger sees of its workload."""
    return event.kind in _KINDS and bool(event.workload_id)


def _places(event: Event) -> bool:
    """Whether it came with a new lease."""
    is_start = event.source == Phase.QUEUED and event.target in _PLACED
    return is_start and "gpus" in event.evidence and "epoch" in event.evidence


def after(track: Track, event: Event) -> Track:
    """The track once this has happened. Not for `BIRTHS`."""
    if event.kind == "phase":
        moved = replace(track, phase=Phase(event.target))
        if not _places(event):
            return moved
        gpus = len(event.evidence["gpus"]) * MILLI
        lease = LeaseTrack(int(event.evidence["epoch"]), milliseconds(event.at), gpus)
        return replace(moved, leases=(*track.leases, lease), is_idle=False)
    if event.kind == "lease_released":
        return replace(track, leases=_without(track, int(event.evidence["epoch"])))
    if event.kind == "team":
        return replace(track, team=event.target)
    return replace(track, is_idle=event.kind == "idle")


def before(track: Track, event: Event, lease_of: Callable[[str], LeaseRecord | None]) -> Track:
    """The track before this happened. Not for `BIRTHS`."""
    if event.kind == "phase":
        moved = replace(track, phase=Phase(event.source))
        if not _places(event):
            return moved
        return replace(moved, leases=_without(track, int(event.evidence["epoch"])))
    if event.kind == "lease_released":
        record = lease_of(str(event.evidence["lease"]))
        given = () if record is None else (LeaseTrack.of(record),)
        return replace(track, leases=(*track.leases, *given))
    if event.kind == "team":
        return replace(track, team=event.source)
    return replace(track, is_idle=event.kind == "busy")


def _without(track: Track, epoch: int) -> tuple[LeaseTrack, ...]:
    return tuple(lease for lease in track.leases if lease.epoch != epoch)
