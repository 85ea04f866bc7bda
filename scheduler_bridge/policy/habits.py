"""What the planner takes care of over many passes: how much work preemptions may cost in all, and how
many GPUs are left free for debug work. Both follow what happens; neither is for a handful of GPUs, where
one preemption is a large part of everything.

The figures come from simulated months (`hubernate simulate`): with them, short work starts in seconds and
less than a hundredth of all GPU time is done twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, sqrt


@dataclass(frozen=True, slots=True)
class Habits:
    """`losses` is the part of all GPU time in use that preemptions may cost; what is not spent is kept
    for `losses_kept` seconds. `headroom` are the least and the largest part of the fleet that is left
    free for debug work: in between, twice the square root of the GPUs that debug work holds, by which
    their number varies. Fleets below `smallest` GPUs have neither."""

    losses: float = 0.006
    losses_kept: float = 4 * 3600.0
    headroom: tuple[float, float] = (0.005, 0.025)
    smallest: int = 64

    def free_for_debug(self, capacity: int, debug_gpus: int) -> int:
        """GPUs to leave free."""
        if capacity < self.smallest:
            return 0
        least, most = (round(part * capacity) for part in self.headroom)
        return int(min(max(least, 2 * sqrt(debug_gpus)), most))


@dataclass(slots=True)
class LossBucket:
    """What preemptions may still cost, in GPU-seconds. Starts empty."""

    habits: Habits
    _saved: float = 0.0
    _at: float | None = None

    def allowance(self, now: float, capacity: int, held: int) -> float:
        """What may be lost now, with `held` GPUs in use since it was asked last. inf where fleets are
        too small for a budget."""
        if capacity < self.habits.smallest:
            return inf
        passed = 0.0 if self._at is None else max(0.0, now - self._at)
        most = self.habits.losses * capacity * self.habits.losses_kept
        self._saved = min(self._saved + self.habits.losses * held * passed, most)
        self._at = now
        return max(0.0, self._saved)

    def spend(self, lost: float) -> None:
        """So much was lost. Guaranteed claims may leave it below zero: others make up for it."""
        self._saved -= lost
