"""What a Hub user asks for: the form, the options, the team, and the wish that comes out of them.

Which teams somebody may use the scheduler says, from the groups of the Hub that they are in. These are
read each time a session is asked for, so that who has left a team no longer uses its share.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from traitlets import default

from scheduler_bridge.errors import SchedulerError, Unavailable
from scheduler_bridge.model.phases import Desired, Kind, Phase
from scheduler_bridge.model.workload import FleetView, Workload, WorkloadSpec
from spawner import options
from spawner.names import session_name
from spawner.opening import Wish
from spawner.refusals import BadRequest
from spawner.traits import SessionTraits


class SessionChoosing(SessionTraits):
    """The Hub's options of a session, checked here because REST passes no form."""

    @property
    def groups(self) -> tuple[str, ...]:
        """The groups that this server's owner is in, as the Hub knows them now."""
        return tuple(group.name for group in self.user.groups)

    async def teams(self) -> tuple[str, ...]:
        """The teams whose share this server's owner may use."""
        return await self.plugin.usable_teams(self.user.name, self.groups)

    async def fleet(self) -> FleetView | None:
        """What exists and is free; None while the scheduler does not answer."""
        try:
            return await self.plugin.fleet()
        except Unavailable:
            return None

    async def _wish(self) -> Wish:
        """What is to be opened: the session that exists if it fits what was asked for, else a new
        one of what was chosen. REST options pass here too; the form is not trusted."""
        existing = await self.plugin.find(self.key)
        teams = await self.teams()
        if existing and _is_only_queued(existing) and existing.spec.team not in teams:
            await self._leave_queue(existing)
            existing = None
        if existing is None or not _means(self.user_options, existing.spec):
            spec = self._spec(await self._choice(teams))
        elif existing.phase is Phase.SUSPENDED and existing.spec.team not in teams:
            # memory is never lost for a group: it comes back with the share of another team
            spec = replace(existing.spec, team=teams[0])
        else:
            spec = existing.spec
        return Wish(self.key, spec, actor=self.user.name, known_id=self.workload_id)

    async def _leave_queue(self, workload: Workload) -> None:
        name, team = self.user.name, workload.spec.team
        reason = f"{name} is no longer in team {team}"
        await self.plugin.desire(workload.id, Desired.STOPPED, actor=name, reason=reason)

    async def _choice(self, teams: tuple[str, ...]) -> options.Choice:
        fleet = await self.fleet()
        try:
            return options.choose(self.user_options, self.profiles, fleet, teams=teams)
        except options.BadOptions as problem:
            raise BadRequest(str(problem)) from problem

    def _spec(self, choice: options.Choice) -> WorkloadSpec:
        return WorkloadSpec(
            kind=Kind.SESSION,
            name=session_name(self.user.name, self.name),
            user=self.user.name,
            team=choice.team,
            hub=self.hub_name,
            server=self.name,
            profile=choice.profile.slug,
            gpus=choice.gpus,
        )

    @default("options_form")
    def _default_options_form(self) -> Any:
        return lambda _spawner: self._form()

    async def _form(self) -> str:
        """The form, or nothing where a session exists: opening it needs no choice."""
        try:
            existing = await self.plugin.find(self.key)
            teams = await self.teams()
        except SchedulerError:
            existing, teams = None, self.groups
        if existing is not None or self.look().is_suspended:
            return ""
        last = self.orm_spawner.user_options or {}
        return options.form_html(
            self.profiles,
            await self.fleet(),
            chosen=str(last.get("profile", "")),
            teams=teams,
            team=str(last.get("team", "")),
        )

    @default("apply_user_options")
    def _default_apply_user_options(self) -> Any:
        return lambda _spawner, _wanted: None  # `start` does, where it can refuse in full sentences

    @default("options_from_form")
    def _default_options_from_form(self) -> Any:
        return options.from_form


def _is_only_queued(workload: Workload) -> bool:
    return workload.phase is Phase.QUEUED and workload.snapshot is None


def _means(wanted: Mapping[str, Any], spec: WorkloadSpec) -> bool:
    """Whether options ask for nothing else than a session that exists."""
    unknown = set(wanted) - options.KNOWN_KEYS
    return (
        not unknown
        and wanted.get("profile", spec.profile) == spec.profile
        and wanted.get("team", spec.team) == spec.team
        and ("gpus" not in wanted or str(wanted["gpus"]) == str(spec.gpus))
    )
