"""What became of a tree that is gone while no supervisor watched."""

from __future__ import annotations

import asyncio
import logging

from scheduler_bridge.model.phases import Kind, Phase
from snapshot.model import SnapshotKey, Stored
from spawner.supervisor import bringup
from spawner.supervisor.context import Context
from spawner.supervisor.machine import StoreSilentError
from spawner.supervisor.status import Outcome, Status
from spawner.supervisor.suspend import complete, key_of, last_attempt
from spawner.supervisor.wishes import Action

_log = logging.getLogger(__name__)

STORE_RETRY_SECONDS = 2.0


async def conclude(context: Context, earlier: Status | None) -> Outcome:
    """Find out how the tree ended and say so.

    A session whose last suspend was committed is suspended, whatever the earlier supervisor got to
    write down. Anything else ended, with the exit code if somebody recorded it.
    """
    if earlier is not None:
        context.process = earlier.sandbox
    attempt = last_attempt(context.directory)
    if context.order.kind == Kind.SESSION and attempt and attempt.epoch == context.order.epoch:
        stored = await _find(context, key_of(context, attempt))
        if stored is not None:
            _log.info("the suspend had been committed as %s", stored.manifest)
            return await complete(context, stored, "suspended before its supervisor died")
    code = None
    if context.process is not None:
        code = context.machine.exit_code(context.sandbox, context.process)
    await bringup.remove(context)
    return await _ended(context, code)


async def _find(context: Context, key: SnapshotKey) -> Stored | None:
    """The snapshot, if it was committed. A store that does not answer is asked until it does: the
    session's only memory may be in it, and ending the session would throw it away."""
    while True:
        try:
            return await context.machine.find(key)
        except StoreSilentError as error:
            _log.warning("not known yet whether the suspend was committed: %s", error)
        context.board.update(error="The store does not answer.", remedy="Start the store.")
        wish = context.wishes.current()
        if wish is not None and wish.action is Action.STOP:
            return None
        await asyncio.sleep(STORE_RETRY_SECONDS)


async def _ended(context: Context, code: int | None) -> Outcome:
    words = "unknown" if code is None else str(code)
    cause = f"it ended while no supervisor watched (exit code {words})"
    if context.order.kind == Kind.SESSION:
        return await context.finish(Phase.STOPPED, Outcome.EXITED, cause, exit_code=code)
    if code == 0:
        return await context.finish(Phase.SUCCEEDED, Outcome.EXITED, cause, exit_code=0)
    remedy = f"Its output is in {context.directory}/run/output.log."
    return await context.finish(
        Phase.FAILED,
        Outcome.EXITED,
        cause,
        exit_code=code,
        error=f"The job: {cause}.",
        remedy=remedy,
    )
