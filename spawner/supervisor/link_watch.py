"""Brings a session's connection back when the program that keeps it has died."""

from __future__ import annotations

import asyncio
import logging

from scheduler_bridge.model.phases import Phase
from spawner.supervisor.context import Context
from spawner.supervisor.machine import MachineError

_log = logging.getLogger(__name__)

LOOK_SECONDS = 2.0


async def watch_link(context: Context) -> None:
    """Look every two seconds, until cancelled."""
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        if context.board.status.phase == Phase.RUNNING and context.process is not None:
            await _look(context)


async def _look(context: Context) -> None:
    try:
        port = await context.machine.reconnect(context.tree, context.sandbox)
    except MachineError as error:
        _log.error("the connection is lost: %s", error)
        return
    if port is not None:
        _log.warning("the connection was lost; the session answers on port %d again", port)
        context.answers_on(port)
        context.board.update(host_port=port)
