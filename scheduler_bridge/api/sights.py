"""What a caller sees of others' work, by the rule of the house (`queue_visibility`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from scheduler_bridge.api.callers import Caller
from scheduler_bridge.engine.budgets import usable_teams
from scheduler_bridge.engine.fleet_view import node_statuses
from scheduler_bridge.engine.queue_view import queue_view
from scheduler_bridge.engine.scheduler import Scheduler
from scheduler_bridge.errors import NotFound
from scheduler_bridge.model.nodes import NodeHolder, NodeStatus
from scheduler_bridge.model.outlook import Change
from scheduler_bridge.model.queue import QueueView, called
from scheduler_bridge.model.what_if import Outlook
from scheduler_bridge.model.workload import Event, Explanation, FleetView
from scheduler_bridge.policy.visibility import SOMEBODY, Viewer, Visibility, may_know, redacted

_SHOWN_OF_OTHERS: Final = frozenset({"submitted", "phase"})


def _shown(change: Change, name_of: Callable[[str], str]) -> Change:
    last = tuple(name_of(each) for each in change.last)
    return replace(change, text=redacted(change.text, name_of), last=last)


class Sights:
    """The scheduler as a given caller may see it."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def queue(self, caller: Caller) -> QueueView:
        """What waits: own work in full, others' by the rule."""
        return queue_view(self._scheduler, self._viewer(caller))

    def nodes(self, caller: Caller) -> tuple[NodeStatus, ...]:
        """Machines; whose work holds them by the rule. Why one was declared dead is for those who see
        all."""
        found = node_statuses(self._scheduler)
        return found if caller.sees_all else tuple(self._node(caller, node) for node in found)

    def _node(self, caller: Caller, node: NodeStatus) -> NodeStatus:
        holders = tuple(self._holder(caller, holder) for holder in node.holders)
        return replace(node, holders=holders, death=None, still_heard=())

    def _holder(self, caller: Caller, holder: NodeHolder) -> NodeHolder:
        if self._knows(caller, holder.user, holder.team):
            return holder
        return NodeHolder(SOMEBODY, holder.gpus)

    def fleet(self, caller: Caller) -> FleetView:
        """What is free; whose work holds the rest by the rule."""
        view = self._scheduler.fleet()
        if caller.sees_all:
            return view
        shown = {
            who: who if self._knows_id(caller, who) else SOMEBODY for who in view.holders.values()
        }
        return replace(view, holders={gpu: shown[who] for gpu, who in view.holders.items()})

    def explanation(self, caller: Caller, found: Explanation) -> Explanation:
        """Why, with others' work called by name or only counted."""
        if caller.sees_all:
            return found

        def name_of(workload_id: str) -> str:
            return self._name(caller, workload_id)

        return replace(
            found,
            text=redacted(found.text, name_of),
            evidence=redacted(found.evidence, name_of),
            remedy=redacted(found.remedy, name_of),
            changes=tuple(_shown(each, name_of) for each in found.changes),
        )

    def outlook(self, caller: Caller, found: Outlook) -> Outlook:
        """What would come of work, with others' called by name or only counted."""
        if caller.sees_all:
            return found

        def name_of(workload_id: str) -> str:
            return self._name(caller, workload_id)

        changes = tuple(_shown(each, name_of) for each in found.changes)
        return replace(found, text=redacted(found.text, name_of), changes=changes)

    def event(self, caller: Caller, event: Event) -> Event | None:
        """Own events with others' work redacted, and of others' what happened, if the rule allows;
        never why, by whom or with what evidence."""
        if caller.sees_all:
            return event
        if caller.owns(event.user):
            return replace(
                event,
                cause=redacted(event.cause, lambda it: self._name(caller, it)),
                evidence=redacted(event.evidence, lambda it: self._name(caller, it)),
            )
        if event.kind not in _SHOWN_OF_OTHERS or not self._knows_event(caller, event):
            return None
        return replace(event, cause="", actor="", evidence={})

    def _viewer(self, caller: Caller) -> Viewer:
        engine = self._scheduler
        teams = usable_teams(engine.books, engine.settings, caller.user, caller.groups)
        return Viewer(caller.user, frozenset(teams), caller.sees_all)

    def _knows_event(self, caller: Caller, event: Event) -> bool:
        rule = self._scheduler.settings.queue_visibility
        if rule is Visibility.TEAM:
            return self._knows_id(caller, event.workload_id)
        return rule is Visibility.NAMES

    def _knows_id(self, caller: Caller, workload_id: str) -> bool:
        try:
            spec = self._scheduler.get(workload_id).spec
        except NotFound:
            return False
        return self._knows(caller, spec.user, spec.team)

    def _knows(self, caller: Caller, user: str, team: str) -> bool:
        rule = self._scheduler.settings.queue_visibility
        return may_know(self._viewer(caller), rule, user=user, team=team)

    def _name(self, caller: Caller, workload_id: str) -> str:
        """Own ids stay; of others' it says what may be known."""
        try:
            spec = self._scheduler.get(workload_id).spec
        except NotFound:
            return SOMEBODY
        if caller.owns(spec.user):
            return workload_id
        if self._knows(caller, spec.user, spec.team):
            return f"{spec.kind.value} {called(spec)} of {spec.user}"
        return SOMEBODY
