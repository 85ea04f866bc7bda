"""Reports of GPU time: who used what, at what price, as of which time."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf, nan
from pathlib import Path

import pytest

from hub_config.commands.usage import sentences_of, table_of
from scheduler_bridge.engine.usage import Audience, report
from scheduler_bridge.errors import Refused
from scheduler_bridge.model.phases import Phase
from scheduler_bridge.model.teams import Team
from scheduler_bridge.model.usage import (
    Bucket,
    FleetUsage,
    Grouping,
    UsageLine,
    UsageQuestion,
    UsageReport,
)
from scheduler_bridge.store.opening import open_memory
from tests.builders.ledger import Site, budgets
from tests.builders.scheduler import job, session

HOUR = 3600.0
DOCS = Path(__file__).parents[2] / "docs" / "explanation" / "gpu-time.md"


@pytest.fixture
def site() -> Iterator[Site]:
    """Two hours: team a (with its sub-team) for 3 GPUs, b for 1."""
    made = Site(open_memory())
    budgets(
        made,
        Team("a", share_percent=50, guaranteed=2, price_per_gpu_hour=2.0),
        Team("sub", "a", share_percent=50),
        Team("b", share_percent=50),
    )
    made.run(made.submit(session("u", 1, team="a", min_runtime_seconds=10 * HOUR), "1"))
    made.run(made.submit(job("v", 2, team="sub"), "2"))
    idle = made.run(made.submit(session("u", 1, team="b"), "3"))
    made.clock.advance(HOUR)
    made.idle(idle, made.clock.now())
    made.ledger.settle()
    made.clock.advance(HOUR)
    yield made
    made.scheduler.close()


def told(site: Site, **question: object) -> UsageReport:
    return report(site.scheduler, UsageQuestion(**question))  # type: ignore[arg-type]


def by_name(lines: tuple[UsageLine, ...]) -> dict[str, UsageLine]:
    return {"/".join(filter(None, (it.team, it.project, it.user, it.tag))): it for it in lines}


def test_teams_with_what_they_were_due(site: Site) -> None:
    seen = told(site)
    lines = by_name(seen.lines)
    assert list(lines) == ["a", "b", "sub"]
    a, sub, b = lines["a"], lines["sub"], lines["b"]
    assert (a.delivered, a.allocated, a.unallocated) == (6 * HOUR, 2 * HOUR, 4 * HOUR)
    assert (a.owed, a.borrowed, a.lent) == (4 * HOUR, 2 * HOUR, 0)
    assert (a.guaranteed_unused, a.guaranteed_lent, a.on_guarantees) == (0, 0, 0)
    assert (a.price_per_gpu_hour, sub.price_per_gpu_hour, sub.delivered) == (2.0, 2.0, 4 * HOUR)
    assert a.cost == pytest.approx(12.0)
    assert sub.cost == pytest.approx(8.0)
    assert (b.delivered, b.idle, b.interruptible) == (2 * HOUR, HOUR, 2 * HOUR)
    assert (b.owed, b.lent, b.cost) == (2 * HOUR, 2 * HOUR, None)
    balances = {it.team: it.balance for it in seen.balances}
    assert balances == pytest.approx({"a": -2 * HOUR, "sub": -2 * HOUR, "b": 0}, rel=0.01)
    assert seen.fleet == FleetUsage(8 * HOUR, 8 * HOUR, 0.0)
    assert seen.until - seen.since == 30 * 24 * HOUR + HOUR, "whole hours"


@pytest.mark.parametrize(
    ("group_by", "expected"),
    [
        (Grouping.PROJECT, {"a": 2, "a/sub": 4, "b": 2}),
        (Grouping.USER, {"u": 4, "v": 4}),
        (Grouping.TAG, {"allocated": 2, "unallocated": 6, "idle": 1, "interruptible": 6}),
    ],
)
def test_other_groups(site: Site, group_by: Grouping, expected: dict[str, float]) -> None:
    lines = by_name(told(site, group_by=group_by).lines)
    assert {name: it.delivered / HOUR for name, it in lines.items()} == expected
    assert all(it.owed is None for it in lines.values())
    assert sum(it.cost or 0 for it in lines.values()) > 0


def test_pieces(site: Site) -> None:
    now = site.clock.now()
    begin = now - 2 * HOUR
    for bucket, size in ((Bucket.HOUR, HOUR), (Bucket.DAY, 24 * HOUR)):
        lines = told(site, since=begin, bucket=bucket, group_by=Grouping.USER).lines
        assert {it.at % size for it in lines} == {0.0}
        assert sum(it.delivered for it in lines) == 8 * HOUR
        assert [it.at for it in lines] == sorted(it.at for it in lines)
    assert len({it.at for it in told(site, since=begin, bucket=Bucket.HOUR).lines}) == 3


def test_only_what_lies_between_the_times(site: Site) -> None:
    now = site.clock.now()
    assert told(site, since=now + HOUR, until=now + 2 * HOUR).lines == ()
    assert told(site, until=now - 3 * HOUR).lines == ()
    whole = told(site, since=0.0, until=now + 365 * 86400)
    assert sum(it.delivered for it in whole.lines if it.team != "sub") == 8 * HOUR


@pytest.mark.parametrize(
    ("question", "named"),
    [
        ({"since": nan}, "from"),
        ({"since": -1.0}, "from"),
        ({"until": inf}, "to"),
        ({"until": 1e12}, "to"),
        ({"since": 5.0, "until": 5.0}, "from: must be before to"),
        ({"since": 0.0, "bucket": Bucket.HOUR}, "at most 31 days"),
        ({"since": 0.0, "bucket": Bucket.DAY}, "at most 3660 days"),
    ],
)
def test_times_that_make_no_sense_are_refused(
    site: Site, question: dict[str, object], named: str
) -> None:
    with pytest.raises(Refused, match=named):
        told(site, **question)


@pytest.mark.parametrize(
    ("audience", "teams", "users"),
    [
        pytest.param(Audience(("a",), "w"), ["a", "sub"], {"u": 2, "v": 4}, id="and those below"),
        pytest.param(Audience(("sub",), "u"), ["sub"], {"u": 4, "v": 4}, id="and their own"),
        pytest.param(Audience(("none",), "w"), [], {}, id="nothing"),
    ],
)
def test_others_are_not_told_of(
    site: Site, audience: Audience, teams: list[str], users: dict[str, float]
) -> None:
    seen = report(site.scheduler, UsageQuestion(), audience)
    assert [it.team for it in seen.lines] == teams
    assert {it.team for it in seen.balances} == set(teams)
    assert seen.fleet is None
    by_user = report(site.scheduler, UsageQuestion(group_by=Grouping.USER), audience)
    assert {it.user: it.delivered / HOUR for it in by_user.lines} == users


def test_what_a_sub_team_used_stays_where_it_was(site: Site) -> None:
    budgets(site, changed=(Team("sub", "b"),))
    lines = by_name(told(site).lines)
    assert lines["a"].delivered == 6 * HOUR
    assert lines["b"].delivered == 2 * HOUR
    assert lines["sub"].delivered == 4 * HOUR


def test_the_example_in_the_docs() -> None:
    """Vision has all four GPUs for an hour, then audio wants its two back."""
    site = Site(open_memory())
    budgets(
        site,
        Team("vision", share_percent=50, price_per_gpu_hour=2.0),
        Team("audio", share_percent=50, guaranteed=1),
    )
    train = site.run(site.submit(job("vera", 4, team="vision"), "train"))
    site.clock.advance(HOUR)
    opened = site.submit(session("ada", 2, team="audio", min_runtime_seconds=4 * HOUR), "opened")
    assert opened.phase is Phase.QUEUED
    site.move(train, Phase.PREEMPTING)
    site.move(train, Phase.QUEUED)
    assert site.scheduler.get(opened.id).phase is Phase.STARTING
    site.clock.advance(HOUR)
    seen = told(site)
    rows = table_of(seen, Grouping.TEAM, None)[1]
    shown = DOCS.read_text()
    for row in rows:
        assert "| " + " | ".join(cell or "–" for cell in row) + " |" in shown
    for sentence in sentences_of(seen):
        assert sentence.strip() in shown
    site.scheduler.close()
