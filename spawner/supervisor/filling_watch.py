"""Says in the status how much of a resumed session's memory is there, and why no more comes."""

from __future__ import annotations

import asyncio
from dataclasses import asdict

from spawner.arrival import FACT
from spawner.supervisor.context import Context

LOOK_SECONDS = 0.5


async def watch_filling(context: Context) -> None:
    """Note changes until cancelled."""
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        if context.filling is not None:
            now = asdict(context.filling.progress)
            if now != context.board.status.facts.get(FACT):
                context.note(FACT, now)
