"""What somebody may know of other people's work. Own work is always known, and all of it to those who
look after everybody's."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

SOMEBODY: Final = "other"
"""Stands for a workload that is not to be known."""

_ID: Final = re.compile(r"[sj]-[0-9a-f]{12}")


class Visibility(StrEnum):
    """How much users see of others' work in the queue and on machines: how much there is; names
    inside their own teams; or all names. Never commands, folders or what others were told."""

    COUNTS = "counts"
    TEAM = "team"
    NAMES = "names"


@dataclass(frozen=True, slots=True)
class Viewer:
    """Who looks. `sees_all`: an administrator, or a service that may read everything."""

    user: str
    teams: frozenset[str] = frozenset()
    sees_all: bool = False


def may_know(viewer: Viewer, visibility: Visibility, *, user: str, team: str) -> bool:
    """Whether the viewer may know whose this is and what it is called."""
    if viewer.sees_all or (viewer.user and viewer.user == user):
        return True
    if not viewer.user:
        return False
    if visibility is Visibility.NAMES:
        return True
    return visibility is Visibility.TEAM and team in viewer.teams


def redacted(value: Any, name_of: Callable[[str], str]) -> Any:
    """Evidence with every workload's id replaced by what `name_of` makes of it, however deep."""
    if isinstance(value, str):
        return _ID.sub(lambda found: name_of(found[0]), value)
    if isinstance(value, Mapping):
        return {redacted(k, name_of): redacted(v, name_of) for k, v in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [redacted(part, name_of) for part in value]
    return value
