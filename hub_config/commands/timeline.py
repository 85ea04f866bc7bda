"""Events of one workload -> what happened when, and how long it took (pure)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise, zip_longest
from typing import Final

from scheduler_bridge.model.phases import TERMINAL
from scheduler_bridge.model.workload import Event

MOVES: Final = frozenset({"submitted", "phase"})
"""Kinds of events that name a phase; others (a wish, a lease) happen within one."""


@dataclass(frozen=True, slots=True)
class Step:
    """One event. `seconds` is how long the phase that it led to lasted, None while it still does
    and for events that lead to no phase. `times` counts equal events one after the other."""

    at: float
    what: str
    cause: str
    actor: str
    seconds: float | None
    times: int = 1


def timeline(events: Iterable[Event]) -> tuple[Step, ...]:
    """The steps, oldest first. A phase lasts until the next event that names a new one."""
    ordered = sorted(events, key=lambda event: event.id)
    moves = _moves(ordered)
    ends = {move.id: later.at for move, later in pairwise(moves)}
    return _folded(_step(event, ends) for event in ordered)


def _folded(steps: Iterable[Step]) -> tuple[Step, ...]:
    """The same, with what merely repeats told once, at the time of the first."""
    folded: list[Step] = []
    for step in steps:
        last = folded[-1] if folded else None
        if last is not None and last.seconds is None and _says_the_same(last, step):
            folded[-1] = replace(last, times=last.times + 1)
        else:
            folded.append(step)
    return tuple(folded)


def _says_the_same(one: Step, other: Step) -> bool:
    return (one.what, one.cause, one.actor) == (other.what, other.cause, other.actor)


def time_in_phases(events: Iterable[Event], now: float) -> dict[str, float]:
    """Seconds spent in each phase until now, in the order in which the phases were first entered.
    What has ended is not counted further."""
    moves = _moves(sorted(events, key=lambda event: event.id))
    ends = [move.at for move in moves[1:]]
    spent: dict[str, float] = {}
    for move, end in zip_longest(moves, ends, fillvalue=None):
        if move is None or (end is None and move.target in TERMINAL):
            continue
        seconds = max(0.0, (now if end is None else end) - move.at)
        spent[move.target] = spent.get(move.target, 0.0) + seconds
    return spent


def _moves(ordered: Iterable[Event]) -> list[Event]:
    return [event for event in ordered if event.kind in MOVES and event.target]


def _step(event: Event, ends: dict[int, float]) -> Step:
    moved = event.kind in MOVES and bool(event.target)
    between = " → ".join(part for part in (event.source, event.target) if part)
    end = ends.get(event.id)
    return Step(
        at=event.at,
        what=between if moved else f"{event.kind} {event.target}".strip().replace("_", " "),
        cause=event.cause,
        actor=event.actor,
        seconds=end - event.at if end is not None else None,
    )
