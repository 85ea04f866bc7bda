"""One run of retention and garbage collection: look, decide, carry out.

Sessions are the scheduler's to know, accounts the Hub's, snapshots the store's. What one of them does
not tell is unknown, and what is unknown stays.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hub_config import audit
from hub_config.problems import LocalError
from scheduler_bridge.errors import Conflict, NotFound, Refused
from scheduler_bridge.model.phases import TERMINAL, Kind, Phase
from scheduler_bridge.model.workload import Expiry, Workload
from scheduler_bridge.plugin import SchedulerPlugin
from snapshot.prune import Inventory, Plan, examine, execute, owners, plan
from snapshot.repository import Repository
from snapshot.retention import Announcement, Date, Decision, Policy, Removal, Session, State, decide

ACTOR = "retention"


@dataclass(frozen=True, slots=True)
class Done:
    """What the scheduler agreed to: what may be removed now, and what was announced."""

    removals: tuple[Removal, ...] = ()
    announcements: tuple[Announcement, ...] = ()


def look(repository: Repository) -> tuple[Inventory, ...]:
    """What everybody has in the store."""
    return tuple(examine(repository, owner) for owner in owners(repository))


async def sessions_of(
    scheduler: SchedulerPlugin,
    inventories: Sequence[Inventory],
    accounts: Collection[str] | None,
) -> dict[str, Session]:
    """What is known of the sessions that have snapshots, by id. `accounts` None: the Hub does not
    tell who exists, so everybody does."""
    ids = {manifest.session for each in inventories for manifest in each.manifests}
    known = {str(w.id): w for w in await scheduler.list(kind=Kind.SESSION)}
    sessions = {}
    for session_id in sorted(ids):
        workload = known.get(session_id) or await _ended(scheduler, session_id)
        if workload is not None:
            sessions[session_id] = _session(workload, accounts)
    return sessions


async def needed_by(scheduler: SchedulerPlugin) -> dict[str, str]:
    """Which manifest each live session or job would come back from."""
    live = await scheduler.list()
    return {str(w.id): w.snapshot.key for w in live if w.snapshot is not None}


async def _ended(scheduler: SchedulerPlugin, session_id: str) -> Workload | None:
    try:
        return await scheduler.get(session_id)
    except NotFound:
        return None


def _session(workload: Workload, accounts: Collection[str] | None) -> Session:
    state = State.ALIVE
    if workload.phase in TERMINAL:
        state = State.ENDED
    elif workload.phase is Phase.SUSPENDED:
        state = State.SUSPENDED
    spec = workload.spec
    return Session(
        id=workload.id,
        owner=spec.user,
        team=spec.team,
        profile=spec.profile,
        state=state,
        since=workload.phase_since,
        current=workload.snapshot.key if workload.snapshot else "",
        date=_date(workload.deletion),
        owner_exists=accounts is None or spec.user in accounts,
    )


def _date(expiry: Expiry | None) -> Date | None:
    if expiry is None:
        return None
    return Date(
        expiry.snapshot,
        expiry.at,
        expiry.rule,
        expiry.reason,
        expiry.announced_at,
        expiry.warned,
    )


def judge(
    policy: Policy,
    sessions: Mapping[str, Session],
    inventories: Sequence[Inventory],
    now: float,
    *,
    needed: Mapping[str, str],
) -> Decision:
    """What the rules say. `needed` is what `needed_by` told."""
    manifests = [manifest for each in inventories for manifest in each.manifests]
    sizes = {pack: size for each in inventories for pack, size in each.packs.items()}
    return decide(policy, sessions, manifests, sizes, now, needed=needed)


async def agree(scheduler: SchedulerPlugin, decision: Decision) -> Done:
    """Announce dates, and end the sessions whose date has come. A session that was resumed
    meanwhile keeps everything."""
    announced = []
    for announcement in decision.announcements:
        try:
            await scheduler.announce_expiry(announcement.session, _expiry(announcement.date))
            announced.append(announcement)
        except (Conflict, NotFound, Refused):
            continue
    refused = set()
    for removal in decision.removals:
        if removal.ends_session:
            try:
                await scheduler.expire(removal.session, snapshot=removal.manifest)
            except (Conflict, NotFound):
                refused.add(removal.session)
    return Done(
        tuple(removal for removal in decision.removals if removal.session not in refused),
        tuple(announced),
    )


def _expiry(date: Date | None) -> Expiry | None:
    if date is None:
        return None
    return Expiry(date.snapshot, date.at, date.rule, date.reason, warned=date.warned)


def plans(
    inventories: Sequence[Inventory], removals: Sequence[Removal], policy: Policy, now: float
) -> tuple[Plan, ...]:
    """What is to be deleted of each owner."""
    going = {removal.manifest for removal in removals}
    return tuple(plan(each, now=now, grace=policy.grace, going=going) for each in inventories)


def carry_out(
    repository: Repository,
    decided: Sequence[Plan],
    removals: Sequence[Removal],
    gone_file: Path,
    now: float,
) -> tuple[Plan, ...]:
    """Delete, with one line for each snapshot. Returns what was done: an owner whom another
    collector looks after is left to that one."""
    lines: dict[str, list[audit.Gone]] = {}
    for removal in removals:
        lines.setdefault(removal.owner, []).append(_line(removal, now))
    done = []
    for each in decided:
        audit.note(gone_file, lines.get(each.owner, ()))
        if execute(repository, each):
            done.append(each)
    return tuple(done)


async def deserted(
    scheduler: SchedulerPlugin, repository: Repository, accounts: Collection[str] | None
) -> tuple[str, ...]:
    """Whose keys open nothing any more: no account, no session, nothing in the store."""
    if accounts is None:
        return ()
    gone = set(repository.keys.owners()) - set(accounts) - set(owners(repository))
    return tuple([owner for owner in sorted(gone) if not await scheduler.list(user=owner)])


def erase_keys(repository: Repository, owner: str, gone_file: Path, now: float) -> None:
    """Delete the keys of a deleted account, with a line for it."""
    reason = "the account was deleted and nothing is stored of it"
    audit.note(gone_file, (audit.Gone(now, owner, "", f"keys/{owner}", "", reason, actor=ACTOR),))
    repository.keys.erase(owner)


def _line(removal: Removal, now: float) -> audit.Gone:
    return audit.Gone(
        now,
        removal.owner,
        removal.session,
        removal.manifest,
        removal.rule,
        removal.reason,
        removal.bytes,
        ACTOR,
    )


@contextmanager
def only_collector(path: Path) -> Iterator[None]:
    """Hold the lock file. Raises `LocalError` while another run of this machine has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise LocalError("Another run is under way.", remedy="Wait until it is done.") from None
    try:
        yield
    finally:
        os.close(descriptor)
