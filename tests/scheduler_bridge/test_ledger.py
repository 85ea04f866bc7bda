"""GPU time in whole numbers: a worked example, and what holds for every history."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from scheduler_bridge.model.usage import HOUR_MS, FleetSums, Tag, TeamSums, UsageKey
from scheduler_bridge.policy.dues import Due, Tree
from scheduler_bridge.policy.ledger import Holding, Meter, Span, Sums, Waiting, account

HOUR = 480_000
"""Where the tests' time begins, in hours since 1970."""
BEGIN = HOUR * HOUR_MS
SECOND = 1000
DUES = {"a": Due(6000, 3000), "x": Due(2000, 1000, "a"), "b": Due(4000)}
CAPACITY = 10_000


def gpus(team: str, count: int, **more: object) -> Holding:
    return Holding(team, f"of {team}", count * 1000, **more)  # type: ignore[arg-type]


def test_a_worked_example() -> None:
    """Team a holds 2 GPUs and waits for 2 for a minute; b holds 8 all the time, protected at first."""
    spans = [
        Span(gpus("a", 2), BEGIN, BEGIN + 60 * SECOND),
        Span(Waiting("a", 2000), BEGIN, BEGIN + 60 * SECOND),
        Span(gpus("b", 8, interruptible_from=BEGIN + 30 * SECOND), BEGIN, BEGIN + 120 * SECOND),
    ]
    sums = account(spans, {"a": Due(6000, 3000), "b": Due(4000)}, CAPACITY, BEGIN, BEGIN + 120_000)
    second = 1000 * 1000  # GPU-microseconds
    assert sums.teams[HOUR, "a"] == TeamSums(
        owed=4 * 60 * second,
        allocated=2 * 60 * second,
        lent=4 * 60 * second + 4 * 60 * second,
        guaranteed_unused=1 * 60 * second + 3 * 60 * second,
        guaranteed_lent=1 * 60 * second + 1 * 60 * second,
    )
    assert sums.teams[HOUR, "b"] == TeamSums(
        owed=4 * 120 * second,
        allocated=8 * 120 * second,
        borrowed=4 * 120 * second,
        on_guarantees=2 * 60 * second,
    )
    assert sums.usage == {
        (HOUR, UsageKey("a", "", "of a", Tag.ALLOCATED)): 2 * 60 * second,
        (HOUR, UsageKey("b", "", "of b", Tag.ALLOCATED)): 8 * 30 * second,
        (HOUR, UsageKey("b", "", "of b", Tag.ALLOCATED | Tag.INTERRUPTIBLE)): 8 * 90 * second,
    }
    assert sums.fleet == {HOUR: FleetSums(10 * 120 * second, 1080 * second, 120 * second)}


def test_hours_are_cut_where_they_end() -> None:
    since = BEGIN + HOUR_MS - 1
    sums = account([Span(gpus("x", 1), since, since + 3)], DUES, CAPACITY, since, since + 3)
    key = UsageKey("a", "x", "of x", Tag.ALLOCATED)
    assert sums.usage == {(HOUR, key): 1000, (HOUR + 1, key): 2000}


def test_what_a_suspended_session_does_not_hold_is_told_and_counts_for_nothing_else() -> None:
    span = Span(gpus("b", 4, is_given_back=True), BEGIN, BEGIN + 10)
    sums = account([span], DUES, CAPACITY, BEGIN, BEGIN + 10)
    assert sums.usage == {(HOUR, UsageKey("b", "", "of b", Tag.GIVEN_BACK)): 40_000}
    assert sums.fleet[HOUR].held == 0
    assert (HOUR, "b") not in sums.teams


def test_asking_changes_nothing() -> None:
    meter = Meter(BEGIN, CAPACITY, DUES)
    meter.hold("1", gpus("b", 1))
    for _ in range(2):
        assert meter.until(BEGIN + 5).fleet[HOUR].held == 5000
    meter.advance(BEGIN + 10)
    meter.hold("1", None)
    assert meter.until(BEGIN + 10).fleet[HOUR].held == 10_000


def test_time_that_is_skipped_counts_for_nobody() -> None:
    meter = Meter(BEGIN, CAPACITY, DUES)
    meter.hold("1", gpus("b", 1))
    meter.advance(BEGIN + 5)
    meter.skip(BEGIN - HOUR_MS)
    sums = meter.until(BEGIN - HOUR_MS + 7)
    assert sums.fleet[HOUR].held == 5000
    assert sums.fleet[HOUR - 1].held == 7000
    assert sum(sums.usage.values()) == 12_000


def test_what_was_held_before_a_change_of_budgets_counts_as_it_was() -> None:
    meter = Meter(BEGIN, CAPACITY, {"b": Due(4000)})
    meter.hold("1", gpus("b", 6))
    meter.advance(BEGIN + 10)
    meter.change(20_000, {"a": Due(20_000), "b": Due(2000, parent="a")})
    sums = meter.until(BEGIN + 20)
    assert sums.usage == {
        (HOUR, UsageKey("b", "", "of b", Tag.ALLOCATED)): 60_000,
        (HOUR, UsageKey("a", "b", "of b", Tag.ALLOCATED)): 60_000,
    }
    assert sums.teams[HOUR, "b"].owed == 10 * 4000 + 10 * 2000
    assert sums.teams[HOUR, "a"].owed == 10 * 6000
    assert sums.fleet[HOUR] == FleetSums(300_000, 120_000, 180_000)


TEAMS = ("a", "x", "b", "nobody's")
LONG = 3 * HOUR_MS
TIMES = st.integers(BEGIN, BEGIN + LONG)
HOLDINGS = st.builds(
    Holding,
    st.sampled_from(TEAMS),
    st.sampled_from(("u", "v")),
    st.integers(0, 8000),
    is_allocated=st.booleans(),
    is_idle=st.booleans(),
    is_suspended=st.booleans(),
    is_given_back=st.booleans(),
    interruptible_from=st.none() | TIMES,
)
WAITS = st.builds(Waiting, st.sampled_from(TEAMS), st.integers(0, 8000))
SPANS = st.lists(
    st.builds(
        lambda what, times: Span(what, *sorted(times)),
        HOLDINGS | WAITS,
        st.tuples(TIMES, TIMES),
    ),
    max_size=12,
)
END = BEGIN + LONG


def total(sums: Sums) -> FleetSums:
    whole = FleetSums()
    for each in sums.fleet.values():
        whole = whole.plus(each)
    return whole


@given(SPANS, TIMES, TIMES)
def test_what_all_hold_and_what_is_free_make_up_the_fleet(
    spans: list[Span], one: int, other: int
) -> None:
    since, until = sorted((one, other))
    sums = account(spans, DUES, CAPACITY, since, until)
    by_hand = sum(
        span.what.gpus * max(0, min(span.until, until) - max(span.since, since))
        for span in spans
        if isinstance(span.what, Holding) and not span.what.is_given_back
    )
    held = sum(n for (_, key), n in sums.usage.items() if key.tags != Tag.GIVEN_BACK)
    roots = sum(it.delivered for (_, name), it in sums.teams.items() if Tree(DUES).is_root(name))
    assert held == roots == total(sums).held == by_hand
    assert held + total(sums).free == CAPACITY * (until - since) == total(sums).capacity


@given(SPANS, st.lists(TIMES, max_size=5))
def test_any_cut_of_the_time_gives_the_same_sums(spans: list[Span], cuts: list[int]) -> None:
    marks = [BEGIN, *sorted(cuts), END]
    parts = Sums()
    for since, until in pairwise(marks):
        parts = parts.plus(account(spans, DUES, CAPACITY, since, until))
    assert parts == account(spans, DUES, CAPACITY, BEGIN, END)


@given(SPANS, TIMES)
def test_a_span_that_is_cut_gives_the_same_sums(spans: list[Span], cut: int) -> None:
    pieces = [replace(it, until=min(it.until, cut)) for it in spans if it.since < cut]
    pieces += [replace(it, since=max(it.since, cut)) for it in spans if it.until > cut]
    assert account(pieces, DUES, CAPACITY, BEGIN, END) == account(spans, DUES, CAPACITY, BEGIN, END)


@given(SPANS.flatmap(lambda spans: st.tuples(st.just(spans), st.permutations(spans))))
def test_the_order_of_spans_does_not_matter(both: tuple[list[Span], list[Span]]) -> None:
    one, other = both
    assert account(one, DUES, CAPACITY, BEGIN, END) == account(other, DUES, CAPACITY, BEGIN, END)


@given(SPANS, TIMES)
def test_counting_anew_in_between_loses_nothing(spans: list[Span], when: int) -> None:
    """What a scheduler does when it stores its sums: what it had and what follows are the whole."""
    meter = Meter(BEGIN, CAPACITY, DUES)
    for number, it in enumerate(spans):
        if isinstance(it.what, Holding):
            meter.hold(str(number), it.what)
        else:
            meter.wait(str(number), it.what)
    whole = meter.until(END)
    stored = meter.until(when)
    meter.restart(when)
    assert stored.plus(meter.until(END)) == whole


@given(SPANS)
def test_nobody_is_owed_more_than_its_share_or_its_wish(spans: list[Span]) -> None:
    sums = account(spans, DUES, CAPACITY, BEGIN, END)
    wished: Counter[str] = Counter()
    for it in spans:
        if isinstance(it.what, Waiting) or not it.what.is_given_back:
            for name in Tree(DUES).line(it.what.team):
                wished[name] += it.what.gpus * (it.until - it.since)
    owed: Counter[str] = Counter()
    for (_, name), each in sums.teams.items():
        owed[name] += each.owed
        assert min(each) >= 0
    for name in owed:
        assert owed[name] <= min(Tree(DUES).due(name).share * LONG, wished[name])
