"""What must survive: a suspend that is undone, a freeze and thaw, and one more of what was thawed.

All creatures live in one tree, which goes through every stage once; see `creatures`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.survival.creatures.stage import STAGES
from tests.survival.menagerie import CREATURES, Menagerie, menagerie

pytestmark = [
    pytest.mark.criu,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(240),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def creatures(open_folder: Path) -> AsyncIterator[Menagerie]:
    async with menagerie(open_folder, CREATURES) as led:
        yield led


@pytest.mark.parametrize("name", CREATURES)
async def test_a_creature_survives_every_stage(creatures: Menagerie, name: str) -> None:
    said = creatures.said(name)
    survived = [stage for stage in STAGES if f"{stage}: survived" in said]
    assert survived == list(STAGES), said
    assert "Traceback" not in said, said
