"""The table of moves is complete and consistent with the rest of the model."""

from __future__ import annotations

import pytest

from scheduler_bridge.model.phases import (
    DEADLINES,
    HOLDS_LEASE,
    LEGAL_MOVES,
    TERMINAL,
    Kind,
    Phase,
    is_legal,
)
from scheduler_bridge.policy.values import WaitReason
from scheduler_bridge.policy.wording import wait_remedy, wait_sentence


@pytest.mark.parametrize("kind", Kind)
def test_every_phase_that_can_be_reached_can_be_left_or_is_an_end(kind: Kind) -> None:
    reached = {Phase.QUEUED}
    while more := {t for s in reached for t in LEGAL_MOVES[kind].get(s, ())} - reached:
        reached |= more
    assert reached >= set(LEGAL_MOVES[kind])
    for phase in reached:
        assert (phase in TERMINAL) != bool(LEGAL_MOVES[kind].get(phase))


@pytest.mark.parametrize("kind", Kind)
def test_deadlines_end_in_a_legal_move(kind: Kind) -> None:
    for phase, deadline in DEADLINES[kind].items():
        assert is_legal(kind, phase, deadline.outcome)
        assert deadline.seconds > 0


def test_ended_workloads_hold_no_lease() -> None:
    assert not TERMINAL & HOLDS_LEASE


EVIDENCE = {
    "needed": 2,
    "free": 0,
    "team": "red",
    "teams": ["red", "blue"],
    "headroom": 4,
    "limit": 1,
    "used": 1,
    "largest": 4,
    "gpus": 1,
    "from": ["a"],
    "would_yield": ["a", "b"],
    "needs": ["NVIDIA L4", "CRIU 4.2 or newer"],
    "machines": ["n0", "n1"],
    "lacks": {"n0": {"CRIU 4.2 or newer": "4.1"}, "n1": {"NVIDIA L4": ""}},
}


@pytest.mark.parametrize("reason", WaitReason)
def test_every_reason_has_words_and_a_remedy(reason: WaitReason) -> None:
    for text in (wait_sentence(reason, EVIDENCE), wait_remedy(reason)):
        assert not text[0].islower() and text.endswith(".")
        assert "{" not in text
