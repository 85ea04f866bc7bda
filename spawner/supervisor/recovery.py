"""What became of a tree that is gone while no supervisor watched."""

from __future__ import annotations

import logging

from scheduler_bridge.model.phases import Kind, Phase
from spawner.supervisor import bringup
from spawner.supervisor.context import Context
from spawner.supervisor.status import Outcome, Status
from spawner.supervisor.suspend import complete, key_of, last_attempt

_log = logging.getLogger(__name__)


async def conclude(context: Context, earlier: Status | None) -> Outcome:
    """Find out how the tree ended and say so.

    A session whose last suspend was committed is suspended, whatever the earlier supervisor got to
    write down. Anything else ended, with the exit code if somebody recorded it.
    """
    if earlier is not None:
        context.process = earlier.sandbox
    attempt = last_attempt(context.directory)
    if context.order.kind == Kind.SESSION and attempt and attempt.epoch == context.order.epoch:
        stored = await context.machine.find(key_of(context, attempt))
        if stored is not None:
            _log.info("the suspend had been committed as %s", stored.manifest)
            return await complete(context, stored, "suspended before its supervisor died")
    code = None
    if context.process is not None:
        code = context.machine.exit_code(context.sandbox, context.process)
    await bringup.remove(context)
    return await _ended(context, code)


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
