"""What a supervisor waits for while its tree runs."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from snapshot.refusals import FillingLostError
from spawner.supervisor.context import Context
from spawner.supervisor.suspend import CoolDown
from spawner.supervisor.wishes import Action, Wish

NOT_YET = "The session cannot be suspended yet: its memory is still arriving."
NOT_YET_REMEDY = "It is suspended as soon as all of it is there, or can be stopped now."


@dataclass(frozen=True, slots=True)
class Ended:
    """The sandbox's first process ended by itself."""


@dataclass(frozen=True, slots=True)
class Filled:
    """All memory of the resumed tree is there; or, with `lost`, never will be, and why."""

    lost: str = ""


async def until_event(context: Context, cool_down: CoolDown | None = None) -> Ended | Filled | Wish:
    """The next thing to react to: the end of the tree, its memory being complete, or a wish whose
    time has come. While memory is to come, a suspend waits, and the status says so; who lost the
    lease waits for it no longer than the order allows."""
    ended = asyncio.ensure_future(context.machine.ended(context.tree))
    filled = asyncio.ensure_future(_filled(context))
    try:
        while True:
            if filled.done():
                return filled.result()
            if ended.done():
                return Ended()
            context.wishes.changed.clear()
            wish = context.wishes.current()
            _explain_waiting(context, wish)
            delay = _delay(context, cool_down, wish) if wish else None
            if wish is not None and delay == 0.0:
                return wish
            await _until({ended, filled}, context.wishes.changed, delay)
    finally:
        ended.cancel()
        filled.cancel()
        await asyncio.gather(ended, filled, return_exceptions=True)


async def _filled(context: Context) -> Filled:
    """Never returns if nothing is to come."""
    if context.filling is None:
        await asyncio.Event().wait()
    else:
        try:
            await context.filling.until_filled()
        except FillingLostError as error:
            return Filled(error.message)
    return Filled()


def _explain_waiting(context: Context, wish: Wish | None) -> None:
    """Say in the status that a suspend waits for memory, or no longer."""
    waits = context.filling is not None and wish is not None and wish.action is Action.SUSPEND
    is_said = context.board.status.error == NOT_YET
    if waits and not is_said:
        context.board.update(error=NOT_YET, remedy=NOT_YET_REMEDY)
    elif is_said and not waits:
        context.board.update(error="", remedy="")


def _delay(context: Context, cool_down: CoolDown | None, wish: Wish) -> float | None:
    """Seconds until a wish counts, None: not before all memory is there. Suspends from afar wait for
    the cool-down and for a hold."""
    if context.filling is not None and wish.action is Action.SUSPEND:
        return None
    if context.filling is not None and wish.action is Action.YIELD_LEASE:
        return max(context.order.lease_patience_seconds - context.wishes.lease_lost_for(), 0.0)
    if wish.local or wish.action is not Action.SUSPEND:
        return 0.0
    rest = cool_down.remaining(asyncio.get_running_loop().time()) if cool_down else 0.0
    return max(rest, context.ear.hold_remaining(context.now()), 0.0)


async def _until(
    others: set[asyncio.Future[Any]], changed: asyncio.Event, timeout: float | None
) -> None:
    change = asyncio.ensure_future(changed.wait())
    either: set[asyncio.Future[Any]] = {*others, change}
    try:
        await asyncio.wait(either, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        change.cancel()
        await asyncio.gather(change, return_exceptions=True)
