"""How often one user may ask: a bucket of requests per user that fills at an even rate (pure).

Services and lease holders are not counted: a supervisor's heartbeat must never be the one too many.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import Final

from scheduler_bridge.errors import TooOften

_REMEMBERED_AT_MOST: Final = 10_000


@dataclass(frozen=True, slots=True)
class Rate:
    """`burst` requests at once, and `per_second` from then on. 0 per second: no limit."""

    per_second: float = 20.0
    burst: int = 200


class Rates:
    """One bucket per name. `monotonic` tells seconds."""

    def __init__(self, rate: Rate, monotonic: Callable[[], float]) -> None:
        self._rate = rate
        self._monotonic = monotonic
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def count(self, name: str) -> None:
        """Take one request out of the bucket. Raises `TooOften`, which takes none."""
        rate, now = self._rate, self._monotonic()
        if not rate.per_second:
            return
        left, at = self._buckets.get(name, (float(rate.burst), now))
        left = min(float(rate.burst), left + (now - at) * rate.per_second)
        if left < 1:
            raise self._too_often(name, (1 - left) / rate.per_second)
        self._buckets[name] = (left - 1, now)
        self._buckets.move_to_end(name)
        # who was not heard of for longest has a full bucket again, or soon
        while len(self._buckets) > _REMEMBERED_AT_MOST:
            self._buckets.popitem(last=False)

    def _too_often(self, name: str, seconds: float) -> TooOften:
        rate, rest = self._rate, max(1, ceil(seconds))
        return TooOften(
            f"{name} asks too often: {rate.burst} requests at once and {rate.per_second:g} a second "
            "are allowed.",
            remedy=f"Wait {rest} s, and let programs wait for news (/wait, /events) instead of asking "
            "again and again.",
            retry_after=rest,
        )
