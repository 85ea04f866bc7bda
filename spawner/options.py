"""What a user may ask for, checked against the profile table and the machines that exist (pure).

The form, links with options in them and the Hub's REST API all pass through `choose`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from scheduler_bridge.model.teams import DEFAULT_TEAM
from scheduler_bridge.model.workload import FleetView
from spawner.profiles_model import Profile

KNOWN_KEYS = frozenset({"profile", "gpus", "team"})


class BadOptions(ValueError):
    """The options can never be satisfied; the message names the limit and what to do."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A valid request: the profile, the GPUs really asked for, and the team whose share it uses."""

    profile: Profile
    gpus: int
    team: str = DEFAULT_TEAM

    def as_options(self) -> dict[str, object]:
        """The `user_options` that lead to this choice again."""
        options: dict[str, object] = {"profile": self.profile.slug}
        if self.gpus != self.profile.gpus:
            options["gpus"] = self.gpus
        if self.team != DEFAULT_TEAM:
            options["team"] = self.team
        return options


@dataclass(frozen=True, slots=True)
class Capacity:
    """The GPUs that exist and are free, as far as one session is concerned.

    A session lives on one machine: `largest` is the most GPUs of one ready machine.
    """

    largest: int
    total: int
    free: int
    free_per_node: tuple[int, ...]
    queued: int
    virtual: bool

    def fits_now(self, gpus: int) -> bool:
        """Whether some machine has that many free GPUs and nobody waits in front."""
        return gpus == 0 or (self.queued == 0 and max(self.free_per_node, default=0) >= gpus)


def capacity_of(fleet: FleetView, model: str = "") -> Capacity:
    """Count the GPUs of ready machines, of one model or of any."""
    sizes: list[int] = []
    free: list[int] = []
    virtual = False
    for node in fleet.nodes:
        gpus = [g for g in node.gpus if node.ready and (not model or g.model == model)]
        sizes.append(len(gpus))
        free.append(sum(1 for g in gpus if g.uuid not in fleet.holders))
        virtual = virtual or any(g.virtual for g in gpus)
    return Capacity(
        largest=max(sizes, default=0),
        total=sum(sizes),
        free=sum(free),
        free_per_node=tuple(free),
        queued=fleet.queued,
        virtual=virtual,
    )


def count_gpus(number: int, *, virtual: bool = False) -> str:
    """`no GPU`, `1 GPU`, `3 GPUs`, with `virtual` where they are."""
    kind = "virtual GPU" if virtual else "GPU"
    if number == 0:
        return f"no {kind}"
    return f"1 {kind}" if number == 1 else f"{number} {kind}s"


def from_form(form: Mapping[str, Sequence[str]]) -> dict[str, object]:
    """Turn the submitted form into `user_options`. Judges nothing; `choose` does."""
    return {key: values[0] for key, values in form.items() if values and key in KNOWN_KEYS}


def choose(
    options: Mapping[str, Any],
    profiles: Sequence[Profile],
    fleet: FleetView | None,
    *,
    teams: Sequence[str] = (DEFAULT_TEAM,),
) -> Choice:
    """The choice that the options mean. Raises `BadOptions`.

    Without options the first profile is taken, and the team of who has only one. With `fleet` None
    (nobody knows now) only the tables are checked; the scheduler refuses what can never fit.
    """
    unknown = sorted(set(options) - KNOWN_KEYS)
    if unknown:
        raise BadOptions(
            f"Unknown option {unknown[0]!r}. Options are: {', '.join(sorted(KNOWN_KEYS))}."
        )
    profile = _profile(options.get("profile", profiles[0].slug), profiles)
    gpus = _gpus(options.get("gpus", profile.gpus))
    if fleet is not None and gpus > 0:
        _check_size(gpus, capacity_of(fleet, profile.gpu_model), profile.gpu_model)
    return Choice(profile=profile, gpus=gpus, team=_team(options.get("team"), teams))


def _team(value: object, teams: Sequence[str]) -> str:
    yours = ", ".join(teams)
    if value is None:
        if len(teams) > 1:
            raise BadOptions(f"You are in several teams. Say which one with team: {yours}.")
        return teams[0]
    if not isinstance(value, str) or value not in teams:
        of_them = "Your teams are" if len(teams) > 1 else "Your team is"
        raise BadOptions(f"You are not in a team {str(value)[:80]!r}. {of_them}: {yours}.")
    return value


def _profile(slug: object, profiles: Sequence[Profile]) -> Profile:
    for profile in profiles:
        if profile.slug == slug:
            return profile
    known = ", ".join(profile.slug for profile in profiles)
    raise BadOptions(f"There is no profile {str(slug)[:80]!r}. Profiles are: {known}.")


def _gpus(value: object) -> int:
    text = value.strip() if isinstance(value, str) else value
    if isinstance(text, str) and text.isascii() and text.isdigit():
        text = int(text)
    if isinstance(text, bool) or not isinstance(text, int) or text < 0:
        raise BadOptions(f"gpus must be a whole number, 0 or more, not {str(value)[:80]!r}.")
    return text


def _check_size(gpus: int, capacity: Capacity, model: str) -> None:
    if gpus <= capacity.largest:
        return
    of_model = f" of model {model}" if model else ""
    if capacity.largest == 0:
        raise BadOptions(
            f"You asked for {count_gpus(gpus)}{of_model}, but there is none. "
            "Choose a profile without GPU."
        )
    raise BadOptions(
        f"You asked for {count_gpus(gpus)}{of_model}, but the largest machine has "
        f"{count_gpus(capacity.largest, virtual=capacity.virtual)}. "
        f"Ask for at most {capacity.largest}."
    )


def availability(profile: Profile, fleet: FleetView | None) -> tuple[str, bool]:
    """A sentence on what is free for a profile now, and whether it can ever be started."""
    if profile.gpus == 0:
        return "Starts at once.", True
    if fleet is None:
        return "What is free is unknown right now: the scheduler does not answer.", True
    capacity = capacity_of(fleet, profile.gpu_model)
    have = count_gpus(capacity.total, virtual=capacity.virtual)
    if capacity.largest < profile.gpus:
        return f"Not available: there {_is(capacity.largest)} {have}.", False
    if capacity.fits_now(profile.gpus):
        return f"Starts now: {capacity.free} of {have} free.", True
    ahead = f", {capacity.queued} waiting" if capacity.queued else ""
    return f"Will wait: {capacity.free} of {have} free{ahead}. Your place is kept.", True


def _is(number: int) -> str:
    return "is only" if number == 1 else "are only" if number else "is"


def form_html(
    profiles: Sequence[Profile],
    fleet: FleetView | None,
    *,
    chosen: str = "",
    teams: Sequence[str] = (),
    team: str = "",
) -> str:
    """The inside of the spawn form: one radio button per profile with what is free now, and a
    choice of the team for who is in several. `chosen` and `team` are what was chosen last."""
    usable = [p.slug for p in profiles if availability(p, fleet)[1]]
    checked = chosen if chosen in usable else next(iter(usable), "")
    rows = "\n".join(_row(profile, fleet, profile.slug == checked) for profile in profiles)
    sizes = f'<fieldset class="hubernate-profiles">\n<legend>Size of the session</legend>\n{rows}\n</fieldset>'
    return sizes + (_team_choice(teams, team) if len(teams) > 1 else "")


def _team_choice(teams: Sequence[str], chosen: str) -> str:
    shown = "".join(
        f'<option value="{escape(team)}"{" selected" if team == chosen else ""}>{escape(team)}</option>'
        for team in teams
    )
    return (
        '\n<div class="mb-3"><label class="form-label" for="hubernate-team">Team whose share it uses'
        '</label><select class="form-select" id="hubernate-team" name="team" required>'
        f"{shown}</select></div>"
    )


def _row(profile: Profile, fleet: FleetView | None, is_checked: bool) -> str:
    sentence, is_possible = availability(profile, fleet)
    slug, name = escape(profile.slug), f"profile-{escape(profile.slug)}"
    flags = (" checked" if is_checked else "") + ("" if is_possible else " disabled")
    return (
        '<div class="form-check mb-3">'
        f'<input class="form-check-input" type="radio" name="profile" id="{name}" value="{slug}"'
        f' aria-describedby="{name}-about" required{flags}>'
        f'<label class="form-check-label" for="{name}"><strong>{escape(profile.title)}</strong></label>'
        f'<div id="{name}-about">{escape(profile.description)} '
        f'<span class="text-body-secondary">{escape(sentence)}</span></div></div>'
    )
