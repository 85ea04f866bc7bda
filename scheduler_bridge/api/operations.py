"""Each operation with its caller: whether they may, then the engine. No HTTP here."""

from __future__ import annotations

from typing import Final

from scheduler_bridge.api.callers import Caller, Right
from scheduler_bridge.api.sights import Sights
from scheduler_bridge.engine.budgets import usable_teams
from scheduler_bridge.engine.scheduler import Scheduler
from scheduler_bridge.errors import Conflict, NotAllowed, NotFound, Refused
from scheduler_bridge.model.phases import Desired, Kind, Phase
from scheduler_bridge.model.teams import DEFAULT_TEAM
from scheduler_bridge.model.workload import Grant, Workload, WorkloadSpec

MAX_LIVE_PER_USER: Final = 500

_RIGHT_FOR: Final = {
    Desired.RUNNING: Right.RESUME,
    Desired.SUSPENDED: Right.SUSPEND,
    Desired.STOPPED: Right.STOP,
}


class Operations:
    """The scheduler as a given caller may use it."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.sights = Sights(scheduler)

    def visible(self, caller: Caller, workload_id: str) -> Workload:
        """The workload, if the caller may see it. Others' do not exist for a user."""
        workload = self.scheduler.get(workload_id)
        if not caller.sees_all and not caller.owns(workload.spec.user):
            raise NotFound(f"There is no workload {workload_id}.")
        return workload

    def submit(self, caller: Caller, spec: WorkloadSpec, key: str) -> Workload:
        """Queue; users only jobs of their own, in a team of their own."""
        if not caller.sees_all:
            self._check_users_job(caller, spec, key)
        else:
            caller.require(Right.SUBMIT)
            if spec.kind is Kind.JOB:
                caller.require(Right.JOBS)
        workload = self.scheduler.submit(spec, key=key, actor=caller.name)
        if not caller.sees_all and not caller.owns(workload.spec.user):
            raise Conflict("The key is taken.", remedy="Choose another key.")
        return workload

    def _check_users_job(self, caller: Caller, spec: WorkloadSpec, key: str) -> None:
        if spec.kind is not Kind.JOB:
            raise NotAllowed("Sessions are started through the Hub.", remedy="Open the Hub's page.")
        if not caller.owns(spec.user):
            raise NotAllowed(f"user: {caller.name} may submit jobs as {caller.name} only.")
        self.require_team(caller, spec.team)
        if key.startswith("session:"):
            raise Refused("key: keys that begin with session: belong to the Hub.")
        live = len(self.scheduler.list(user=caller.user))
        if live >= MAX_LIVE_PER_USER and self.scheduler.find(key) is None:
            raise Refused(
                f"{caller.name} has {live} workloads that have not ended; "
                f"the limit is {MAX_LIVE_PER_USER}.",
                remedy="Wait until some have ended, or cancel some.",
            )

    def require_team(self, caller: Caller, team: str) -> None:
        """Raise `NotAllowed` if a user may not use the team's share."""
        if caller.sees_all:
            return
        mine = {*self.usable_teams(caller, "", frozenset()), DEFAULT_TEAM}
        if team not in mine:
            raise NotAllowed(
                f"team: {caller.name} is not in {team!r}.",
                remedy=f"Use one of: {', '.join(sorted(mine))}.",
            )

    def teams_of(self, caller: Caller, owner: str) -> tuple[str, ...]:
        """The teams whose share the owner of some work may use, as far as the caller shows it."""
        return self.usable_teams(caller, "", caller.groups) if caller.owns(owner) else ()

    def find(self, caller: Caller, key: str) -> Workload | None:
        """By key, if visible."""
        workload = self.scheduler.find(key)
        if workload and not caller.sees_all and not caller.owns(workload.spec.user):
            return None
        return workload

    def list(
        self, caller: Caller, kind: Kind | None, user: str | None, live: bool
    ) -> tuple[Workload, ...]:
        """Users see their own only."""
        if not caller.sees_all:
            if user not in (None, caller.user):
                return ()
            user = caller.user
        return self.scheduler.list(kind=kind, user=user, live=live)

    def desire(
        self, caller: Caller, workload_id: str, desired: Desired, *, actor: str, reason: str
    ) -> Workload:
        """Owners decide about their own; services by right. Who cannot resume may still withdraw
        a suspend that has not begun."""
        workload = self.visible(caller, workload_id)
        if not caller.owns(workload.spec.user):
            withdraws = desired is Desired.RUNNING and workload.phase is Phase.RUNNING
            caller.require(Right.SUSPEND if withdraws else _RIGHT_FOR[desired])
            if workload.spec.kind is Kind.JOB:
                caller.require(Right.JOBS)
        name = caller.user or actor or caller.name
        return self.scheduler.desire(workload_id, desired, actor=name, reason=reason)

    def take(self, caller: Caller, workload_id: str) -> Grant:
        """Services that start supervisors only: a credential is more than its user may have."""
        caller.require(Right.TAKE)
        if self.scheduler.get(workload_id).spec.kind is Kind.JOB:
            caller.require(Right.JOBS)
        return self.scheduler.take(workload_id, actor=caller.name)

    def usable_teams(self, caller: Caller, user: str, groups: frozenset[str]) -> tuple[str, ...]:
        """The teams whose share somebody may use. Users learn their own; services ask for others."""
        if not caller.sees_all:
            user, groups = caller.user, caller.groups
        return usable_teams(self.scheduler.books, self.scheduler.settings, user, groups)
