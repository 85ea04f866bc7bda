"""What became of a tree that is gone: stored, or ended."""

from __future__ import annotations

import asyncio
import logging

from scheduler_bridge.model.phases import Kind, Phase
from scheduler_bridge.model.workload import SnapshotRef
from snapshot.model import SnapshotKey, Stored
from spawner.supervisor import bringup
from spawner.supervisor.attempts import key_of, last_attempt
from spawner.supervisor.context import Context
from spawner.supervisor.machine import StoreSilentError
from spawner.supervisor.status import Outcome

_log = logging.getLogger(__name__)

STORE_RETRY_SECONDS = 2.0


def reference(stored: Stored) -> SnapshotRef:
    """What the scheduler is told of a committed snapshot."""
    return SnapshotRef(
        key=stored.manifest,
        epoch=stored.key.epoch,
        sequence=stored.key.sequence,
        bytes=stored.memory_bytes,
        stored_bytes=stored.stored_bytes,
        created_at=stored.created_at,
        constraints=stored.constraints,
    )


async def complete(context: Context, stored: Stored, reason: str) -> Outcome:
    """The tree is stored and gone: clean up and say so."""
    await context.machine.disconnect(context.sandbox)
    return await context.finish(
        Phase.SUSPENDED,
        Outcome.SUSPENDED,
        reason,
        snapshot=reference(stored),
        steps=stored.timings,
    )


async def conclude(context: Context) -> Outcome:
    """Find out how the tree ended and say so.

    A session whose last suspend was committed is suspended, whatever the earlier supervisor got to
    write down. Anything else ended, with the exit code if somebody recorded it.
    """
    attempt = last_attempt(context.directory)
    if context.order.kind == Kind.SESSION and attempt and attempt.epoch == context.order.epoch:
        stored = await _find(context, key_of(context, attempt))
        if stored is not None:
            _log.info("the suspend had been committed as %s", stored.manifest)
            return await complete(context, stored, "its suspend had been committed")
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
        if context.wishes.stop() is not None:
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
