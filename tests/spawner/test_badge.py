"""Whether a session can be suspended, in words."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler_bridge.model.phases import Phase
from snapshot.inspection.verdict import Verdict
from snapshot.model import Blocker
from spawner.badge import UNKNOWN, outlook
from spawner.supervisor.signals import Heard, compose, describe
from tests.spawner.test_pages_view import NOW, session, shown

RING = Blocker(7, "node build.js", "it uses io_uring", "Turn it off.")
MACHINE = Blocker(0, "", "this machine cannot", "Ask the administrator.")


def signals(*blockers: Blocker, **cost: Any) -> dict[str, Any]:
    """As a supervisor sends them."""
    verdict = Verdict(blockers, **cost)
    return compose(
        NOW, Heard(), cpu_seconds=None, blockers=verdict.blockers, verdict=verdict
    ).as_dict()


def test_a_session_that_can_be_suspended_says_what_it_costs() -> None:
    found = outlook(signals(bytes=1_250_000_000, seconds=7.9, outside=2), age_seconds=10)
    assert found.can is True
    assert found.sentence == (
        "Can be suspended: 1.2 GB of memory, 8 s at most if all of it is new. "
        "2 connections to outside will close."
    )


@pytest.mark.parametrize(("count", "said"), [(0, ""), (1, "One connection")])
def test_connections_are_told_if_there_are_any(count: int, said: str) -> None:
    sentence = outlook(signals(bytes=1, seconds=1, outside=count), age_seconds=0).sentence
    assert ("connection" in sentence) is bool(said)
    assert said in sentence


def test_a_session_that_cannot_says_who_is_in_the_way_and_what_helps() -> None:
    found = outlook(signals(RING, MACHINE), age_seconds=0)
    assert found.can is False
    assert found.sentence == (
        "Cannot be suspended. node build.js (process 7): it uses io_uring. Turn it off. (and 1 more)"
    )
    assert found.reasons[1] == "This machine cannot. Ask the administrator."


@pytest.mark.parametrize(
    ("said", "age"),
    [
        ({}, 0),
        ({"freezable": "yes"}, 0),
        ({"freezable": None}, 0),
        ({"freezable": True}, 3600),
    ],
)
def test_what_is_not_known_is_not_claimed(said: dict[str, Any], age: float) -> None:
    assert outlook(said, age_seconds=age) == UNKNOWN


def test_odd_values_do_no_harm() -> None:
    odd = {"suspend_bytes": "many", "suspend_seconds": float("inf"), "closing_connections": -1}
    assert outlook({"freezable": True, **odd}, age_seconds=0).sentence == "Can be suspended."
    refused = outlook({"freezable": False, "blockers": [3, None]}, age_seconds=0)
    assert refused.sentence == "Cannot be suspended. Something in it cannot be saved."


def test_a_blocker_is_one_sentence_whether_or_not_it_ends_with_a_stop() -> None:
    assert describe(Blocker(7, "x", "it hangs.", "Wait.")) == "x (process 7): it hangs. Wait."
    assert describe(Blocker(7, "x", "it hangs")) == "x (process 7): it hangs."


def test_the_home_page_tells_it_of_running_sessions_only() -> None:
    told = signals(RING)
    running = shown(session(Phase.RUNNING, signals=told, signals_at=NOW - 5))
    assert running.can_suspend is False
    assert "io_uring" in running.suspend_outlook
    suspended = shown(session(Phase.SUSPENDED, signals=told, signals_at=NOW - 5))
    assert (suspended.can_suspend, suspended.suspend_outlook) == (None, "")
    assert shown(session(Phase.RUNNING)).can_suspend is None
