"""The reclaimer's passes against a real scheduler in this process, with a clock of the test's."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from reclaimer.actions import ACTOR, NO_POLICY, Reclaimer
from reclaimer.policy import Suspend
from reclaimer.policy_file import PolicyFile
from scheduler_bridge.model.phases import Desired, Phase
from tests.reclaimer.bench import START, Bench, quiet, working


async def test_an_idle_session_is_announced_warned_and_suspended_after_two_minutes() -> None:
    bench = Bench()
    session = await bench.open_session()
    running = await bench.live(session, 100)
    assert running.desired is Desired.RUNNING
    assert running.idleness.since is not None
    due = running.idleness.suspend_at
    assert due == pytest.approx(START + 120, abs=4)
    assert "rule everybody suspends after 2m" in running.idleness.reason

    asked = await bench.live(session, 30)
    assert (asked.desired, asked.desired_by) == (Desired.SUSPENDED, ACTOR)
    assert "rule everybody" in asked.desired_reason


async def test_asking_again_and_again_changes_nothing() -> None:
    bench = Bench()
    session = await bench.open_session()
    asked = await bench.live(session, 140)
    assert asked.desired is Desired.SUSPENDED
    events = len(await bench.scheduler.history(session.id))
    for _ in range(5):
        await bench.look()
    assert len(await bench.scheduler.history(session.id)) == events
    assert (await bench.scheduler.get(session.id)).version == asked.version


async def test_a_busy_kernel_is_never_suspended() -> None:
    bench = Bench()
    session = await bench.open_session()
    for _ in range(300):
        bench.scheduler.advance(60)
        await bench.report(session.id, working(bench.now))
        await bench.look()
    found = await bench.scheduler.get(session.id)
    assert found.desired is Desired.RUNNING
    assert found.idleness.since is None
    assert "is running a cell" in found.idleness.reason


async def test_a_session_that_reports_nothing_is_never_suspended() -> None:
    bench = Bench()
    session = await bench.open_session()
    for _ in range(100):
        bench.scheduler.advance(5)
        await bench.look()
    found = await bench.scheduler.get(session.id)
    assert found.desired is Desired.RUNNING
    assert "not known to be idle" in found.idleness.reason


async def test_telemetry_that_stops_ends_the_countdown() -> None:
    bench = Bench()
    session = await bench.open_session()
    counting = await bench.live(session, 60)
    assert counting.idleness.suspend_at is not None
    for _ in range(60):
        bench.scheduler.advance(2)
        await bench.look()
    found = await bench.scheduler.get(session.id)
    assert found.desired is Desired.RUNNING
    assert found.idleness.suspend_at is None


async def test_a_supervisor_that_repeats_an_old_sample_does_not_make_it_idle() -> None:
    bench = Bench()
    session = await bench.open_session()
    old = quiet(bench.now)
    for _ in range(200):
        bench.scheduler.advance(2)
        await bench.report(session.id, old)
        await bench.look()
    assert (await bench.scheduler.get(session.id)).desired is Desired.RUNNING


async def test_after_a_resume_the_idle_time_starts_anew() -> None:
    bench = Bench()
    session = await bench.open_session()
    await bench.live(session, 140)
    await bench.freeze(session.id)
    bench.scheduler.advance(8 * 3600)
    await bench.scheduler.desire(session.id, Desired.RUNNING, actor="ada", reason="back again")
    back = await bench.thaw(session.id)
    resumed = bench.now

    early = await bench.live(back, 100)
    assert early.desired is Desired.RUNNING
    assert early.idleness.since is not None
    assert early.idleness.since >= resumed
    late = await bench.live(back, 40)
    assert late.desired is Desired.SUSPENDED


async def test_a_session_that_cannot_be_frozen_is_kept_and_says_why() -> None:
    bench = Bench()
    session = await bench.open_session()
    blockers = ["train.py (process 7): has an io_uring open"]
    found = await bench.live(session, 300, freezable=False, blockers=blockers)
    assert found.desired is Desired.RUNNING
    assert found.idleness.reason == f"it cannot be suspended: {blockers[0]}"


async def test_a_pause_keeps_everybody_and_its_end_is_followed_by_a_warning() -> None:
    bench = Bench()
    session = await bench.open_session()
    await bench.scheduler.pause("reclaim", seconds=600, reason="store moves", actor="root")
    paused = await bench.live(session, 580)
    assert paused.desired is Desired.RUNNING
    assert "paused by root: store moves" in paused.idleness.reason

    warned = await bench.live(session, 40)
    assert warned.desired is Desired.RUNNING
    assert warned.idleness.suspend_at == pytest.approx(START + 630, abs=4)
    assert (await bench.live(session, 20)).desired is Desired.SUSPENDED


async def test_a_wish_that_somebody_took_back_is_not_repeated_at_once() -> None:
    bench = Bench()
    session = await bench.open_session()
    asked = await bench.live(session, 140)
    assert asked.desired is Desired.SUSPENDED
    await bench.scheduler.desire(session.id, Desired.RUNNING, actor="ada", reason="still here")
    assert (await bench.live(session, 100)).desired is Desired.RUNNING
    assert (await bench.live(session, 40)).desired is Desired.SUSPENDED


async def test_our_own_wish_is_withdrawn_when_somebody_works_again_before_it_began() -> None:
    bench = Bench()
    session = await bench.open_session()
    await bench.live(session, 140)
    bench.scheduler.advance(2)
    await bench.report(session.id, working(bench.now))
    await bench.look()
    found = await bench.scheduler.get(session.id)
    assert (found.desired, found.desired_by) == (Desired.RUNNING, ACTOR)


async def test_a_wish_of_somebody_else_is_not_withdrawn() -> None:
    bench = Bench()
    session = await bench.open_session()
    await bench.scheduler.desire(session.id, Desired.SUSPENDED, actor="ada", reason="going home")
    await bench.report(session.id, working(bench.now))
    await bench.look()
    assert (await bench.scheduler.get(session.id)).desired is Desired.SUSPENDED


async def test_a_suspend_that_failed_is_tried_again_only_after_another_idle_time() -> None:
    bench = Bench()
    session = await bench.open_session()
    await bench.live(session, 140)
    await bench.move(session.id, Phase.SUSPENDING)
    await bench.move(session.id, Phase.RUNNING, evidence={"error": "the store is full"})
    assert (await bench.live(session, 100)).desired is Desired.RUNNING
    assert (await bench.live(session, 60)).desired is Desired.SUSPENDED


async def test_a_new_reclaimer_goes_on_with_the_countdown_of_the_one_before() -> None:
    bench = Bench()
    session = await bench.open_session()
    before = await bench.live(session, 100)
    bench.reclaimer = Reclaimer(bench.scheduler, bench.policy_file)
    after = await bench.live(session, 40)
    assert after.idleness.since == before.idleness.since
    assert (await bench.live(session, 30)).desired is Desired.SUSPENDED


async def test_one_session_of_many_is_suspended_and_jobs_are_left_alone() -> None:
    bench = Bench()
    ada = await bench.open_session("ada")
    bob = await bench.open_session("bob", gpus=0)
    for _ in range(70):
        bench.scheduler.advance(2)
        await bench.report(ada.id, quiet(bench.now))
        await bench.report(bob.id, working(bench.now))
        judged = await bench.look()
    assert [one.workload.spec.user for one in judged] == ["ada", "bob"]
    assert (await bench.scheduler.get(ada.id)).desired is Desired.SUSPENDED
    assert (await bench.scheduler.get(bob.id)).desired is Desired.RUNNING


async def test_what_is_published_does_not_change_while_nothing_changes() -> None:
    """Every change is written down; a countdown must not be one write per pass."""
    bench = Bench()
    session = await bench.open_session()
    before = await bench.live(session, 60)
    after = await bench.live(session, 50)
    assert before.idleness == after.idleness
    assert before.version == after.version


POLICY = "version: 1\nrules:\n  - name: quick\n    idle_after: {}\n    warn_before: 0\n"


async def test_a_changed_policy_is_taken_up_and_a_broken_one_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY.format("1h"))
    bench = Bench(PolicyFile(path))
    session = await bench.open_session()
    hour = await bench.live(session, 60)
    assert hour.idleness.suspend_at == pytest.approx(START + 3600, abs=4)

    path.write_text(POLICY.format("soon"))
    with caplog.at_level(logging.ERROR):
        kept = await bench.live(session, 20)
    assert kept.idleness == hour.idleness
    assert caplog.text.count("policy.yaml:4: idle_after") == 1

    path.write_text(POLICY.format("90s"))
    assert (await bench.live(session, 20)).desired is Desired.SUSPENDED


async def test_without_a_valid_policy_nobody_is_suspended_and_the_page_says_so(
    tmp_path: Path,
) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text("version: 1\nrulez: []\n")
    bench = Bench(PolicyFile(path))
    session = await bench.open_session()
    found = await bench.live(session, 600)
    assert found.desired is Desired.RUNNING
    assert found.idleness.reason == NO_POLICY


async def test_a_session_that_ends_during_a_pass_does_not_end_the_pass() -> None:
    """The first of two sessions is gone when the reclaimer wants to suspend it."""
    bench = Bench()
    ada = await bench.open_session("ada")
    bob = await bench.open_session("bob")
    for _ in range(58):
        bench.scheduler.advance(2)
        for session in (ada, bob):
            await bench.report(session.id, quiet(bench.now))
        await bench.look()
    bench.scheduler.advance(10)
    for session in (ada, bob):
        await bench.report(session.id, quiet(bench.now))
    stale = await bench.scheduler.list()
    await bench.move(ada.id, Phase.STOPPED)

    class SchedulerThatListsThePast:
        """Answers `list` with what was so a moment ago, and everything else truly."""

        def __getattr__(self, name: str) -> object:
            return getattr(bench.scheduler, name)

        async def list(self, **_: object) -> object:
            return stale

    bench.reclaimer.scheduler = SchedulerThatListsThePast()  # type: ignore[assignment]
    judged = await bench.look()
    assert all(isinstance(one.verdict, Suspend) for one in judged)
    assert (await bench.scheduler.get(bob.id)).desired is Desired.SUSPENDED
    assert replace(ada, phase=Phase.STOPPED).phase is (await bench.scheduler.get(ada.id)).phase
