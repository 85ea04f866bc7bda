"""Who asks, and what they may do (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from scheduler_bridge.errors import NotAllowed


class Right(StrEnum):
    """What a service may be allowed to do to any workload. Users need no rights for their own."""

    READ = "read"
    SUBMIT = "submit"
    TAKE = "take"
    RESUME = "resume"
    SUSPEND = "suspend"
    STOP = "stop"
    JUDGE_IDLENESS = "judge_idleness"
    PAUSE = "pause"
    JOBS = "jobs"
    EXPIRE = "expire"
    BUDGETS = "budgets"
    GIVE_UP = "give_up"


SERVICE_RIGHTS: Final[Mapping[str, frozenset[Right]]] = {
    "admin": frozenset(Right),
    "hub": frozenset(
        {Right.READ, Right.SUBMIT, Right.TAKE, Right.RESUME, Right.SUSPEND, Right.STOP}
    ),
    # RESUME only withdraws a suspend that has not begun: see `operations.desire`
    "reclaimer": frozenset({Right.READ, Right.JUDGE_IDLENESS, Right.SUSPEND}),
}
"""A token of any other name gives nothing."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Somebody who proved who they are. `user` is empty for services; `sees_all` for services and
    the Hub's administrators."""

    name: str
    user: str = ""
    rights: frozenset[Right] = frozenset()
    groups: frozenset[str] = frozenset()

    @property
    def sees_all(self) -> bool:
        """Whether other people's workloads are visible."""
        return Right.READ in self.rights

    @property
    def waiter(self) -> str:
        """Under which name it waits: a user called like a service is not that service."""
        return f"user:{self.user}" if self.user else self.name

    def owns(self, user: str) -> bool:
        """Whether it is this user."""
        return bool(self.user) and self.user == user

    def require(self, right: Right) -> None:
        """Raise `NotAllowed` without the right."""
        if right not in self.rights:
            raise NotAllowed(
                f"{self.name} may not do this ({right.value}).",
                remedy="Ask an administrator.",
            )


def service(name: str) -> Caller:
    """The caller that a service token stands for."""
    return Caller(name, rights=SERVICE_RIGHTS.get(name, frozenset()))


def user(name: str, *, groups: frozenset[str], admin: bool) -> Caller:
    """A person, or a program with a person's token."""
    rights = SERVICE_RIGHTS["admin"] if admin else frozenset[Right]()
    return Caller(name, user=name, rights=rights, groups=groups)
