"""Budgets in the running scheduler: what is changed, admitted, planned and kept over a restart."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from scheduler_bridge.engine import teams
from scheduler_bridge.engine.books import Books
from scheduler_bridge.engine.budgets import rules_now, usable_teams
from scheduler_bridge.engine.scheduler import Scheduler
from scheduler_bridge.engine.settings import ManualClock, Settings
from scheduler_bridge.errors import Conflict, NotFound, Refused
from scheduler_bridge.model.phases import Desired, Phase
from scheduler_bridge.model.teams import ChangeSet, Proposal, Team
from scheduler_bridge.model.workload import Priority, WorkloadSpec
from scheduler_bridge.policy.values import Rules
from scheduler_bridge.store.opening import open_memory
from scheduler_bridge.store.sql import SqlStore
from tests.builders.scheduler import job, one_node, session
from tests.builders.teams import team

SETTINGS = Settings(rules=Rules({"red": 1, "blue": 2}, default_team_limit=3))


@pytest.fixture
def store() -> Iterator[SqlStore]:
    made = open_memory()
    yield made
    made.close()


def scheduler_on(store: SqlStore, settings: Settings = SETTINGS, gpus: int = 4) -> Scheduler:
    return Scheduler(Books(store, ManualClock(), one_node(gpus)), settings)


@pytest.fixture
def scheduler(store: SqlStore) -> Scheduler:
    return scheduler_on(store)


def create(scheduler: Scheduler, *made: Team, **more: Any) -> ChangeSet:
    proposal = Proposal("set up", scheduler.books.budgets.head, created=made, **more)
    return teams.change(scheduler, proposal, author="root")


def submit(scheduler: Scheduler, spec: WorkloadSpec, key: str = "k") -> Phase:
    made = scheduler.submit(spec, key=key, actor="test")
    return made.phase


# -- changing --------------------------------------------------------------------------------


def test_a_change_is_made_told_and_kept_over_a_restart(
    scheduler: Scheduler, store: SqlStore
) -> None:
    made = create(scheduler, team("red", limit=4), team("green"))
    assert (made.author, made.reason, made.based_on, made.at) == ("root", "set up", "", 1e6)
    told = store.events(after=0, limit=9)[-1]
    assert (told.kind, told.actor, told.target) == ("teams", "root", made.id)
    assert told.evidence["created"] == ["red", "green"]
    again = scheduler_on(store)
    assert again.books.budgets == scheduler.books.budgets
    assert again.books.change_sets == (made,)
    assert set(again.books.budgets.teams) == {"red", "green"}


def test_what_is_wrong_is_refused_and_changes_nothing(scheduler: Scheduler) -> None:
    with pytest.raises(Refused, match=r"the fleet has 4\. Nothing was changed"):
        create(scheduler, team("red", guaranteed=3), team("green", guaranteed=2))
    assert scheduler.books.change_sets == ()
    assert not scheduler.books.budgets.teams


def test_of_many_mistakes_some_are_named_and_the_rest_counted(scheduler: Scheduler) -> None:
    with pytest.raises(Refused, match="And 3 more"):
        create(scheduler, *(team(f"t{n}", limit=-1) for n in range(8)))


@pytest.mark.parametrize("reason", ["", "  ", "x" * 1001, "a\0b"])
def test_a_change_needs_a_reason(scheduler: Scheduler, reason: str) -> None:
    with pytest.raises(Refused, match="reason: must have 1 to 1000"):
        teams.change(scheduler, Proposal(reason, created=(team("a"),)), author="root")


def test_what_somebody_else_changed_meanwhile_is_not_overwritten(scheduler: Scheduler) -> None:
    first = create(scheduler, team("red"))
    late = Proposal("mine", "", created=(team("green"),))
    with pytest.raises(Conflict, match=f"not the last change set \\({first.id} by root: set up"):
        teams.change(scheduler, late, author="ada")
    assert scheduler.books.change_sets == (first,)


def test_undo_is_a_change_set_of_its_own(scheduler: Scheduler) -> None:
    first = create(scheduler, team("red", limit=1))
    back = teams.undo(scheduler, first.id, author="ada", reason="too early")
    assert (back.undoes, back.based_on, back.author) == (first.id, first.id, "ada")
    assert not scheduler.books.budgets.teams
    again = teams.undo(scheduler, back.id, author="ada", reason="now")
    assert scheduler.books.budgets.teams == {"red": team("red", limit=1)}
    assert [it.id for it in scheduler.books.change_sets] == [first.id, back.id, again.id]


def test_an_undo_that_later_changes_depend_on_is_refused(scheduler: Scheduler) -> None:
    first = create(scheduler, team("red"))
    second = create(scheduler, team("green", "red"))
    with pytest.raises(Refused, match=f"{second.id} has put green below it since"):
        teams.undo(scheduler, first.id, author="root", reason="r")
    with pytest.raises(NotFound, match="hubernate teams history"):
        teams.undo(scheduler, "t-7", author="root", reason="r")
    assert scheduler.books.budgets.head == second.id


# -- admission -------------------------------------------------------------------------------


def test_without_budgets_every_group_is_a_team(scheduler: Scheduler) -> None:
    assert submit(scheduler, job(team="anything", gpus=3)) is not None
    assert usable_teams(scheduler.books, SETTINGS, "u", ["b", "a"]) == ("a", "b")


def test_an_unknown_team_is_refused_with_what_would_be_accepted(scheduler: Scheduler) -> None:
    create(scheduler, team("green"))
    with pytest.raises(Refused, match=r"no team 'grene'. Use one of yours .*, or default"):
        submit(scheduler, job(team="grene"))
    for known in ("green", "red", "default"):
        assert submit(scheduler, job(team=known), key=known) is not None


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (job(team="p", gpus=3), "team p may hold 2 GPUs at once. Ask for 2 or less"),
        (job(team="x", gpus=3), "team x may hold 2 GPUs at once"),
        (
            job(team="x", gpus=2, priority=Priority.URGENT),
            "hold 1 GPU at once for work of priority high or above. Ask for 1 or less",
        ),
        (job(team="b", gpus=4), "team b may hold 3 GPUs at once"),
        (job(team="red", gpus=2), "team red may hold 1 GPU at once"),
        (job(team="default", gpus=4), "team default may hold 3 GPUs at once"),
        (session(team="x", gpus=3), "team x may hold 2 GPUs"),
    ],
)
def test_what_its_team_can_never_hold_is_refused_with_the_limit(
    scheduler: Scheduler, spec: WorkloadSpec, said: str
) -> None:
    create(
        scheduler,
        team("p", limit=2),
        team("x", "p", priority_limits={Priority.HIGH: 1}),
        team("b", guaranteed=1, borrowing_limit=2),
    )
    with pytest.raises(Refused, match=said):
        submit(scheduler, spec)


def test_what_a_change_set_says_counts_instead_of_the_settings(scheduler: Scheduler) -> None:
    create(scheduler, team("red", limit=4), team("blue"))
    for name in ("red", "blue"):
        assert submit(scheduler, job(team=name, gpus=4), key=name) is not None
    rules = rules_now(scheduler.books, SETTINGS)
    assert rules.limit_of("red") == 4
    assert rules.limit_of("another") == 3


def test_a_suspended_session_may_come_back_in_a_team_that_exists_only(
    scheduler: Scheduler,
) -> None:
    create(scheduler, team("green"))
    first = scheduler.submit(session(team="green", gpus=0), key="k", actor="hub")
    scheduler.desire(first.id, Desired.STOPPED, actor="a", reason="r")
    with pytest.raises(Refused, match="no team 'grene'"):
        scheduler.submit(session(team="grene", gpus=0), key="k", actor="hub")


# -- planning --------------------------------------------------------------------------------


def test_a_limit_that_is_lowered_holds_back_what_waits_at_once(scheduler: Scheduler) -> None:
    create(scheduler, team("green", limit=2))
    assert submit(scheduler, job(team="green", gpus=2), "a") is Phase.STARTING
    scheduler.submit(job(team="green", gpus=2), key="b", actor="test")
    head = scheduler.books.budgets.head
    raised = Proposal("more", head, changed=(team("green", limit=4),))
    made = teams.change(scheduler, raised, author="root")
    found = scheduler.find("b")
    assert found is not None and found.phase is Phase.STARTING
    teams.undo(scheduler, made.id, author="root", reason="less")
    waits = scheduler.submit(job(team="green", gpus=1), key="c", actor="test")
    assert "Team green may hold 2 GPUs at once and holds 4" in waits.wait_reason


def test_work_of_a_team_that_is_gone_keeps_the_default_limit(scheduler: Scheduler) -> None:
    create(scheduler, team("green"), team("other"))
    assert submit(scheduler, job(team="green", gpus=2), "a") is Phase.STARTING
    scheduler.submit(job(team="green", gpus=3), key="b", actor="test")
    head = scheduler.books.budgets.head
    teams.change(scheduler, Proposal("gone", head, deleted=("green",)), author="root")
    waits = scheduler.find("b")
    assert waits is not None
    assert "Team green may hold 3 GPUs at once and holds 2" in waits.wait_reason


def test_a_guarantee_of_a_sub_team_is_not_kept_twice(scheduler: Scheduler) -> None:
    create(scheduler, team("p", guaranteed=2), team("x", "p", guaranteed=2), team("other"))
    spec = job(team="other", gpus=2, min_runtime_seconds=60)
    assert submit(scheduler, spec, "a") is Phase.STARTING
    assert submit(scheduler, job(team="other", min_runtime_seconds=60), "b") is Phase.QUEUED
    claim = job(team="x", gpus=2, min_runtime_seconds=60)
    assert submit(scheduler, claim, "c") is Phase.STARTING


def test_sub_teams_together_hold_no_more_than_their_parent_may(scheduler: Scheduler) -> None:
    create(
        scheduler,
        team("p", limit=3, priority_limits={Priority.URGENT: 1}),
        team("x", "p"),
        team("y", "p"),
    )
    assert submit(scheduler, job(team="x", gpus=2), "a") is Phase.STARTING
    waits = scheduler.submit(job(team="y", gpus=2), key="b", actor="test")
    assert "Team p may hold 3 GPUs at once and holds 2; it needs 2 more" in waits.wait_reason
    urgent = Priority.URGENT
    assert submit(scheduler, job(team="y", priority=urgent), "c") is Phase.STARTING
    first = scheduler.find("a")
    assert first is not None
    scheduler.desire(first.id, Desired.STOPPED, actor="bob", reason="done")
    late = scheduler.submit(job(team="x", priority=urgent), key="d", actor="test")
    assert late.phase is Phase.QUEUED
    assert scheduler.books.waits[late.id].evidence["team"] == "p"


# -- who may use what, and what is shown -----------------------------------------------------


def test_groups_map_to_teams_and_who_has_none_shares_the_default_one(
    scheduler: Scheduler,
) -> None:
    create(scheduler, team("vision", groups=("sehen",)), team("x", users=("carol",)))

    def mine(user: str, *groups: str) -> tuple[str, ...]:
        return usable_teams(scheduler.books, SETTINGS, user, groups)

    assert mine("ada", "sehen", "red", "nothing") == ("red", "vision")
    assert mine("ada", "vision") == ("default",)
    assert mine("carol") == ("x",)


def test_the_tree_is_shown_with_what_follows_from_it(scheduler: Scheduler) -> None:
    made = create(scheduler, team("p", share_percent=50, limit=2), team("x", "p"), team("red", "x"))
    seen = teams.view(scheduler.books, SETTINGS.rules)
    assert (seen.head, seen.gpus, seen.is_open) == (made.id, 4, False)
    rows = {it.team.name: (it.share, it.gpu_hours_per_day, it.limit) for it in seen.teams}
    assert list(rows) == ["p", "x", "red", "blue", "default"]
    assert rows["red"] == (0.5, 48.0, 2)
    assert rows["blue"] == (0.0, 0.0, 2)
    assert [it.team.name for it in seen.teams if it.by_settings] == ["blue", "default"]
    mine = teams.narrowed(seen, ("red", "nothing"))
    assert [it.team.name for it in mine.teams] == ["p", "x", "red"]


def test_before_any_change_set_the_settings_are_shown(scheduler: Scheduler) -> None:
    seen = teams.view(scheduler.books, SETTINGS.rules)
    assert seen.is_open
    assert [(it.team.name, it.limit) for it in seen.teams] == [
        ("blue", 2),
        ("default", 3),
        ("red", 1),
    ]
