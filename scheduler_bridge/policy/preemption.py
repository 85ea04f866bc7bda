"""Who has to yield. Only called when nothing fits; returns victims only for a full placement.

Candidates, in this order:
1. idle preemptible sessions of any team, longest idle first: suspending them loses nothing;
2. preemptible jobs of the same team that the waiting workload outranks, lowest priority first, the
   youngest first among equals: the least work is lost. A session that comes back outranks jobs of
   its own priority.
Nobody is a victim before `yields_from`, and nobody twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from scheduler_bridge.model.phases import Kind
from scheduler_bridge.policy.values import Assignment, Pending, PreemptionReason, Running


@dataclass(frozen=True, slots=True)
class Candidate:
    """A running workload that may be asked to yield, and why it."""

    running: Running
    reason: PreemptionReason


def candidates(item: Pending, running: Iterable[Running], now: float) -> list[Candidate]:
    """All that may yield to `item`, in the order in which they are taken."""
    found = []
    for other in running:
        reason = _reason(item, other, now)
        if reason is not None:
            found.append(Candidate(other, reason))
    return sorted(found, key=_order)


def _reason(item: Pending, other: Running, now: float) -> PreemptionReason | None:
    if other.leaving or not other.preemptible or not other.gpus or other.yields_from > now:
        return None
    if other.kind is Kind.SESSION:
        return PreemptionReason.IDLE if other.idle_since is not None else None
    if other.team != item.team:
        return None
    if other.priority < item.priority:
        return PreemptionReason.OUTRANKED
    if item.returning and other.priority == item.priority:
        return PreemptionReason.RETURNING_SESSION
    return None


def _order(candidate: Candidate) -> tuple[int, float, float, str]:
    other = candidate.running
    if candidate.reason is PreemptionReason.IDLE:
        return (0, other.idle_since or 0.0, other.since, other.id)
    return (1, float(other.priority), -other.since, other.id)


Simulation = Callable[[Sequence[Running]], tuple[Assignment, ...] | None]
"""The placement that would result if these were gone, or None."""


def choose_victims(
    found: Sequence[Candidate], simulate: Simulation
) -> tuple[list[Candidate], tuple[Assignment, ...]] | None:
    """A minimal set of victims and the placement it makes possible, or None.

    Takes candidates in order until the gang fits, then gives back in reverse all that are not
    needed: no victim can be spared from the result.
    """
    if not found or simulate([entry.running for entry in found]) is None:
        return None  # not even with all of them: spare the search
    taken: list[Candidate] = []
    for candidate in found:
        taken.append(candidate)
        if simulate([entry.running for entry in taken]) is not None:
            break
    for candidate in reversed(taken[:-1]):
        fewer = [entry for entry in taken if entry is not candidate]
        if simulate([entry.running for entry in fewer]) is not None:
            taken = fewer
    placement = simulate([entry.running for entry in taken])
    return None if placement is None else (taken, placement)
