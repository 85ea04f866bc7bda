"""What a policy would do now."""

from __future__ import annotations

from reclaimer.policy import Policy, Rule, Selector
from reclaimer.preview import preview
from scheduler_bridge.model.phases import Phase
from scheduler_bridge.model.workload import Idleness, Pause
from tests.reclaimer.bench import working
from tests.reclaimer.builders import NOW, START
from tests.reclaimer.test_signals import SIGNALS, workload

POLICY = Policy((Rule("ada", Selector(user=("ada",)), idle_after=5000), Rule("rest")))


def test_one_session_with_rule_time_and_evidence() -> None:
    (found,) = preview(POLICY, [workload()], NOW)
    assert (found.rule, found.action, found.at) == ("ada", "suspend", START + 5000)
    assert "kernel python3 (k1): idle" in found.evidence


def test_a_stricter_policy_would_warn_first() -> None:
    strict = Policy((Rule("strict", idle_after=10, warn_before=30),))
    told = workload(idleness=Idleness(START, START + 10, "told under another rule"))
    (found,) = preview(strict, [told], NOW)
    assert found.at == NOW + 30


def test_what_the_reclaimer_knows_of_cpu_use_counts() -> None:
    busy = workload(idleness=Idleness(reason="it is in use: its processes use 0.1 CPU or more"))
    (found,) = preview(POLICY, [busy], NOW)
    assert (found.action, found.at) == ("keep", None)
    assert "sees it at work" in found.why


def test_busy_unknown_and_paused_are_kept() -> None:
    busy = workload(working(NOW - 1))
    silent = workload(signals={})
    assert [f.action for f in preview(POLICY, [busy, silent], NOW)] == ["keep", "keep"]
    pause = Pause("all", NOW + 9, "move", "root", START)
    (found,) = preview(POLICY, [workload()], NOW, [pause])
    assert "paused" in found.why


def test_only_running_sessions_are_judged() -> None:
    assert preview(POLICY, [workload(SIGNALS, phase=Phase.SUSPENDED)], NOW) == ()
