"""Events of one workload -> what happened when, and how long it took (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from scheduler_bridge.model.workload import Event


@dataclass(frozen=True, slots=True)
class Step:
    """One event. `seconds` is how long the phase that it led to lasted, None while it still does
    and for events that lead to no phase."""

    at: float
    what: str
    cause: str
    actor: str
    seconds: float | None


def timeline(events: Iterable[Event]) -> tuple[Step, ...]:
    """The steps, oldest first. A phase lasts until the next event that names a new one."""
    ordered = sorted(events, key=lambda event: event.id)
    moves = [event for event in ordered if event.target and event.target != event.source]
    ends = {move.id: later.at for move, later in pairwise(moves)}
    return tuple(_step(event, ends) for event in ordered)


def time_in_phases(events: Sequence[Event], now: float) -> dict[str, float]:
    """Seconds spent in each phase until now, in the order in which the phases were first entered."""
    ordered = sorted(events, key=lambda event: event.id)
    moves = [event for event in ordered if event.target and event.target != event.source]
    spent: dict[str, float] = {}
    for index, move in enumerate(moves):
        end = moves[index + 1].at if index + 1 < len(moves) else now
        spent[move.target] = spent.get(move.target, 0.0) + max(0.0, end - move.at)
    return spent


def _step(event: Event, ends: dict[int, float]) -> Step:
    end = ends.get(event.id)
    moved = bool(event.target) and event.target != event.source
    what = f"{event.source} → {event.target}" if moved and event.source else event.target
    return Step(
        at=event.at,
        what=what if moved else event.kind,
        cause=event.cause,
        actor=event.actor,
        seconds=end - event.at if end is not None else None,
    )
