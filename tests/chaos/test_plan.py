"""A round is a pure function of seed and number, and strikes only where something can be hit."""

from __future__ import annotations

import pytest

from tests.chaos.plan import HITS, MEGABYTES, QUIET, Fault, Move, plan

F = Fault
ROUNDS = [
    (
        1,
        0,
        (
            F.SCHEDULER,
            F.CACHE_DAMAGED,
            F.HOLDERS,
            F.SLOW_STORE,
            F.GUARD,
            F.CACHE_GONE,
            F.CACHE_FULL,
            F.SLOW_STORE,
        ),
    ),
    (
        2,
        0,
        (
            F.GUARD,
            F.SUPERVISOR,
            F.SUPERVISOR,
            F.SCHEDULER,
            F.CRIU,
            F.CACHE_GONE,
            F.STORE,
            F.SCHEDULER,
        ),
    ),
    (7, 3, (F.CACHE_FULL, F.SUPERVISOR, F.HOLDERS, F.CRIU, F.CACHE_FULL)),
]


@pytest.mark.parametrize(("seed", "number", "faults"), ROUNDS)
def test_the_same_seed_and_number_give_the_same_round(
    seed: int, number: int, faults: tuple[Fault, ...]
) -> None:
    assert plan(seed, number).faults() == faults
    assert plan(seed, number) == plan(seed, number)


def test_every_fault_strikes_sooner_or_later() -> None:
    struck = {fault for number in range(20) for fault in plan(1, number).faults()}
    assert struck == set(Fault)


def test_faults_strike_only_during_moves_in_which_they_can_meet_something() -> None:
    steps = [s for n in range(50) for play in plan(3, n).plays for s in play.steps]
    assert all(strike.fault in HITS[step.move] for step in steps for strike in step.strikes)
    assert max(strike.delay for step in steps for strike in step.strikes) > 0.5


def test_every_play_computes_before_it_sleeps_and_ends_in_quiet() -> None:
    for play in plan(4, 0).plays:
        assert play.steps[0].move is Move.COMPUTE
        assert play.steps[-len(QUIET) :] == QUIET
        assert MEGABYTES[0] * 10**6 <= play.size <= MEGABYTES[1] * 10**6
