"""Ends what nobody looks after any more: network helpers of sandboxes that no longer exist.

A helper outlives its supervisor on purpose, because the session goes on. Where both were killed,
nothing else would end it.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from pydantic import ValidationError

from snapshot import network, proc
from snapshot.model import Process
from spawner.supervisor.status import read_status


async def end_stray_links(run_directory: Path) -> tuple[int, ...]:
    """PIDs of the helpers that were ended. Leaves alone what has a supervisor or a sandbox, and
    whatever is not known."""
    ended = []
    for folder in await asyncio.to_thread(
        lambda: [p for p in sorted(run_directory.glob("*")) if p.is_dir()]
    ):
        link = network.recorded(folder)
        if link is None or not _is_abandoned(folder):
            continue
        await link.close()
        ended.append(link.process.pid)
    return tuple(ended)


def _is_abandoned(folder: Path) -> bool:
    try:
        status = read_status(folder)
    except (OSError, ValidationError):
        return False
    if status is None or status.sandbox is None:
        return False
    return _has_ended(status.sandbox) and _has_ended(status.supervisor)


def _has_ended(process: Process | None) -> bool:
    return process is None or proc.has_ended(process)
