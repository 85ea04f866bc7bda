"""Who speaks for a lease, and what they are told."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from dataclasses import replace
from enum import Enum, auto
from typing import Any

from scheduler_bridge.engine.books import Books
from scheduler_bridge.errors import NotAllowed, NotFound
from scheduler_bridge.model.phases import HOLDS_LEASE, Desired, Phase
from scheduler_bridge.model.workload import Instruction, Workload
from scheduler_bridge.store.base import LeaseRecord

_FORMER_KEPT = 8
_TAKEN_AT = "taken_at"


class Standing(Enum):
    """What a credential is worth now."""

    CURRENT = auto()
    FENCED = auto()
    LEFT_BEHIND = auto()
    RELEASED = auto()


def digest(credential: str) -> str:
    """How a credential is stored. It is random and long, so a plain hash cannot be guessed."""
    return hashlib.sha256(credential.encode()).hexdigest()


def renew_credential(record: LeaseRecord, now: float) -> tuple[LeaseRecord, str]:
    """The record with a new credential, and the credential. Earlier holders are fenced off."""
    credential = secrets.token_urlsafe(32)
    former = (*record.former_hashes, record.credential_hash) if record.credential_hash else ()
    renewed = replace(
        record,
        credential_hash=digest(credential),
        former_hashes=former[-_FORMER_KEPT:],
        taken_at=now,
    )
    return renewed, credential


def with_handle(record: LeaseRecord, told: Mapping[str, Any]) -> LeaseRecord:
    """The record with what its present holder says about itself, over what was known."""
    mark = {_TAKEN_AT: record.taken_at} if "supervisor" in told else {}
    return replace(record, handle={**record.handle, **told, **mark})


def speaks_for(record: LeaseRecord) -> bool:
    """Whether the handle is the present holder's. After a lease was taken up again it is still the
    former one's, and says nothing about the one that is just being started."""
    return record.taken_at is not None and record.handle.get(_TAKEN_AT) == record.taken_at


def identify(books: Books, lease_id: str, credential: str) -> tuple[LeaseRecord, Standing]:
    """The lease and what its bearer may do. Raises `NotFound`, `NotAllowed`."""
    record = books.leases.get(lease_id) or books.store.lease(lease_id)
    if record is None:
        raise NotFound(f"There is no lease {lease_id}.")
    offered = digest(credential)
    if any(hmac.compare_digest(offered, former) for former in record.former_hashes):
        return record, Standing.FENCED
    if not record.credential_hash or not hmac.compare_digest(offered, record.credential_hash):
        raise NotAllowed(f"The credential does not belong to lease {lease_id}.")
    if record.released_at is not None:
        return record, Standing.RELEASED
    if books.is_lingering(record):
        return record, Standing.LEFT_BEHIND
    return record, Standing.CURRENT


_ON_THE_WAY = {
    Desired.RUNNING: frozenset(
        {Phase.STARTING, Phase.RUNNING, Phase.RESUMING, Phase.FILLING, Phase.LOST}
    ),
    Desired.SUSPENDED: frozenset({Phase.SUSPENDING, Phase.PREEMPTING, Phase.PARKED}),
    Desired.STOPPED: frozenset({Phase.CANCELLING}),
}


def differs(desired: Desired, phase: Phase) -> bool:
    """Whether a supervisor in this phase has to do something about what is desired."""
    return phase in HOLDS_LEASE and phase not in _ON_THE_WAY[desired]


def instruction(workload: Workload, record: LeaseRecord) -> Instruction:
    """What the current holder is told."""
    return Instruction(
        desired=workload.desired,
        reason=workload.desired_reason,
        actor=workload.desired_by,
        expires_at=record.lease.expires_at,
    )


def revocation(record: LeaseRecord, now: float) -> Instruction:
    """What a former holder is told: end your sandbox, the lease is not yours."""
    why = f" It was given up: {record.ended_cause}." if record.forced else ""
    return Instruction(
        desired=Desired.STOPPED,
        reason=f"The lease is no longer this holder's; stop yourself.{why}",
        actor="scheduler",
        expires_at=now,
        revoked=True,
    )
