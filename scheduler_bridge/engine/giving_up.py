"""An administrator gives up what cannot be proven gone: a machine that died, a session whose
supervisor is silent. First it is said what is given up, then it is done, and who did it is kept.

What is given up without proof may still run. So a machine keeps its leases until every holder on it
has had to halt itself, unless the administrator names each workload and takes that on; and what still
speaks for a lease that was given up is told to stop itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Final

from scheduler_bridge.clusters.base import Life
from scheduler_bridge.engine.books import Draft
from scheduler_bridge.engine.losses import Loss, after_loss, fall_back, stage_gone
from scheduler_bridge.engine.presence import fenced_at
from scheduler_bridge.engine.scheduler import Scheduler
from scheduler_bridge.errors import Conflict, NotFound, Refused
from scheduler_bridge.model.nodes import Death, GivenUp, Losses, NodeRecord, NodeStanding
from scheduler_bridge.model.phases import Kind, Phase
from scheduler_bridge.model.queue import called
from scheduler_bridge.model.workload import Workload
from scheduler_bridge.store.base import LeaseRecord

MAX_REASON: Final = 500
_LIVES: Final = frozenset({Life.ALIVE, Life.ORPHANED})


def losses_of_node(scheduler: Scheduler, name: str) -> Losses:
    """What is given up if the machine is declared dead now. Raises `NotFound`."""
    _check_known(scheduler, name)
    items = tuple(_item(scheduler, record, name) for record in _leases_on(scheduler, name))
    return Losses(items, _obstacle(scheduler, name, items), name)


def declare_dead(
    scheduler: Scheduler,
    name: str,
    *,
    reason: str,
    actor: str,
    at_once: bool = False,
    given_up: Collection[str] | None = None,
) -> NodeRecord:
    """Release every lease on the machine, queue its jobs again, offer its sessions from their last
    snapshots, and give it no new work until it is revived. Idempotent.

    `at_once` goes ahead although something on it may still run; `given_up` must then name every
    workload that `losses_of_node` names. Raises `NotFound`, `Refused`, `Conflict`, having changed
    nothing.
    """
    _check_reason(reason)
    known = scheduler.books.node_record(name)
    if known.death is not None:
        return known
    losses = losses_of_node(scheduler, name)
    if losses.obstacle and not at_once:
        raise Conflict(losses.obstacle, remedy="Wait, or give up now what may still run there.")
    _check_named(losses, given_up, needed=at_once)
    books = scheduler.books
    loss = Loss(f"its machine {name} was declared dead: {reason}", actor, _error(name))
    with books.draft() as draft:
        records = _leases_on(scheduler, name)
        for record in records:
            _stage(draft, record, name, loss)
        released = tuple(str(r.lease.id) for r in records if r.lease.node == name)
        death = Death(draft.now, actor, reason, released)
        draft.put_node(replace(known, death=death))
        draft.note(
            "node_dead",
            None,
            cause=reason,
            actor=actor,
            evidence={"node": name, "given_up": list(losses.ids), "at_once": at_once},
        )
    scheduler.presence.close()
    scheduler.wake()
    return books.node_record(name)


def _stage(draft: Draft, record: LeaseRecord, name: str, loss: Loss) -> None:
    evidence = {"node": name, "lease": record.lease.id, "epoch": record.lease.epoch}
    forced = replace(record, forced=True)
    if record.lease.node != name:
        # its supervisor is on a machine that lives, and ends the rest of the gang there
        if draft.is_current(record):
            workload = draft.leave_behind(draft.workload(record.lease.workload_id))
            draft.put_lease(replace(forced, ended_cause=loss.cause))
            fall_back(draft, workload, evidence, loss)
    elif record.taken_at is None and draft.is_current(record):
        _find_another_place(draft, record, loss)
    else:
        stage_gone(draft, forced, evidence=evidence, loss=loss)


def _find_another_place(draft: Draft, record: LeaseRecord, loss: Loss) -> None:
    """Nobody has come for the place yet: nothing is lost but the place."""
    draft.release(record, ended_as=Phase.QUEUED, cause=loss.cause, actor=loss.actor)
    workload = draft.workload(record.lease.workload_id)
    if workload.phase is Phase.RESUMING:
        workload = draft.move(workload, Phase.SUSPENDED, cause=loss.cause, actor=loss.actor)
    ends = workload.phase is Phase.CANCELLING
    draft.move(
        workload, Phase.CANCELLED if ends else Phase.QUEUED, cause=loss.cause, actor=loss.actor
    )


def revive(scheduler: Scheduler, name: str, *, reason: str, actor: str) -> NodeRecord:
    """The machine may get work again. Raises `Conflict` while something that was given up with it
    still runs there. Idempotent."""
    _check_known(scheduler, name)
    record = scheduler.books.node_record(name)
    if record.death is None:
        return record
    if still := still_there(scheduler, record):
        raise Conflict(
            f"{name} still runs {', '.join(still)}, which was given up and told to stop itself.",
            remedy="Wait until it has ended, or restart the machine.",
        )
    with scheduler.books.draft() as draft:
        draft.put_node(replace(record, death=None))
        draft.note(
            "node_revived",
            None,
            cause=reason or "revived",
            actor=actor,
            evidence={"node": name, "declared_at": record.death.at, "by": record.death.actor},
        )
    scheduler.presence.close()
    scheduler.wake()
    return scheduler.books.node_record(name)


def still_there(scheduler: Scheduler, record: NodeRecord) -> tuple[str, ...]:
    """Workloads that were given up with the machine, and that are known to run on it still."""
    found = []
    for lease_id in record.death.leases if record.death else ():
        lease = scheduler.books.store.lease(lease_id)
        if lease is None:
            continue
        if scheduler.presence.is_ghost(lease_id) or scheduler.life_of(lease.handle) in _LIVES:
            found.append(str(lease.lease.workload_id))
    return tuple(sorted(found))


def losses_of_session(scheduler: Scheduler, workload_id: str) -> Losses:
    """What is given up if the session is stopped by force now. Raises `NotFound`."""
    workload = scheduler.get(workload_id)
    record = scheduler.books.current_lease(workload)
    if record is None:
        return Losses((), _no_lease(workload))
    return Losses((_item(scheduler, record, record.lease.node),), _heard(scheduler, record))


def force_stop(
    scheduler: Scheduler,
    workload_id: str,
    *,
    reason: str,
    actor: str,
    given_up: Collection[str] | None = None,
) -> Workload:
    """Give a session up whose supervisor does not answer: it is offered from its last snapshot, and
    without one it has ended. Its GPUs are free once its processes are proven gone, or once its holder
    has had to halt itself. Raises `NotFound`, `Refused`, `Conflict`, having changed nothing."""
    _check_reason(reason)
    losses = losses_of_session(scheduler, workload_id)
    if scheduler.get(workload_id).spec.kind is not Kind.SESSION:
        raise Refused(f"{workload_id} is a job.", remedy="Cancel it instead.")
    if losses.obstacle:
        raise Conflict(losses.obstacle, remedy="Suspend or stop it instead.")
    _check_named(losses, given_up, needed=False)
    loss = Loss(f"stopped by force: {reason}", actor, "An administrator stopped it by force.")
    with scheduler.books.draft() as draft:
        workload = draft.workload(workload_id)
        record = scheduler.books.current_lease(workload)
        if record is None:
            raise Conflict(_no_lease(workload))
        draft.put_lease(replace(record, forced=True, ended_cause=loss.cause))
        evidence = {"lease": record.lease.id, "node": record.lease.node, "epoch": workload.epoch}
        draft.note("force_stopped", workload, cause=reason, actor=actor, evidence=evidence)
        fall_back(draft, draft.leave_behind(workload), evidence, loss)
    scheduler.wake()
    return scheduler.get(workload_id)


def _item(scheduler: Scheduler, record: LeaseRecord, node: str) -> GivenUp:
    workload = scheduler.get(record.lease.workload_id)
    is_current = workload.lease is not None and workload.lease.id == record.lease.id
    fenced = fenced_at(record, scheduler.settings)
    shot = workload.snapshot
    return GivenUp(
        workload_id=str(workload.id),
        kind=workload.spec.kind,
        name=called(workload.spec),
        user=workload.spec.user,
        phase=workload.phase,
        becomes=_becomes(workload, record) if is_current else workload.phase,
        gpus=sum(gpu.node == node for gpu in record.lease.gpus),
        since=record.lease.granted_at,
        fenced_at=None if record.taken_at is None else fenced,
        is_fenced=record.taken_at is None or scheduler.books.clock.now() >= fenced,
        halts_itself=bool(record.lease.gpus),
        saved_at=(shot.created_at or None) if shot else None,
        is_elsewhere=record.lease.node != node,
    )


def _becomes(workload: Workload, record: LeaseRecord) -> Phase:
    if record.taken_at is None and workload.phase is not Phase.CANCELLING:
        return Phase.QUEUED
    return after_loss(workload)


def _obstacle(scheduler: Scheduler, name: str, items: Iterable[GivenUp]) -> str:
    """Why the machine cannot be declared dead yet without naming what is given up."""
    now = scheduler.books.clock.now()
    waits = [item.fenced_at for item in items if not item.is_fenced and not item.is_elsewhere]
    until = max((at for at in waits if at is not None), default=None)
    if until is not None:
        return f"{name} may still run {len(waits)} of its workloads for {_span(until - now)}."
    node = next((n for n in scheduler.books.inventory if n.name == name), None)
    if node is not None and scheduler.presence.standing(node) is not NodeStanding.SILENT:
        heard = scheduler.presence.heard_at(name)
        if heard is not None and now - heard < scheduler.settings.silent_seconds:
            return f"{name} answers: it was heard {_span(now - heard)} ago."
    return ""


def _heard(scheduler: Scheduler, record: LeaseRecord) -> str:
    name = record.lease.workload_id
    if record.taken_at is None:
        return f"{name} has no supervisor yet."
    presence, patience = scheduler.presence, scheduler.settings.silent_seconds
    now, spoke = scheduler.books.clock.now(), presence.spoke_at(record.lease.id)
    if now - (presence.began if spoke is None else spoke) >= patience:
        return ""
    if spoke is None:
        return (
            f"The scheduler has just started; whether {name} answers is known in {patience:.0f} s."
        )
    return f"The supervisor of {name} answered {_span(now - spoke)} ago."


def _no_lease(workload: Workload) -> str:
    return f"{workload.id} is {workload.phase.value}: it holds no GPU and has no supervisor."


def _span(seconds: float) -> str:
    return f"{max(seconds, 0.0):.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _error(name: str) -> str:
    return f"Its machine {name} was declared dead."


def _leases_on(scheduler: Scheduler, name: str) -> list[LeaseRecord]:
    return [
        record
        for record in scheduler.books.leases.values()
        if record.lease.node == name or any(gpu.node == name for gpu in record.lease.gpus)
    ]


def _check_known(scheduler: Scheduler, name: str) -> None:
    books = scheduler.books
    known = {node.name for node in books.inventory}
    if name in known or name in books.node_records or _leases_on(scheduler, name):
        return
    some = ", ".join(sorted(known)[:8])
    raise NotFound(f"There is no machine {name}.", remedy=f"There are: {some}.")


def _check_reason(reason: str) -> None:
    if not reason.strip():
        raise Refused("reason: it needs one.", remedy="Say why; it is kept with your name.")
    if len(reason) > MAX_REASON:
        raise Refused(f"reason: at most {MAX_REASON} characters; it has {len(reason)}.")


def _check_named(losses: Losses, given_up: Collection[str] | None, *, needed: bool) -> None:
    """Everything that is lost was named: what came meanwhile is not given up unseen."""
    if given_up is None and not needed:
        return
    missing = sorted(set(losses.ids) - set(given_up or ()))
    if missing:
        raise Conflict(
            f"given_up: it must name every workload that is given up; {', '.join(missing)} is missing.",
            remedy="Look at what is given up again, and name all of it.",
        )
