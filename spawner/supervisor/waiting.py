"""What a supervisor waits for while its tree runs."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from spawner.supervisor.context import Context
from spawner.supervisor.suspend import CoolDown
from spawner.supervisor.wishes import Action, Wish


@dataclass(frozen=True, slots=True)
class Ended:
    """The sandbox's first process ended by itself."""


async def until_event(context: Context, cool_down: CoolDown | None = None) -> Ended | Wish:
    """The next thing to react to: the end of the tree, or a wish whose time has come."""
    ended = asyncio.ensure_future(context.machine.ended(context.tree))
    try:
        while True:
            if ended.done():
                return Ended()
            context.wishes.changed.clear()
            wish = context.wishes.current()
            delay = _delay(context, cool_down, wish) if wish else None
            if wish is not None and not delay:
                return wish
            await _until(ended, context.wishes.changed, delay)
    finally:
        ended.cancel()
        await asyncio.gather(ended, return_exceptions=True)


def _delay(context: Context, cool_down: CoolDown | None, wish: Wish) -> float:
    """Seconds until a wish counts: suspends from afar wait for the cool-down and for a hold."""
    if wish.local or wish.action is not Action.SUSPEND:
        return 0.0
    rest = cool_down.remaining(asyncio.get_running_loop().time()) if cool_down else 0.0
    return max(rest, context.ear.hold_remaining(context.now()), 0.0)


async def _until(
    ended: asyncio.Future[None], changed: asyncio.Event, timeout: float | None
) -> None:
    change = asyncio.ensure_future(changed.wait())
    either: set[asyncio.Future[Any]] = {ended, change}
    try:
        await asyncio.wait(either, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        change.cancel()
        await asyncio.gather(change, return_exceptions=True)
