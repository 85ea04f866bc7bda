"""Which snapshots go: tables of sentences."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapshot.retention import (
    DAY,
    NOTICE_SECONDS,
    Announcement,
    Date,
    Decision,
    Manifest,
    Match,
    Policy,
    Rule,
    Session,
    State,
    decide,
)

NOW = 1000 * DAY
GIB = 2**30


def manifest(
    session: str, sequence: int, *, days: float = 0.0, packs: str = "", owner: str = "ada"
) -> Manifest:
    """Made that many days ago; every pack is a letter and has a GiB."""
    name, made = f"{session}{sequence}", NOW - days * DAY
    return Manifest(name, owner, session, (1, sequence), made, frozenset(packs))


def session(
    name: str, state: State, *, days: float = 0.0, current: int = 0, **more: object
) -> Session:
    """In that state for so many days, with the manifest of that sequence as the one it needs."""
    made = Session(name, "ada", state=state, since=NOW - days * DAY, current=f"{name}{current}")
    return replace(made, **more)  # type: ignore[arg-type]


def run(
    rule: Rule | tuple[Rule, ...],
    sessions: list[Session],
    manifests: list[Manifest],
    now: float = NOW,
) -> Decision:
    rules = rule if isinstance(rule, tuple) else (rule,)
    sizes = {pack: GIB for each in manifests for pack in each.packs}
    return decide(Policy(rules), {s.id: s for s in sessions}, manifests, sizes, now)


def gone(decision: Decision) -> list[str]:
    return [removal.manifest for removal in decision.removals]


FOREVER = Rule("r", keep_last=None, keep_older_for=None, keep_ended_for=None)
FOUR = [manifest("s", number, days=10 - number) for number in (1, 2, 3, 4)]


@pytest.mark.parametrize("state", [State.ALIVE, State.SUSPENDED])
@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (FOREVER, []),
        (replace(FOREVER, keep_last=3), []),
        (replace(FOREVER, keep_last=2), ["s1"]),
        (replace(FOREVER, keep_last=0), ["s1", "s2", "s3"]),
        (replace(FOREVER, keep_older_for=8 * DAY), ["s1", "s2"]),
        (replace(FOREVER, keep_older_for=0.0), ["s1", "s2", "s3"]),
        (replace(FOREVER, keep_last=1, keep_older_for=9 * DAY), ["s1", "s2"]),
    ],
)
def test_older_ones_go_when_there_are_many_or_they_are_old(
    state: State, rule: Rule, expected: list[str]
) -> None:
    assert gone(run(rule, [session("s", state, current=4)], FOUR)) == expected


def test_what_the_scheduler_would_resume_stays_even_if_there_is_a_newer_one() -> None:
    """A commit whose news has not arrived, or a resume that is still filling."""
    rule = replace(FOREVER, keep_last=0)
    assert gone(run(rule, [session("s", State.ALIVE, current=2)], FOUR)) == ["s1", "s3"]


def test_what_nobody_knows_anything_about_stays() -> None:
    rule = replace(FOREVER, keep_last=0, keep_ended_for=0.0, bytes_per_user=0)
    assert run(rule, [], FOUR) == Decision()
    assert run(rule, [session("s", State.UNKNOWN)], FOUR) == Decision()
    assert run((), [session("s", State.ENDED)], FOUR) == Decision()
    others = replace(session("s", State.ENDED), owner="bob")
    assert run(rule, [others], FOUR) == Decision()


@pytest.mark.parametrize(("days", "expected"), [(1.9, []), (2.0, ["s1", "s2", "s3", "s4"])])
def test_an_ended_session_keeps_its_snapshots_for_a_while(days: float, expected: list[str]) -> None:
    rule = replace(FOREVER, keep_last=0, keep_ended_for=2 * DAY)
    assert gone(run(rule, [session("s", State.ENDED, days=days)], FOUR)) == expected


@pytest.mark.parametrize(
    ("match", "expected"),
    [
        (Match(), True),
        (Match(user=("a*",)), True),
        (Match(user=("b*", "ada")), True),
        (Match(user=("ad",)), False),
        (Match(team=("ml-*",), profile=("gpu-1",)), True),
        (Match(team=("ml-*",), profile=("gpu-2",)), False),
    ],
)
def test_the_first_rule_that_takes_a_session_decides(match: Match, expected: bool) -> None:
    first = replace(FOREVER, match=match, keep_last=0)
    known = session("s", State.ALIVE, current=4, team="ml-vision", profile="gpu-1")
    assert bool(gone(run((first, replace(FOREVER, name="q")), [known], FOUR))) is expected


@pytest.mark.parametrize("state", [State.ALIVE, State.ENDED, State.SUSPENDED])
def test_what_another_session_was_begun_from_stays(state: State) -> None:
    """A fork needs a snapshot that is not its own."""
    rule = replace(FOREVER, keep_last=0, keep_older_for=0.0, keep_ended_for=0.0, bytes_per_user=0)
    known = session("s", state, current=4, date=replace(shown(0), snapshot="s4"))
    sizes = {"a": GIB}
    manifests = [replace(each, packs=frozenset("a")) for each in FOUR]
    for needed in ("s2", "s4"):
        decision = decide(
            Policy((rule,)), {"s": known}, manifests, sizes, NOW, needed={"fork": needed, "s": "s4"}
        )
        assert needed not in gone(decision)
        assert "s1" in gone(decision)


# -- limits ------------------------------------------------------------------------------------


def test_over_the_limit_older_ones_go_first_and_as_few_as_needed() -> None:
    rule = replace(FOREVER, bytes_per_user=4 * GIB)
    manifests = [
        manifest("s", 1, days=9, packs="ab"),
        manifest("s", 2, days=8, packs="bc"),
        manifest("s", 3, days=7, packs="cd"),
        manifest("t", 1, days=6, packs="e"),
    ]
    alive = [session("s", State.ALIVE, current=3), session("t", State.ALIVE, current=1)]
    decision = run(rule, alive, manifests)
    assert gone(decision) == ["s1"]
    assert decision.removals[0].bytes == GIB  # b is shared
    assert "user ada has more than 4.0 GiB" in decision.removals[0].reason


def test_what_running_sessions_need_stays_whatever_the_limit() -> None:
    rule = replace(FOREVER, bytes_per_user=0)
    alive = [session("s", State.ALIVE, current=1)]
    assert run(rule, alive, [manifest("s", 1, packs="abc")]) == Decision()


def test_over_the_limit_the_longest_suspended_gets_a_date_and_nothing_goes_now() -> None:
    rule = replace(FOREVER, bytes_per_team=2 * GIB)
    suspended = [
        session("s", State.SUSPENDED, days=5, current=1, team="ml"),
        session("t", State.SUSPENDED, days=9, current=1, team="ml", owner="bob"),
        session("u", State.SUSPENDED, days=50, current=1, team="other"),
    ]
    manifests = [
        manifest("s", 1, packs="ab"),
        manifest("t", 1, packs="c", owner="bob"),
        manifest("u", 1, packs="def"),
    ]
    decision = run(rule, suspended, manifests)
    assert decision.removals == ()
    by_session = {a.session: a.date for a in decision.announcements}
    assert set(by_session) == {"t", "u"}
    date = by_session["t"]
    assert date is not None
    assert date.at == NOW + NOTICE_SECONDS
    assert date.reason == "team ml has more than 2.0 GiB stored"


# -- dates -------------------------------------------------------------------------------------

RULE = replace(FOREVER, keep_suspended_for=30 * DAY)


def announced(decision: Decision) -> Date:
    (announcement,) = decision.announcements
    assert announcement.date is not None
    return announcement.date


def suspended(days: float, date: Date | None = None, **more: object) -> Session:
    return session("s", State.SUSPENDED, days=days, current=4, date=date, **more)


def shown(in_days: float, *, since_days: float = 20, **more: object) -> Date:
    date = Date("s4", NOW + in_days * DAY, "r", "suspended for 30 days", NOW - since_days * DAY)
    return replace(date, **more)  # type: ignore[arg-type]


def test_a_date_is_known_from_the_beginning() -> None:
    date = announced(run(RULE, [suspended(0)], FOUR))
    assert (date.at, date.rule, date.snapshot) == (NOW + 30 * DAY, "r", "s4")
    assert date.warned == ()


def test_a_date_that_is_over_already_is_shown_for_the_notice_first() -> None:
    decision = run(RULE, [suspended(100)], FOUR)
    assert announced(decision).at == NOW + NOTICE_SECONDS
    assert announced(decision).warned == (7,)
    assert decision.removals == ()


@pytest.mark.parametrize(
    ("days_left", "warned", "expected"),
    [
        (7.1, (), None),
        (7.0, (), (7,)),
        (3.0, (7,), None),
        (1.0, (7,), (7, 1)),
        (0.5, (), (7, 1)),
        (0.5, (7, 1), None),
    ],
)
def test_warnings_are_due_seven_days_and_one_day_before(
    days_left: float, warned: tuple[int, ...], expected: tuple[int, ...] | None
) -> None:
    known = shown(days_left, warned=warned)
    decision = run(RULE, [suspended(30 - days_left, known)], FOUR)
    assert decision.removals == ()
    if expected is None:
        assert decision.announcements == ()
    else:
        assert announced(decision).warned == expected
        assert announced(decision).at == known.at


def test_when_the_date_has_come_everything_of_the_session_goes() -> None:
    decision = run(RULE, [suspended(30, shown(0, warned=(7, 1)))], FOUR)
    assert sorted(gone(decision)) == ["s1", "s2", "s3", "s4"]
    assert [r.manifest for r in decision.removals if r.ends_session] == ["s4"]
    assert decision.removals[0].rule == "r"
    assert decision.announcements == ()


@pytest.mark.parametrize(
    "known",
    [
        None,
        shown(-1, since_days=6.9),
        shown(-1, announced_at=None),
        shown(-1, snapshot="s3"),
    ],
)
def test_nothing_goes_without_a_date_that_was_shown_long_enough(known: Date | None) -> None:
    assert run(RULE, [suspended(31, known)], FOUR).removals == ()


def test_an_earlier_date_is_shown_for_the_notice_and_a_later_one_counts_at_once() -> None:
    stricter = run(replace(RULE, keep_suspended_for=10 * DAY), [suspended(20, shown(10))], FOUR)
    assert announced(stricter).at == NOW + NOTICE_SECONDS
    milder = run(replace(RULE, keep_suspended_for=90 * DAY), [suspended(20, shown(10))], FOUR)
    assert announced(milder).at == NOW + 70 * DAY


def test_without_a_reason_the_date_is_taken_back() -> None:
    decision = run(FOREVER, [suspended(20, shown(10))], FOUR)
    assert decision.announcements == (Announcement("s", "ada", None),)


def test_a_date_for_being_over_the_limit_stays_while_that_is_so() -> None:
    rule = replace(FOREVER, bytes_per_user=0)
    manifests = [manifest("s", 4, packs="a")]
    first = announced(run(rule, [suspended(5)], manifests))
    later = NOW + 2 * DAY
    known = replace(first, announced_at=NOW)
    assert run(rule, [suspended(5, known)], manifests, later) == Decision()
    at_last = run(rule, [suspended(5, replace(known, warned=(7, 1)))], manifests, first.at)
    assert gone(at_last) == ["s4"]


def test_the_sessions_of_a_deleted_user_get_a_date() -> None:
    date = announced(run(FOREVER, [suspended(5, owner_exists=False)], FOUR))
    assert date.at == NOW + NOTICE_SECONDS
    assert "account was deleted" in date.reason


def test_a_session_without_its_snapshot_in_the_store_has_no_date() -> None:
    assert run(RULE, [replace(suspended(50), current="s9")], FOUR) == Decision()


@given(
    days=st.lists(st.floats(0.1, 12), min_size=1, max_size=25),
    keep=st.floats(0, 20),
    limit=st.none() | st.integers(0, 2 * GIB),
)
def test_whenever_it_is_run_the_only_snapshot_was_announced_a_week_before(
    days: list[float], keep: float, limit: int | None
) -> None:
    """As the scheduler keeps dates: since when a date, or an earlier one, is shown."""
    rule = replace(FOREVER, keep_suspended_for=keep * DAY, bytes_per_user=limit)
    known: Date | None = None
    now, first_shown = NOW, None
    for step in days:
        decision = run(rule, [suspended(0, known)], [manifest("s", 4, packs="ab")], now)
        if decision.removals:
            assert known is not None and first_shown is not None
            assert now >= known.at
            assert now - first_shown >= NOTICE_SECONDS
            return
        for announcement in decision.announcements:
            if announcement.date is None:
                known = first_shown = None
                continue
            if known is None or announcement.date.at < known.at:
                first_shown = now
            known = replace(announcement.date, announced_at=first_shown)
        now += step * DAY


@st.composite
def worlds(draw: st.DrawFn) -> tuple[list[Session], list[Manifest]]:
    """Sessions in any state, with snapshots that share packs."""
    sessions, manifests = [], []
    for name in "stu":
        count = draw(st.integers(0, 4))
        state = draw(st.sampled_from(State))
        current = draw(st.integers(0, count))
        date = draw(st.none() | st.just(Date(f"{name}{current}", NOW, "r", "x", NOW - 9 * DAY)))
        days = draw(st.integers(0, 60))
        sessions.append(session(name, state, days=days, current=current, date=date, team="ml"))
        for number in range(1, count + 1):
            packs = "".join(draw(st.sets(st.sampled_from("abcdef"))))
            age = draw(st.integers(0, 60))
            manifests.append(manifest(name, number, days=age, packs=packs))
    return sessions, manifests


@given(
    world=worlds(),
    keep_last=st.none() | st.integers(0, 3),
    times=st.tuples(*[st.none() | st.integers(0, 40)] * 3),
    limits=st.tuples(*[st.none() | st.integers(0, 5)] * 2),
)
def test_whatever_the_rule_what_may_be_needed_stays(
    world: tuple[list[Session], list[Manifest]],
    keep_last: int | None,
    times: tuple[int | None, ...],
    limits: tuple[int | None, ...],
) -> None:
    sessions, manifests = world
    seconds = [None if days is None else days * DAY for days in times]
    sizes = [None if each is None else each * GIB for each in limits]
    rule = Rule("r", Match(), keep_last, *seconds, *sizes)  # type: ignore[arg-type]
    decision = run(rule, sessions, manifests)
    removed = gone(decision)
    assert len(removed) == len(set(removed))
    for each in sessions:
        own = [m.name for m in manifests if m.session == each.id]
        needed = {*own[-1:], each.current} & set(own)
        due = each.state is State.SUSPENDED and each.date is not None and each.current in own
        if each.state is State.UNKNOWN:
            assert not set(removed) & set(own)
        elif each.state is State.ALIVE or (each.state is State.SUSPENDED and not due):
            assert not set(removed) & needed
        ends = [r for r in decision.removals if r.session == each.id and r.ends_session]
        if due and set(removed) & needed:
            assert [r.manifest for r in ends] == [each.current]
        else:
            assert ends == []
