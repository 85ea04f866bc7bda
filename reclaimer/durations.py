"""Durations as people write and read them: `30s`, `2m`, `1h30m` (pure)."""

from __future__ import annotations

import re
from typing import Final

_UNITS: Final = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_WHOLE: Final = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")


def parse_duration(text: str) -> float:
    """Seconds of `30s`, `2m`, `1h30m`, `7d` or `0`. Raises `ValueError` saying what is wrong."""
    stripped = text.strip()
    if stripped == "0":
        return 0.0
    if stripped.startswith("-"):
        raise ValueError("a time cannot be negative")
    if re.fullmatch(r"\d+(\.\d+)?", stripped):
        raise ValueError(f"{stripped} has no unit; write {stripped}s, {stripped}m or {stripped}h")
    match = _WHOLE.fullmatch(stripped)
    if not stripped or match is None:
        raise ValueError(f"`{stripped}` is not a time; write for example 30s, 2m, 1h30m or 7d")
    amounts = zip(match.groups(), _UNITS.values(), strict=True)
    return float(sum(int(amount) * seconds for amount, seconds in amounts if amount))


def format_duration(seconds: float) -> str:
    """At most two units, whole: `45s`, `2m`, `1h30m`, `3d4h`. Negative times read as `0s`."""
    left = max(0, round(seconds))
    parts: list[str] = []
    for unit, size in _UNITS.items():
        amount, left = divmod(left, size)
        if amount:
            parts.append(f"{amount}{unit}")
        elif parts:
            break
        if len(parts) == 2:
            break
    return "".join(parts) or "0s"
