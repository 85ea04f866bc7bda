"""Several sessions out of one suspended session. Knows scheduler and host, not JupyterHub.

What belongs to the fork is laid out first; then the scheduler registers it, but only if the first
session is still suspended as the snapshot that was copied. So nothing was copied from under a
running session, and a fork exists whole or not at all.
"""

from __future__ import annotations

import logging
import secrets
from dataclasses import replace

from scheduler_bridge.errors import Conflict, SchedulerError
from scheduler_bridge.model.phases import Phase
from scheduler_bridge.model.workload import Fork, Workload, WorkloadId
from scheduler_bridge.plugin import SchedulerPlugin
from spawner.hosting import HostError, SessionHost
from spawner.names import session_name

_log = logging.getLogger(__name__)


async def fork(
    plugin: SchedulerPlugin, host: SessionHost, source: Workload, *, key: str, server: str
) -> Workload:
    """Another session of the same owner, suspended as `source` is. Raises `Conflict`, `HostError`
    and other `SchedulerError`; nothing is left of the fork then."""
    if source.phase is not Phase.SUSPENDED or source.snapshot is None:
        raise Conflict(
            f"Only a suspended session can be forked; this one is {source.phase}.",
            remedy="Suspend it first.",
        )
    new = Fork(f"s-{secrets.token_hex(6)}", key, session_name(source.spec.user, server), server)
    copied = await host.fork(source, new.id)
    try:
        return await plugin.fork(
            source.id,
            new=new,
            snapshot=copied,
            source_snapshot=source.snapshot.key,
            actor=source.spec.user,
        )
    except SchedulerError:
        await _undo(host, replace(source, id=WorkloadId(new.id), snapshot=copied))
        raise


async def _undo(host: SessionHost, laid_out: Workload) -> None:
    try:
        await host.forget(laid_out)
    except HostError as error:
        _log.warning("what was laid out for the fork %s is left: %s", laid_out.id, error)
