"""The suspend sequence, and when to try again after it did not succeed."""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import dataclass
from pathlib import Path

from scheduler_bridge.model.phases import Phase
from scheduler_bridge.model.workload import SnapshotRef
from snapshot.model import SnapshotKey, Stored
from spawner.supervisor.context import Context
from spawner.supervisor.courier import Move
from spawner.supervisor.machine import NotFreezableError
from spawner.supervisor.signals import describe
from spawner.supervisor.status import Outcome

_log = logging.getLogger(__name__)

SEQUENCE_FILE = "sequence.json"
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


@dataclass(frozen=True, slots=True)
class Attempt:
    """The number of a suspend of one session; written down before it begins."""

    epoch: int
    sequence: int


def last_attempt(directory: Path) -> Attempt | None:
    """The last suspend that was begun, None if there was none."""
    try:
        return Attempt(**json.loads((directory / SEQUENCE_FILE).read_text()))
    except (FileNotFoundError, ValueError, TypeError):
        return None


def next_attempt(directory: Path, epoch: int) -> Attempt:
    """Count up, durably. Within an epoch the sequence grows; a new epoch outranks all before."""
    before = last_attempt(directory)
    attempt = Attempt(epoch, before.sequence + 1 if before else 1)
    temporary = directory / (SEQUENCE_FILE + ".new")
    temporary.write_text(json.dumps({"epoch": attempt.epoch, "sequence": attempt.sequence}))
    temporary.replace(directory / SEQUENCE_FILE)
    return attempt


def key_of(context: Context, attempt: Attempt) -> SnapshotKey:
    """Where the snapshot of an attempt belongs."""
    order = context.order
    return SnapshotKey(order.user, order.workload_id, attempt.epoch, attempt.sequence)


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


async def suspend(context: Context, reason: str) -> Outcome | None:
    """Suspend the session. None: it could not be, and goes on as it was (the status says why)."""
    context.enter(Phase.SUSPENDING, reason)
    try:
        stored = await _freeze(context)
    except NotFreezableError as error:
        await _go_on(context, error)
        return None
    await _until_empty(context)
    return await complete(context, stored, reason)


async def _freeze(context: Context) -> Stored:
    if context.order.not_freezable_because:
        raise NotFreezableError(context.order.not_freezable_because)
    context.blockers = await context.machine.inspect(context.tree)
    if context.blockers:
        raise NotFreezableError(" ".join(describe(each) for each in context.blockers))
    # A tree that a fence halted would be restored as halted.
    context.fence.open()
    attempt = next_attempt(context.directory, context.order.epoch)
    return await context.machine.freeze(context.tree, context.sandbox, key_of(context, attempt))


async def _go_on(context: Context, error: NotFreezableError) -> None:
    """The tree runs: give it its network back and tell why it was not suspended."""
    _log.warning("not suspended: %s", error)
    if context.machine.is_alive(context.tree):
        await context.connect()
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
