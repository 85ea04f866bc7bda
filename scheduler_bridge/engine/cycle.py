"""heads -> snapshot -> plan -> apply -> requeue. The only caller of the planner."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from scheduler_bridge.engine.books import Books
from scheduler_bridge.engine.fitting import node_state, pending
from scheduler_bridge.engine.moves import want
from scheduler_bridge.engine.settings import Settings
from scheduler_bridge.engine.timers import ends_by, protected_until, recent, retry_at
from scheduler_bridge.model.phases import HOLDS_LEASE, Desired, Kind, Phase
from scheduler_bridge.model.workload import Forecast, Idleness, Workload
from scheduler_bridge.policy.planner import plan
from scheduler_bridge.policy.values import (
    FleetState,
    Pending,
    Placement,
    Plan,
    Preemption,
    Rules,
    Running,
    WaitReason,
)
from scheduler_bridge.policy.wording import preemption_sentence, wait_remedy, wait_sentence

_ACTOR = "scheduler"
_MAKING_ROOM = "Others would be asked to make room for it."
_YIELDS = frozenset({Phase.RUNNING})


def run_cycle(books: Books, settings: Settings, failed_suspends: Mapping[str, float]) -> Plan:
    """One pass over the whole queue. `failed_suspends`: when a workload last failed to yield."""
    now = books.clock.now()
    heads = [w for w in books.workloads.values() if w.phase is Phase.QUEUED]
    decided = _decide(books, settings, failed_suspends, heads, now)
    for placement in decided.placements:
        _place(books, settings, placement)
    _preempt(books, decided)
    books.annotate(
        {wait.id: (wait, wait_sentence(wait.reason, wait.evidence)) for wait in decided.waits}
    )
    return decided


def forecast(
    books: Books, settings: Settings, failed_suspends: Mapping[str, float], workload: Workload
) -> Forecast:
    """What the next pass would decide if this suspended session were asked to run now. Changes
    nothing."""
    now = books.clock.now()
    heads = [w for w in books.workloads.values() if w.phase is Phase.QUEUED]
    asked = replace(workload, phase=Phase.QUEUED, phase_since=now, attempt=0, last_error="")
    decided = _decide(books, settings, failed_suspends, [*heads, asked], now)
    wait = next((wait for wait in decided.waits if wait.id == workload.id), None)
    if wait is None:
        return Forecast(now=True)
    asks_others = any(it.preemptor == workload.id for it in decided.preemptions)
    return Forecast(
        now=False,
        possible=wait.reason is not WaitReason.NO_NODE_FITS,
        reason=wait.reason.value,
        text=_MAKING_ROOM if asks_others else wait_sentence(wait.reason, wait.evidence),
        remedy=wait_remedy(wait.reason),
    )


def _decide(
    books: Books,
    settings: Settings,
    failed_suspends: Mapping[str, float],
    heads: Iterable[Workload],
    now: float,
) -> Plan:
    return plan(
        _fleet(books),
        [_pending(books, workload, settings, now) for workload in heads],
        [
            _running(workload, settings, failed_suspends, now)
            for workload in books.workloads.values()
            if workload.lease is not None
        ],
        _rules(books, settings),
        now,
    )


def _fleet(books: Books) -> FleetState:
    return FleetState(tuple(map(node_state, books.nodes)), books.holders(), books.earmarks)


def _rules(books: Books, settings: Settings) -> Rules:
    scopes = {pause.scope for pause in books.active_pauses()}
    rules = settings.rules
    return Rules(
        rules.team_limits,
        rules.default_team_limit,
        rules.preemption and scopes.isdisjoint({"preempt", "all"}),
    )


def _pending(books: Books, workload: Workload, settings: Settings, now: float) -> Pending:
    blocked = None
    if books.lingering(workload.id):
        blocked = WaitReason.STILL_LEAVING
    elif retry_at(workload, settings) > now:
        blocked = WaitReason.RETRY_LATER
    return replace(pending(workload), blocked=blocked)


def _running(
    workload: Workload, settings: Settings, failed_suspends: Mapping[str, float], now: float
) -> Running:
    spec, lease = workload.spec, workload.lease
    failed = failed_suspends.get(workload.id)
    yields_from = protected_until(workload)
    if failed is not None:
        yields_from = max(yields_from, failed + settings.failed_suspend_pause)
    going = workload.desired is not Desired.RUNNING or workload.phase is Phase.CANCELLING
    return Running(
        id=workload.id,
        kind=spec.kind,
        team=spec.team,
        gpus=tuple(gpu.uuid for gpu in lease.gpus) if lease else (),
        priority=int(spec.priority),
        since=lease.granted_at if lease else workload.phase_since,
        preemptible=spec.preemptible and workload.phase in _YIELDS,
        idle_since=workload.idleness.since,
        yields_from=yields_from,
        leaving=going and workload.phase in HOLDS_LEASE,
        user=spec.user,
        is_allocated=spec.min_runtime_seconds > 0,
        saved_at=workload.snapshot.created_at if workload.snapshot else None,
        ends_by=ends_by(workload),
        preemptions=len(recent(workload.preempted_at, now)),
    )


def _place(books: Books, settings: Settings, placement: Placement) -> None:
    """Grant the lease. A gang over several machines becomes one lease on the first of them: the
    local cluster has one machine, and admission refuses larger gangs there."""
    gpus = {gpu.uuid: gpu for node in books.nodes for gpu in node.gpus}
    with books.draft() as draft:
        workload = draft.workload(placement.id)
        waited = draft.now - workload.phase_since
        resumes = workload.spec.kind is Kind.SESSION and workload.snapshot is not None
        workload = draft.grant(
            workload,
            placement.assignments[0].node,
            tuple(gpus[uuid] for uuid in placement.gpus),
            hold=settings.hold_seconds,
            lease=settings.lease_seconds,
        )
        draft.move(
            workload,
            Phase.RESUMING if resumes else Phase.STARTING,
            cause="placed",
            actor=_ACTOR,
            evidence={
                "gpus": list(placement.gpus),
                "epoch": workload.epoch,
                "waited_seconds": round(waited, 3),
            },
            # what was seen before is no reason to take the new place away again
            idleness=Idleness(),
            signals={},
            signals_at=None,
        )


def _preempt(books: Books, decided: Plan) -> None:
    if not decided.preemptions and dict(decided.earmarks) == dict(books.earmarks):
        return
    with books.draft() as draft:
        draft.set_earmarks(decided.earmarks)
        for preemption in decided.preemptions:
            victim = draft.workload(preemption.victim)
            name = books.workloads[preemption.preemptor].spec.name
            sentence = preemption_sentence(preemption.reason, name)
            asked = (*recent(victim.preempted_at, draft.now), draft.now)
            victim = draft.put(replace(victim, preempted_at=asked))
            want(draft, victim, Desired.SUSPENDED, _ACTOR, sentence)
            draft.note(
                "preempted",
                victim,
                cause=sentence,
                actor=_ACTOR,
                evidence=_preemption_evidence(victim, preemption),
            )


def _preemption_evidence(victim: Workload, preemption: Preemption) -> dict[str, object]:
    return {
        "for": preemption.preemptor,
        "reason": preemption.reason.value,
        "idle_since": victim.idleness.since,
        "running_since": victim.phase_since,
    }
