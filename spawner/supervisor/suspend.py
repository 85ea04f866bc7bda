"""The suspend sequence, and when to try again after it did not succeed."""

from __future__ import annotations

import asyncio
import logging

from scheduler_bridge.model.phases import Phase
from snapshot.model import Stored
from spawner.supervisor.attempts import key_of, next_attempt
from spawner.supervisor.context import Context
from spawner.supervisor.courier import Move
from spawner.supervisor.machine import MachineError, NotFreezableError
from spawner.supervisor.recovery import complete, conclude
from spawner.supervisor.signals import describe
from spawner.supervisor.status import Outcome

_log = logging.getLogger(__name__)

EMPTY_POLL_SECONDS = 0.05
FIRST_COOL_DOWN_SECONDS, LAST_COOL_DOWN_SECONDS = 15.0, 600.0


class CoolDown:
    """After a failed suspend the scheduler's wish rests: 15 s, doubling up to ten minutes. What root
    asks for on this machine is tried at once."""

    def __init__(self) -> None:
        self._seconds = FIRST_COOL_DOWN_SECONDS
        self._until = float("-inf")

    def failed(self, now: float) -> None:
        """Note a failure at `now` (monotonic seconds)."""
        self._until = now + self._seconds
        self._seconds = min(2 * self._seconds, LAST_COOL_DOWN_SECONDS)

    def remaining(self, now: float) -> float:
        """Seconds to wait, 0 if none."""
        return max(self._until - now, 0.0)


async def suspend(context: Context, reason: str) -> Outcome | None:
    """Suspend the session. None: it could not be, and goes on as it was (the status says why)."""
    context.enter(Phase.SUSPENDING, reason)
    try:
        stored = await _freeze(context)
    except NotFreezableError as error:
        if context.machine.is_alive(context.tree):
            await _go_on(context, error)
            return None
        _log.error("the tree is gone although its suspend failed: %s", error)
        return await conclude(context)
    await _until_empty(context)
    return await complete(context, stored, reason)


async def _freeze(context: Context) -> Stored:
    if context.order.not_freezable_because:
        raise NotFreezableError(context.order.not_freezable_because)
    context.blockers = await context.machine.inspect(context.tree)
    if context.blockers:
        raise NotFreezableError(" ".join(describe(each) for each in context.blockers))
    attempt = next_attempt(context.directory, context.order.epoch)
    key = key_of(context, attempt)
    with context.fence.held_open():
        return await context.machine.freeze(context.tree, context.sandbox, key)


async def _go_on(context: Context, error: NotFreezableError) -> None:
    """The tree runs: give it its network back and tell why it was not suspended."""
    _log.warning("not suspended: %s", error)
    try:
        await context.connect()
    except MachineError as problem:
        _log.error("the connection is not back yet: %s", problem)
    port = context.sandbox.network.host_port
    context.board.update(
        phase=Phase.RUNNING.value, host_port=port, error=error.message, remedy=error.remedy
    )
    evidence = {"error": error.message, "remedy": error.remedy}
    cause = f"could not be suspended: {error}"
    context.courier.post(Move(Phase.RUNNING, cause, evidence))


async def _until_empty(context: Context) -> None:
    """The commit happened: whatever is still there only needs to be gone."""
    for _ in range(int(context.order.grace_seconds / EMPTY_POLL_SECONDS)):
        if context.machine.is_empty(context.tree):
            return
        await asyncio.sleep(EMPTY_POLL_SECONDS)
    await context.machine.terminate(context.tree, 0.0)
