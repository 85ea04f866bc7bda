"""heads -> snapshot -> plan -> apply -> requeue. The only caller of the planner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import inf
from typing import Final

from scheduler_bridge.engine.board import Board
from scheduler_bridge.engine.books import Books, Draft
from scheduler_bridge.engine.moves import want
from scheduler_bridge.engine.timers import recent
from scheduler_bridge.model.phases import Desired, Kind, Phase
from scheduler_bridge.model.workload import Forecast, Idleness, Workload
from scheduler_bridge.policy.columns import group_of
from scheduler_bridge.policy.exact import ExactRooms
from scheduler_bridge.policy.passing import Desk
from scheduler_bridge.policy.planner import plan_named
from scheduler_bridge.policy.reasons import Reasons
from scheduler_bridge.policy.values import (
    Placement,
    Plan,
    Preemption,
    Wait,
    WaitReason,
)
from scheduler_bridge.policy.visibility import Viewer, Visibility, may_know
from scheduler_bridge.policy.wording import preemption_sentence, wait_remedy, wait_sentence

_ACTOR = "scheduler"
_MAKING_ROOM = "Others would be asked to make room for it."
EXPLAINED_AT_ONCE: Final = 1000
"""Up to so many waiting workloads, each is told its place and reason after every pass."""
PLACED_AT_ONCE: Final = 200
"""Placements of a pass that are written together: a write waits for the disk, and blocks the loop."""


PATIENCE: Final = 50
"""Where many wait, a pass ends after so many kinds of work that found no place; the next one, soon after,
goes on from there. Whoever comes meanwhile does not wait for all of them."""


def run_cycle(board: Board) -> Plan:
    """One pass over everything of which something might be placed now. Where many wait, only who is
    being made room for is told so at once; the others are told why when somebody asks."""
    books, now = board.books, board.books.clock.now()
    groups = board.refresh(now)
    queue = board.columns.queue
    explain = len(queue.items) <= EXPLAINED_AT_ONCE
    decided = plan_named(
        board.columns,
        board.devices,
        board.rules,
        now,
        None if explain else groups,
        explain=explain,
        patience=None if explain else PATIENCE,
    )
    board.columns.stuck |= decided.stuck
    board.columns.reservations = decided.reservations
    board.losses.spend(decided.lost)
    seen: dict[str, object] = {}
    if decided.placements or decided.preemptions:
        seen = {"inputs": board.inputs(now), "planned_at": now}
        if board.rules.loss_budget < inf:  # saved up in memory: nobody else could work it out
            seen["loss_budget"] = board.rules.loss_budget
    for first in range(0, len(decided.placements), PLACED_AT_ONCE):
        with books.draft() as draft:
            for placement in decided.placements[first : first + PLACED_AT_ONCE]:
                _place(draft, board, placement, seen)
    _preempt(books, decided, seen, board.settings.queue_visibility)
    books.annotate(
        {wait.id: (wait, wait_sentence(wait.reason, wait.evidence)) for wait in decided.waits}
    )
    return decided


def why_it_waits(board: Board, workload: Workload) -> Wait | None:
    """Why a queued workload was not placed in the last pass; None if there was none since it came.
    Its position is that in its team."""
    if (known := board.books.waits.get(workload.id)) is not None:
        return known
    columns, now = board.columns, board.books.clock.now()
    item = columns.queue.items.get(workload.id)
    if item is None:
        return None
    if item.blocked is not None:
        return Wait(item.id, 1, item.blocked, dict(item.blocked_evidence))
    desk = Desk(columns, board.rules, now, ExactRooms(board.devices))
    reason, evidence = Reasons(desk).why(item)
    return Wait(item.id, columns.queue.position(item), reason, evidence)


def forecast(board: Board, workload: Workload) -> Forecast:
    """What the next pass would decide if this suspended session were asked to run now. Changes
    nothing."""
    now = board.books.clock.now()
    board.refresh(now)
    columns = board.columns
    asked = replace(workload, phase=Phase.QUEUED, phase_since=now, attempt=0, last_error="")
    item = board.pending(asked, now)
    columns.submit(item)
    try:
        only = [group_of(item)]
        decided = plan_named(columns, board.devices, board.rules, now, only)
    finally:
        columns.withdraw(item.id)
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


def _place(draft: Draft, board: Board, placement: Placement, seen: Mapping[str, object]) -> None:
    """Grant the lease. A gang over several machines becomes one lease on the first of them: the
    local cluster has one machine, and admission refuses larger gangs there."""
    workload = draft.workload(placement.id)
    waited = draft.now - workload.phase_since
    resumes = workload.spec.kind is Kind.SESSION and workload.snapshot is not None
    workload = draft.grant(
        workload,
        placement.assignments[0].node,
        tuple(board.gpus[uuid] for uuid in placement.gpus),
        hold=board.settings.hold_seconds,
        lease=board.settings.lease_seconds,
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
            "team": workload.spec.team,
            "protected": workload.spec.min_runtime_seconds > 0,
            **seen,
        },
        # what was seen before is no reason to take the new place away again
        idleness=Idleness(),
        signals={},
        signals_at=None,
    )


def _preempt(books: Books, decided: Plan, seen: Mapping[str, object], rule: Visibility) -> None:
    if not decided.preemptions and dict(decided.earmarks) == dict(books.earmarks):
        return
    with books.draft() as draft:
        draft.set_earmarks(decided.earmarks)
        for preemption in decided.preemptions:
            victim = draft.workload(preemption.victim)
            name = _named_to(victim, books.workloads[preemption.preemptor], rule)
            sentence = preemption_sentence(preemption.reason, name)
            before = recent(victim.preempted_at, draft.now)
            to = victim.yielded_to[-len(before) :] if before else ()
            victim = draft.put(
                replace(
                    victim,
                    preempted_at=(*before, draft.now),
                    yielded_to=(*to, preemption.preemptor),
                )
            )
            want(draft, victim, Desired.SUSPENDED, _ACTOR, sentence)
            draft.note(
                "preempted",
                victim,
                cause=sentence,
                actor=_ACTOR,
                evidence={**_preemption_evidence(victim, preemption), **seen},
            )


def _named_to(victim: Workload, preemptor: Workload, rule: Visibility) -> str:
    """What the victim's owner may be told of who needs the place; empty: nothing."""
    owner, spec = victim.spec, preemptor.spec
    viewer = Viewer(owner.user, frozenset({owner.team}))
    known = may_know(viewer, rule, user=spec.user, team=spec.team)
    return spec.name if known else ""


def _preemption_evidence(victim: Workload, preemption: Preemption) -> dict[str, object]:
    return {
        "for": preemption.preemptor,
        "reason": preemption.reason.value,
        "idle_since": victim.idleness.since,
        "running_since": victim.phase_since,
    }
