"""The teams' part of the scheduler's contract: in-process, and over real HTTP."""

from __future__ import annotations

import pytest

from scheduler_bridge.errors import Conflict, NotFound, Refused
from scheduler_bridge.model.teams import ChangeSet, Proposal
from scheduler_bridge.model.workload import Priority
from scheduler_bridge.plugin import SchedulerPlugin
from tests.builders.scheduler import job
from tests.builders.teams import team
from tests.contracts.test_scheduler_plugin import plugin

__all__ = ["plugin"]

FULL = team(
    "vision", "research",
    share_percent=100 / 3, limit=2, priority_limits={Priority.HIGH: 1, Priority.URGENT: 0},
    guaranteed=1, lending_limit=1, borrowing_limit=1, groups=("sehen", "vision"), users=("ü",),
    price_per_gpu_hour=2.5,
)  # fmt: skip


async def set_up(plugin: SchedulerPlugin) -> ChangeSet:
    research = team("research", guaranteed=1, gpu_hours_per_day=24.0)
    proposal = Proposal("the first budgets", created=(research, FULL))
    return await plugin.change_teams(proposal, actor="root")


async def test_at_first_every_group_is_a_team(plugin: SchedulerPlugin) -> None:
    seen = await plugin.teams()
    assert (seen.head, seen.gpus, seen.is_open) == ("", 2, True)
    assert await plugin.team_changes() == ()
    assert await plugin.usable_teams("ada", {"b", "a"}) == ("a", "b")
    assert await plugin.usable_teams("ada", ()) == ("default",)


async def test_what_was_changed_is_shown_and_stays_in_the_history(plugin: SchedulerPlugin) -> None:
    made = await set_up(plugin)
    assert (made.author, made.reason, made.based_on) == ("root", "the first budgets", "")
    assert await plugin.team_changes() == (made,)
    seen = await plugin.teams()
    assert (seen.head, seen.is_open) == (made.id, False)
    shown = {it.team.name: it for it in seen.teams}
    assert shown["vision"].team == FULL
    assert shown["vision"].share == pytest.approx(1 / 6)
    assert shown["research"].gpu_hours_per_day == pytest.approx(24)
    assert await plugin.usable_teams("ü", ()) == ("vision",)
    assert await plugin.usable_teams("ada", {"sehen", "research", "x"}) == ("research", "vision")


async def test_an_undo_takes_it_back(plugin: SchedulerPlugin) -> None:
    made = await set_up(plugin)
    back = await plugin.undo_teams(made.id, reason="not yet", actor="ada")
    assert (back.undoes, back.author, back.reason) == (made.id, "ada", "not yet")
    assert [it.name for it in back.changes if it.after is None] == ["research", "vision"]
    assert (await plugin.teams()).is_open
    with pytest.raises(NotFound, match="no change set 't-7'"):
        await plugin.undo_teams("t-7", reason="r", actor="ada")


async def test_mistakes_and_lost_races_change_nothing(plugin: SchedulerPlugin) -> None:
    made = await set_up(plugin)
    too_much = Proposal("more", made.id, changed=(team("research", guaranteed=3),))
    with pytest.raises(Refused, match="the fleet has 2"):
        await plugin.change_teams(too_much, actor="root")
    late = Proposal("more", "", created=(team("audio"),))
    with pytest.raises(Conflict, match=f"not the last change set.*{made.id}"):
        await plugin.change_teams(late, actor="root")
    with pytest.raises(Refused, match="reason"):
        await plugin.undo_teams(made.id, reason=" ", actor="root")
    assert await plugin.team_changes() == (made,)


async def test_work_is_admitted_by_the_budgets(plugin: SchedulerPlugin) -> None:
    await set_up(plugin)
    with pytest.raises(Refused, match="there is no team 'visio'"):
        await plugin.submit(job(team="visio"), key="a")
    with pytest.raises(Refused, match="0 GPUs at once for work of priority urgent"):
        await plugin.submit(job(team="vision", priority=Priority.URGENT), key="b")
    await plugin.submit(job(team="vision", gpus=2), key="c")
