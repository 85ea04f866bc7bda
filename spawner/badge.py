"""Whether a running session can be suspended, in the words of every page and command (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

FRESH_SECONDS = 300.0
"""Older signals tell nothing: their supervisor is not heard of."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """`can` is None while it is not known; `headline` is empty then. `reasons` are in the way, all
    of them."""

    can: bool | None = None
    headline: str = ""
    reasons: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """The headline with the first reason, where there is no room for more."""
        if not self.reasons:
            return self.headline
        more = f" (and {len(self.reasons) - 1} more)" if len(self.reasons) > 1 else ""
        return f"{self.headline} {self.reasons[0]}{more}"


UNKNOWN = Outlook()


def outlook(signals: Mapping[str, Any], *, age_seconds: float) -> Outlook:
    """What the signals of a session's supervisor say (see `supervisor.signals.Signals`)."""
    can = signals.get("freezable")
    if not isinstance(can, bool) or age_seconds > FRESH_SECONDS:
        return UNKNOWN
    if not can:
        return refused(_texts(signals.get("blockers")))
    memory = _number(signals.get("suspend_bytes"))
    seconds = _number(signals.get("suspend_seconds"))
    return possible(memory, seconds, int(_number(signals.get("closing_connections"))))


def refused(reasons: tuple[str, ...]) -> Outlook:
    """It cannot be suspended, for these reasons."""
    return Outlook(False, "Cannot be suspended.", reasons or ("Something in it cannot be saved.",))


def possible(memory_bytes: float, seconds: float, connections: int) -> Outlook:
    """It can be suspended at this cost. What was stored before is not stored again: the cost is the
    first suspend's."""
    parts = ["Can be suspended"]
    if memory_bytes:
        parts.append(
            f": {_size(memory_bytes)} of memory, {seconds:.0f} s at most if all of it is new"
        )
    closing = _connections(connections)
    return Outlook(True, "".join(parts) + f".{closing}")


def _connections(count: int) -> str:
    if not count:
        return ""
    if count == 1:
        return " One connection to outside will close."
    return f" {count} connections to outside will close."


def _size(count: float) -> str:
    if count < 1e9:
        return f"{max(1, round(count / 1e6))} MB"
    return f"{count / 1e9:.1f} GB"


def _number(value: object) -> float:
    """0 for whatever is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0.0
    return float(value) if 0 <= value < float("inf") else 0.0


def _texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        return ()
    return tuple(each for each in value if isinstance(each, str))
