"""What happens in one round: a pure function of seed and number."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Final


class Fault(StrEnum):
    """What may break. The names say who is hit, or what becomes of the node cache."""

    SUPERVISOR = "supervisor killed"
    CRIU = "CRIU killed"
    FILLER = "filler killed"
    GUARD = "guard killed"
    HOLDERS = "filler and supervisor killed"
    SCHEDULER = "scheduler killed"
    STORE = "S3 server killed"
    SLOW_STORE = "S3 server stops and goes on, again and again"
    CACHE_GONE = "node cache deleted"
    CACHE_DAMAGED = "a cached pack is damaged"
    CACHE_FULL = "the node cache's disk is full"


class Move(StrEnum):
    """What the user of a session does."""

    COMPUTE = "compute"
    SUSPEND = "suspend"
    RESUME = "resume"


ANYWHERE: Final = (
    Fault.SUPERVISOR,
    Fault.SCHEDULER,
    Fault.STORE,
    Fault.SLOW_STORE,
    Fault.CACHE_GONE,
)
HITS: Final = {
    Move.COMPUTE: (Fault.SUPERVISOR, Fault.SCHEDULER),
    Move.SUSPEND: (*ANYWHERE, Fault.CRIU, Fault.CACHE_FULL),
    Move.RESUME: (
        *ANYWHERE,
        Fault.CRIU,
        Fault.FILLER,
        Fault.GUARD,
        Fault.HOLDERS,
        Fault.CACHE_DAMAGED,
    ),
}
"""Which faults may strike during which move: those that can meet something then."""

CHANCE: Final = {Move.COMPUTE: 0.2, Move.SUSPEND: 0.7, Move.RESUME: 0.9}
SECOND_CHANCE: Final = 0.4
"""That another fault strikes during the same move."""

CYCLE: Final = (Move.COMPUTE, Move.SUSPEND, Move.RESUME)
CYCLES: Final = 2
USERS: Final = ("alice", "bob")
MEGABYTES: Final = (30, 60)


@dataclass(frozen=True, slots=True)
class Strike:
    """One fault, so many seconds after its move began, or after its victim has appeared."""

    fault: Fault
    delay: float


@dataclass(frozen=True, slots=True)
class Step:
    """One move, and what strikes meanwhile."""

    move: Move
    strikes: tuple[Strike, ...] = ()


@dataclass(frozen=True, slots=True)
class Play:
    """One session's round. `size` is what its memory holds, in bytes."""

    user: str
    size: int
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """One round. `job_delay` is when a job for one GPU comes, in seconds."""

    name: str
    plays: tuple[Play, ...]
    job_delay: float

    def faults(self) -> tuple[Fault, ...]:
        """All that strikes, session by session."""
        steps = [step for play in self.plays for step in play.steps]
        return tuple(strike.fault for step in steps for strike in step.strikes)


QUIET: Final = (Step(Move.SUSPEND), Step(Move.RESUME), Step(Move.COMPUTE))
"""How each play ends: after all that, a session can still do everything."""


def plan(seed: int, number: int, *, cycles: int = CYCLES) -> Plan:
    """The round of that number, in which each session is suspended and resumed so often before
    everything is quiet."""
    random = Random(f"{seed}/{number}")
    plays = tuple(
        Play(user, random.randint(*MEGABYTES) * 10**6, (*_steps(random, cycles), *QUIET))
        for user in USERS
    )
    return Plan(f"{seed}/{number}", plays, job_delay=random.uniform(0, 30 * cycles))


def _steps(random: Random, cycles: int) -> list[Step]:
    return [Step(move, _strikes(random, move)) for _ in range(cycles) for move in CYCLE]


def _strikes(random: Random, move: Move) -> tuple[Strike, ...]:
    if random.random() >= CHANCE[move]:
        return ()
    count = 2 if random.random() < SECOND_CHANCE else 1
    faults = random.sample(HITS[move], count)
    return tuple(Strike(fault, _delay(random)) for fault in faults)


def _delay(random: Random) -> float:
    """Mostly at once, where the short steps are; sometimes later."""
    return round(random.choice((0.0, 0.05, 0.3, 1.5)) * random.random(), 3)
