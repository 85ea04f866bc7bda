"""Teams as an operator writes them: versioned YAML, checked as a whole, and what it would change."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from io import StringIO
from pathlib import Path
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap

from reclaimer.policy_document import MistakesError, load
from reclaimer.policy_reader import Mistake, Reader
from scheduler_bridge.model.teams import Proposal, Team
from scheduler_bridge.model.workload import Priority
from scheduler_bridge.policy.budget_checks import MAX_GPUS, MAX_PRICE
from scheduler_bridge.policy.budgets import HOURS_PER_DAY

VERSION: Final = 1
KEYS: Final = tuple(field.name for field in fields(Team))
_PRIORITIES: Final = {priority.name.lower(): priority for priority in Priority}


class TeamsFileError(MistakesError):
    """The file cannot be used."""


def read_teams(path: Path) -> tuple[Team, ...]:
    """The teams in a file. Raises `TeamsFileError`, also when it cannot be read."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise TeamsFileError(str(path), (Mistake(1, "", f"cannot be read: {reason}"),)) from error
    return parse_teams(text, str(path))


def parse_teams(text: str, source: str = "teams") -> tuple[Team, ...]:
    """Read and check the whole text. What depends on other teams the scheduler checks. Raises
    `TeamsFileError` with all mistakes."""
    document = load(text, source, VERSION, TeamsFileError, keys="version and teams")
    reader = Reader()
    teams = _teams(reader, document)
    if reader.mistakes:
        raise TeamsFileError(source, tuple(sorted(reader.mistakes, key=lambda m: m.line)))
    return teams


def _teams(reader: Reader, document: CommentedMap) -> tuple[Team, ...]:
    version = document.get("version")
    if version != VERSION or isinstance(version, bool):
        reader.complain(document, "version", f"must be {VERSION}, the only version known here")
        return ()
    reader.known_keys(document, ("version", "teams"))
    nodes = reader.mappings(document, "teams", required=True)
    teams = tuple(_team(reader, node) for node in nodes)
    seen: set[str] = set()
    for node, team in zip(nodes, teams, strict=True):
        if team.name and team.name in seen:
            reader.complain(node, "name", f"{team.name} is the name of an earlier team")
        seen.add(team.name)
    return teams


def _team(reader: Reader, node: CommentedMap) -> Team:
    reader.known_keys(node, KEYS)
    gpus = MAX_GPUS
    return Team(
        name=reader.text(node, "name"),
        parent=reader.text(node, "parent") if "parent" in node else "",
        share_percent=_number(reader, node, "share_percent", 100.0),
        gpu_hours_per_day=_number(reader, node, "gpu_hours_per_day", HOURS_PER_DAY * gpus),
        limit=_count(reader, node, "limit"),
        priority_limits=_by_priority(reader, reader.mapping(node, "priority_limits")),
        guaranteed=_count(reader, node, "guaranteed") or 0,
        lending_limit=_count(reader, node, "lending_limit"),
        borrowing_limit=_count(reader, node, "borrowing_limit"),
        groups=reader.texts(node, "groups"),
        users=reader.texts(node, "users"),
        price_per_gpu_hour=_number(reader, node, "price_per_gpu_hour", MAX_PRICE),
    )


def _number(reader: Reader, node: CommentedMap, key: str, most: float) -> float | None:
    return reader.number(node, key, 0.0, most=most) if key in node else None


def _count(reader: Reader, node: CommentedMap, key: str) -> int | None:
    if key not in node:
        return None
    return int(reader.number(node, key, 0.0, most=MAX_GPUS, whole=True))


def _by_priority(reader: Reader, node: CommentedMap) -> dict[Priority, int]:
    reader.known_keys(node, tuple(_PRIORITIES))
    return {
        priority: _count(reader, node, name) or 0
        for name, priority in _PRIORITIES.items()
        if name in node
    }


def propose(
    current: Iterable[Team], wanted: Iterable[Team], *, prune: bool, based_on: str, reason: str
) -> Proposal:
    """What makes the wanted teams out of the current ones. Those that are not named stay, or go with
    `prune`."""
    known, named = {team.name: team for team in current}, {team.name: team for team in wanted}
    return Proposal(
        reason,
        based_on,
        created=tuple(team for name, team in named.items() if name not in known),
        changed=tuple(
            team for name, team in named.items() if name in known and known[name] != team
        ),
        deleted=tuple(sorted(known.keys() - named.keys())) if prune else (),
    )


def as_yaml(teams: Iterable[Team]) -> str:
    """A file that `parse_teams` reads as these teams. What a team does not state is left out."""
    text = StringIO()
    yaml = YAML()
    yaml.indent(mapping=2, sequence=4, offset=2)
    yaml.dump({"version": VERSION, "teams": [stated(team) for team in teams]}, text)
    return text.getvalue()


def stated(team: Team) -> dict[str, Any]:
    """What the team's own words say, by key, as they are written in a file."""
    found: dict[str, Any] = {}
    for key in KEYS:
        value = getattr(team, key)
        if key == "priority_limits":
            value = {priority.name.lower(): limit for priority, limit in value.items()}
        elif isinstance(value, tuple):
            value = list(value)
        if value or (value == 0 and key != "guaranteed"):
            found[key] = value
    return found
