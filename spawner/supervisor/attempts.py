"""Numbers the suspends of a session, so that the newest snapshot is known by its key alone."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from snapshot.model import SnapshotKey
from spawner.supervisor.context import Context

SEQUENCE_FILE = "sequence.json"


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
