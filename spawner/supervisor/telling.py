"""Tells the session's own pages its state (`state.json` in `/run/hubernate`): how much of its memory
has arrived, and whether it could be suspended.

    {"filling": {"percent": 63, "trouble": ""}, "suspend": {"can": true, "sentence": "…"}}

`filling` is null unless memory is on its way; `percent` and `can` are null while they are not known.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from scheduler_bridge.model.phases import Phase
from spawner.arrival import arrival
from spawner.badge import Outlook
from spawner.supervisor import inside
from spawner.supervisor.context import Context

_log = logging.getLogger(__name__)

STATE_FILE = "state.json"
LOOK_SECONDS = 0.5
_LIVE = frozenset({Phase.RUNNING, Phase.FILLING})


def state_of(facts: Mapping[str, object], outlook: Outlook) -> dict[str, Any]:
    """What the pages are told, from the facts of a status."""
    coming = arrival(facts)
    return {
        "filling": None if coming is None else asdict(coming),
        "suspend": {"can": outlook.can, "sentence": outlook.sentence},
    }


async def tell_state(context: Context, outlook: Callable[[], Outlook]) -> None:
    """Write each change, until cancelled. Nothing is written into a session that is frozen."""
    told: dict[str, Any] = {}
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        now = state_of(context.board.status.facts, outlook())
        is_live = context.board.status.phase in _LIVE
        if now == told or not is_live or context.spec is None:
            continue
        told = now
        try:
            inside.write_json(context.spec, STATE_FILE, now)
        except OSError as error:
            # the folder is the user's, who may have made a mess of it
            _log.warning("the session's pages are not told its state: %s", error)
