"""Once teams have budgets, groups of a real Hub lead to teams and not every group is one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.builders.hub import RunningHub, running_hub
from tests.fakes.plain_spawner import CONFIG
from tests.spawner.test_teams_hub import Member

pytestmark = pytest.mark.asyncio(loop_scope="module")

BUDGETS = """
from scheduler_bridge.engine import teams
from scheduler_bridge.model.teams import Proposal, Team
from tests.fakes.plain_spawner import scheduler
teams.change(
    scheduler().engine,
    Proposal("tests", created=(
        Team("vision", groups=("sehen",), limit=1),
        Team("audio", groups=("sehen", "speech")),
    )),
    author="tests",
)
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hub(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningHub]:
    folder: Path = tmp_path_factory.mktemp("hub")
    config = CONFIG.format(folder=str(folder / "sessions")) + BUDGETS
    async with running_hub(folder, config) as running:
        yield running


async def new_member(hub: RunningHub, name: str, *groups: str) -> Member:
    await hub.api("POST", f"/users/{name}")
    return await Member(hub, name).join(*groups)


async def test_a_group_leads_to_its_teams(hub: RunningHub) -> None:
    member = await new_member(hub, "ada", "sehen")
    answer = await member.start(profile="cpu")
    assert "Say which one with team: audio, vision." in answer.json()["message"]
    answer = await member.start(profile="gpu-2", team="vision")
    assert "team vision may hold 1 GPU at once" in answer.json()["message"]
    assert (await member.start(profile="gpu-2", team="audio")).status_code == 201
    await hub.remove("ada")


async def test_a_group_that_is_no_team_shares_the_default_one(hub: RunningHub) -> None:
    member = await new_member(hub, "bob", "chess")
    answer = await member.start(profile="cpu", team="chess")
    assert "Your team is: default." in answer.json()["message"]
    assert (await member.start(profile="cpu")).status_code == 201
    await hub.remove("bob")
