"""How much of a resumed session's memory has arrived, from what its supervisor notes (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

FACT = "filling"
"""Under this name a supervisor's status holds `snapshot.model.Progress`; empty when all is there."""

WAITS = "It waits for the rest and goes on by itself; nothing is lost."


@dataclass(frozen=True, slots=True)
class Arrival:
    """`percent` is 0 to 100, None while it is not known; `trouble` says why no more comes."""

    percent: int | None = None
    trouble: str = ""

    @property
    def words(self) -> str:
        """`63 %`, or empty."""
        return "" if self.percent is None else f"{self.percent} %"


def arrival(facts: Mapping[str, object]) -> Arrival | None:
    """What the facts of a status say; None: no memory is on its way."""
    noted = facts.get(FACT)
    if not isinstance(noted, Mapping) or not noted:
        return None
    return Arrival(
        _percent(noted.get("remaining"), noted.get("total")), str(noted.get("trouble") or "")
    )


def _percent(remaining: object, total: object) -> int | None:
    """Rounded down: what lacks a page is not complete."""
    if not isinstance(remaining, int) or not isinstance(total, int) or not 0 < total >= remaining:
        return None
    return 100 * (total - max(remaining, 0)) // total
