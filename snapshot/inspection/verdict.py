"""The answer: can be suspended or not, and what it would cost (pure)."""

from __future__ import annotations

from dataclasses import dataclass

from snapshot.inspection.facts import TreeFacts
from snapshot.model import Blocker


@dataclass(frozen=True, slots=True)
class Rates:
    """How fast a suspend is. The defaults are README's figures for the first suspend of a session on
    two shared cores with the embedded store: about 7 s for 1 GiB, 1.9 s for a quarter that was
    stored before (hardly anything to send). Another store or machine has others."""

    fixed_seconds: float = 1.7
    bytes_per_second: float = 0.2e9


@dataclass(frozen=True, slots=True)
class Verdict:
    """`blockers` empty: nothing was found in the way. `bytes` of memory would be saved, at most,
    and `seconds` is what that takes when all of it is new to the store. `outside` counts connections
    that a suspend closes."""

    blockers: tuple[Blocker, ...] = ()
    bytes: int = 0
    seconds: float = 0.0
    outside: int = 0


def weigh(tree: TreeFacts, blockers: tuple[Blocker, ...], rates: Rates | None = None) -> Verdict:
    """The verdict on a tree whose blockers are known."""
    rates = rates or Rates()
    total = tree.private_bytes + tree.shared_bytes
    seconds = rates.fixed_seconds + total / rates.bytes_per_second
    return Verdict(blockers, total, round(seconds, 1), tree.outside)
