"""What the planner takes care of over many passes."""

from __future__ import annotations

from math import inf
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_bridge.agent.inventory import virtual_gpus
from scheduler_bridge.engine import cycle
from scheduler_bridge.engine.settings import ManualClock, Settings
from scheduler_bridge.inprocess import InProcessScheduler
from scheduler_bridge.model.phases import Desired, Phase
from scheduler_bridge.model.workload import Node
from scheduler_bridge.policy.habits import Habits, LossBucket
from tests.builders.scheduler import job

HABITS = Habits()


@pytest.mark.parametrize(
    ("capacity", "debug", "free"),
    [(4, 4, 0), (63, 10, 0), (1000, 0, 5), (1000, 16, 8), (1000, 400, 25), (16000, 0, 80)],
)
def test_what_is_left_free_follows_the_debug_work_that_runs(
    capacity: int, debug: int, free: int
) -> None:
    assert HABITS.free_for_debug(capacity, debug) == free


def test_what_may_be_lost_adds_up_and_is_kept_for_a_while() -> None:
    bucket = LossBucket(HABITS)
    assert bucket.allowance(0.0, 1000, 1000) == 0.0
    assert bucket.allowance(100.0, 1000, 1000) == pytest.approx(600.0)
    bucket.spend(500.0)
    assert bucket.allowance(100.0, 1000, 1000) == pytest.approx(100.0)
    assert bucket.allowance(1e9, 1000, 1000) == pytest.approx(0.006 * 1000 * 4 * 3600)


def test_guaranteed_claims_are_made_up_for_by_others() -> None:
    bucket = LossBucket(HABITS)
    bucket.allowance(0.0, 1000, 1000)
    bucket.spend(900.0)
    assert bucket.allowance(100.0, 1000, 1000) == 0.0
    assert bucket.allowance(200.0, 1000, 1000) == pytest.approx(300.0)


def test_a_handful_of_gpus_has_no_budget() -> None:
    assert LossBucket(HABITS).allowance(0.0, 8, 8) == inf


@given(st.lists(st.tuples(st.floats(0, 1e5), st.integers(0, 1000), st.floats(0, 1)), max_size=30))
def test_no_more_is_lost_than_the_part_of_what_was_used(
    steps: list[tuple[float, int, float]],
) -> None:
    bucket, now, lost, used = LossBucket(HABITS), 0.0, 0.0, 0.0
    bucket.allowance(now, 1000, 0)
    for passed, held, part in steps:
        now, used = now + passed, used + held * passed
        cost = bucket.allowance(now, 1000, held) * part
        bucket.spend(cost)
        lost += cost
    assert lost <= HABITS.losses * used * (1 + 1e-9) + 1e-6


def machines(count: int) -> tuple[Node, ...]:
    return tuple(
        Node(name, virtual_gpus(8, Path("/dev"), node=name, mark=name))
        for name in (f"n{n}" for n in range(count))
    )


async def test_the_engine_leaves_the_last_gpus_to_debug_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plugin = InProcessScheduler(nodes=machines(25), clock=ManualClock())
    for number in range(200):
        await plugin.submit(job(), key=f"job{number}")
    (waiting,) = [w for w in await plugin.list() if w.phase is Phase.QUEUED]
    assert (await plugin.why(waiting.id)).reason == "headroom"
    monkeypatch.setattr(cycle, "EXPLAINED_AT_ONCE", -1)  # told when asked, by the same rules
    plugin.advance(1.0)
    assert (await plugin.why(waiting.id)).reason == "headroom"
    (first, *_) = await plugin.what_if(job())
    assert first.outcome == "waits" and first.reason == "headroom"
    debug = await plugin.submit(job(min_runtime_seconds=600.0), key="debug")
    assert (await plugin.get(debug.id)).phase is Phase.STARTING
    await plugin.aclose()


@pytest.mark.parametrize(("losses", "asked"), [(0.006, 0), (0.5, 1)])
async def test_the_engine_lets_no_more_be_lost_than_was_saved_up(losses: float, asked: int) -> None:
    plugin = InProcessScheduler(
        nodes=machines(25), clock=ManualClock(), settings=Settings(habits=Habits(losses))
    )
    for number in range(24):
        slack = await plugin.submit(job(gpus=8), key=f"job{number}")
        grant = await plugin.take(slack.id)
        lease = grant.lease.id
        await plugin.move(lease, grant.credential, Phase.RUNNING, cause="test")
    await plugin.submit(job(gpus=6), key="more")  # leaves two GPUs, one of them for debug work
    # One machine has to be emptied. Each has run for 300 s and loses 8 * 320 GPU-seconds.
    await plugin.submit(job(gpus=8, min_runtime_seconds=3600.0), key="paid")
    plugin.advance(300.0)
    yielding = [w for w in await plugin.list() if w.desired is Desired.SUSPENDED]
    assert len(yielding) == asked
    await plugin.aclose()
