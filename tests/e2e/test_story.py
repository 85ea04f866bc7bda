"""The story of the README through the real Hub, proxy, CRIU and S3 server."""

from __future__ import annotations

from pathlib import Path

import pytest

from hub_config.demo.browserless import log_in
from hub_config.demo.stage import installation
from hub_config.demo.story import Report, play
from hub_config.paths import state_folder

pytestmark = [pytest.mark.e2e, pytest.mark.criu, pytest.mark.asyncio(loop_scope="module")]


@pytest.mark.timeout(240)
async def test_the_story_holds_from_first_cell_to_a_killed_store(folder: Path) -> None:
    downloads = state_folder().downloads
    report = Report()
    async with installation(folder / "state", downloads=downloads, gpus=1, idle_after=6) as stage:
        alice = await log_in(stage.url, "alice", stage.password())
        await play(stage, alice, report)
        await alice.http.aclose()
    happened = [line[0] for line in report.lines]
    assert "Resume" in happened
    assert "S3 server killed during a suspend" in happened
