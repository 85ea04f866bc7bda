"""Tables of rules and verdicts."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reclaimer.idleness import Assessment, Busy, IdleSince, Unknown
from reclaimer.policy import (
    Action,
    Announcement,
    Keep,
    Policy,
    Rule,
    Selector,
    Session,
    Suspend,
    Verdict,
    Warn,
    judge,
)
from scheduler_bridge.model.workload import Pause
from tests.reclaimer.builders import NOW, START, session

LOCAL = Policy()
IDLE = IdleSince(NOW - 60.0, "kernel python3 went quiet")


def idle_for(seconds: float) -> IdleSince:
    return IdleSince(NOW - seconds, "kernel python3 went quiet")


def told(idle: IdleSince, at: float) -> Announcement:
    return Announcement(idle.since, at)


def pause(scope: str, until: float = NOW + 60.0) -> Pause:
    return Pause(scope, until, "store is moved", "root", START)


@dataclass(frozen=True)
class Row:
    """One sentence; what is judged; the kind of verdict and words of its reason."""

    sentence: str
    idleness: Assessment
    verdict: type[Verdict]
    words: str
    at: float | None = None
    session: dict[str, Any] = field(default_factory=dict)
    policy: Policy = LOCAL
    pauses: tuple[Pause, ...] = ()


ROWS = [
    Row(
        "idle for a minute: nothing yet, but the countdown runs",
        idle_for(60),
        Keep,
        "rule default",
        NOW + 60,
    ),
    Row(
        "half a minute before the end its user is warned",
        idle_for(95),
        Warn,
        "rule default",
        NOW + 25,
        {"announced": told(idle_for(95), NOW + 25)},
    ),
    Row(
        "idle for two minutes, and told so",
        idle_for(120),
        Suspend,
        "rule default suspends after 2m",
        NOW,
        {"announced": told(idle_for(120), NOW)},
    ),
    Row(
        "idle for an hour, but nobody was told: the warning comes first",
        idle_for(3600),
        Warn,
        "rule",
        NOW + 30,
    ),
    Row(
        "told of another stretch of idleness: that warning does not count",
        idle_for(200),
        Warn,
        "rule",
        NOW + 30,
        {"announced": Announcement(NOW - 900, NOW - 780)},
    ),
    Row(
        "told of a later moment under an older rule: a warning from now on is enough",
        idle_for(600),
        Warn,
        "rule",
        NOW + 30,
        {"announced": told(idle_for(600), NOW + 3000)},
    ),
    Row(
        "told of a moment, and the rule has become more generous since",
        idle_for(130),
        Keep,
        "rule slow",
        NOW - 130 + 3600,
        {"announced": told(idle_for(130), NOW - 10)},
        Policy((Rule("slow", idle_after=3600),)),
    ),
    Row(
        "a busy kernel",
        Busy("kernel python3 is running a cell"),
        Keep,
        "in use: kernel python3 is running",
    ),
    Row(
        "missing telemetry is never idle",
        Unknown("its telemetry stopped"),
        Keep,
        "not known to be idle",
    ),
    Row(
        "it cannot be frozen, and says what blocks",
        idle_for(999),
        Keep,
        "train.py (process 7): has an io_uring open",
        session={"freezable": False, "blockers": ("train.py (process 7): has an io_uring open",)},
    ),
    Row(
        "it cannot be frozen and does not say why",
        idle_for(999),
        Keep,
        "cannot be saved",
        session={"freezable": False},
    ),
    Row(
        "whether it can be frozen is not known: asking is safe, the supervisor looks itself",
        idle_for(120),
        Suspend,
        "rule",
        NOW,
        {"announced": told(idle_for(120), NOW), "freezable": None},
    ),
    Row(
        "reclaiming is paused",
        idle_for(999),
        Keep,
        "paused by root: store is moved",
        pauses=(pause("reclaim"),),
    ),
    Row("everything is paused", idle_for(999), Keep, "paused", pauses=(pause("all"),)),
    Row(
        "only preempting is paused",
        idle_for(999),
        Warn,
        "rule",
        NOW + 30,
        pauses=(pause("preempt"),),
    ),
    Row("a pause is over", idle_for(999), Warn, "rule", NOW + 30, pauses=(pause("all", NOW - 1),)),
    Row(
        "started a moment ago with an old kernel: too young",
        idle_for(0),
        Keep,
        "rule young",
        NOW + 590,
        {"running_since": NOW - 10},
        Policy((Rule("young", idle_after=5, warn_before=0, minimum_age=600),)),
    ),
    Row(
        "no rule is for it",
        idle_for(999),
        Keep,
        "no rule",
        policy=Policy((Rule("x", Selector(user=("bob",))),)),
    ),
    Row(
        "a rule that keeps, before one that suspends",
        idle_for(999),
        Keep,
        "rule teaching keeps it",
        policy=Policy(
            (Rule("teaching", Selector(team=("vision",)), action=Action.KEEP), Rule("rest"))
        ),
    ),
    Row(
        "without a warning it is suspended at once",
        idle_for(120),
        Suspend,
        "rule blunt",
        NOW,
        policy=Policy((Rule("blunt", warn_before=0),)),
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.sentence)
def test_verdict(row: Row) -> None:
    verdict = judge(row.policy, session(**row.session), row.idleness, NOW, row.pauses)
    assert type(verdict) is row.verdict, verdict
    assert row.words in verdict.why
    assert (verdict.suspend_at if isinstance(verdict, Keep) else verdict.at) == row.at


SELECTORS = [
    ("GPU servers sooner than CPU servers", Selector(min_gpus=1), {"gpus": 1}, {"gpus": 0}),
    (
        "only the expensive named server",
        Selector(server=("big",)),
        {"server": "big"},
        {"server": ""},
    ),
    ("one team", Selector(team=("vision",)), {"team": "vision"}, {"team": "speech"}),
    ("a pattern of teams", Selector(team=("ml-*",)), {"team": "ml-vision"}, {"team": "html"}),
    ("one of several users", Selector(user=("ada", "bob")), {"user": "bob"}, {"user": "cleo"}),
    ("a profile", Selector(profile=("gpu-4",)), {"profile": "gpu-4"}, {"profile": "GPU-4"}),
    (
        "team and profile, both",
        Selector(team=("a",), profile=("p",)),
        {"team": "a", "profile": "p"},
        {"team": "a", "profile": "q"},
    ),
]


@pytest.mark.parametrize(("sentence", "selector", "inside", "outside"), SELECTORS)
def test_selector(
    sentence: str, selector: Selector, inside: dict[str, Any], outside: dict[str, Any]
) -> None:
    assert selector.matches(session(**inside)), sentence
    assert not selector.matches(session(**outside)), sentence


def test_the_first_rule_that_matches_decides() -> None:
    policy = Policy(
        (Rule("gpu", Selector(min_gpus=1), idle_after=100), Rule("cpu", idle_after=9000))
    )
    gpu = judge(policy, session(gpus=1), idle_for(10), NOW)
    cpu = judge(policy, session(gpus=0), idle_for(10), NOW)
    assert isinstance(gpu, Keep)
    assert isinstance(cpu, Keep)
    assert (gpu.rule, gpu.suspend_at) == ("gpu", NOW + 90)
    assert (cpu.rule, cpu.suspend_at) == ("cpu", NOW + 8990)


idle_times = st.floats(0, 5000).map(idle_for)
any_idleness = st.one_of(idle_times, st.just(Busy("a cell runs")), st.just(Unknown("silence")))
rules = st.builds(
    Rule,
    name=st.just("r"),
    idle_after=st.floats(1, 4000),
    warn_before=st.integers(0, 1000).map(float),
    minimum_age=st.floats(0, 4000),
    action=st.sampled_from(Action),
)
announcements = st.none() | st.builds(
    Announcement, since=st.floats(NOW - 6000, NOW), at=st.floats(NOW - 6000, NOW + 6000)
)
sessions = st.builds(
    session,
    running_since=st.floats(NOW - 9000, NOW),
    freezable=st.sampled_from([None, True, False]),
    announced=announcements,
)
some_pauses = st.lists(
    st.builds(pause, st.sampled_from(["reclaim", "preempt", "all"]), st.floats(NOW - 50, NOW + 50)),
    max_size=3,
)


@given(rules, sessions, any_idleness, some_pauses)
def test_only_a_known_idle_freezable_session_is_suspended(
    rule: Rule, one: Session, idleness: Assessment, pauses: list[Pause]
) -> None:
    verdict = judge(Policy((rule,)), one, idleness, NOW, pauses)
    if isinstance(verdict, Suspend | Warn):
        assert isinstance(idleness, IdleSince)
        assert one.freezable is not False
        assert rule.action is Action.SUSPEND
        assert not any(p.scope in ("reclaim", "all") and p.until > NOW for p in pauses)
    if isinstance(verdict, Suspend):
        assert isinstance(idleness, IdleSince)
        assert idleness.since + rule.idle_after <= NOW
        assert NOW - one.running_since >= rule.minimum_age


@given(rules, sessions, any_idleness, st.sampled_from(["reclaim", "all"]), st.floats(0, 100))
def test_a_pause_never_leads_to_a_suspend(
    rule: Rule, one: Session, idleness: Assessment, scope: str, left: float
) -> None:
    paused = pause(scope, NOW + 0.001 + left)
    assert isinstance(judge(Policy((rule,)), one, idleness, NOW, [paused]), Keep)


@given(rules, sessions, st.text(max_size=5))
def test_unknown_never_leads_to_a_suspend(rule: Rule, one: Session, why: str) -> None:
    assert isinstance(judge(Policy((rule,)), one, Unknown(why), NOW), Keep)


RANK = {Keep: 0, Warn: 1, Suspend: 2}


@given(rules, sessions, idle_times, st.floats(0, 5000), st.floats(0, 5000))
def test_verdicts_only_grow_while_nothing_happens(
    rule: Rule, one: Session, idle: IdleSince, first: float, second: float
) -> None:
    early, late = NOW + min(first, second), NOW + max(first, second)
    policy = Policy((rule,))
    assert RANK[type(judge(policy, one, idle, early))] <= RANK[type(judge(policy, one, idle, late))]


@given(rules, sessions, idle_times, st.lists(st.floats(0.1, 100), min_size=1, max_size=60))
def test_nobody_is_suspended_without_the_warning_that_the_rule_promises(
    rule: Rule, one: Session, idle: IdleSince, steps: list[float]
) -> None:
    """Plays a reclaimer that publishes what it decides, over a session nobody was told about."""
    policy, now = Policy((rule,)), NOW
    current = replace(one, announced=None)
    told_since: float | None = None
    for step in steps:
        verdict = judge(policy, current, idle, now)
        if isinstance(verdict, Suspend):
            assert rule.warn_before == 0 or told_since is not None
            assert now - (told_since if told_since is not None else now) >= rule.warn_before - 1e-3
            return
        at = verdict.suspend_at if isinstance(verdict, Keep) else verdict.at
        if at is not None:
            told_since = now if told_since is None else told_since
            current = replace(current, announced=Announcement(idle.since, at))
        now += step
