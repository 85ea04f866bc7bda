"""How much of the past counts: look-back, half-life and the horizon of forgiveness."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from scheduler_bridge.model.usage import HOUR_MS, MICRO, TeamBalance

LONGEST_HOURS = 366 * 24


@dataclass(frozen=True, slots=True)
class UsageWindow:
    """Which hours make a team's balance (owed less delivered).

    Hours that ended more than `lookback_hours` ago do not count. Each counts half after
    `half_life_hours` (None: all count the same). If the hours that ended more than
    `forgiveness_hours` ago leave a team in debt, that debt is forgiven (None: never); what it was
    owed then it keeps."""

    lookback_hours: int = 30 * 24
    half_life_hours: float | None = 7 * 24.0
    forgiveness_hours: int | None = 14 * 24

    def __post_init__(self) -> None:
        if not 1 <= self.lookback_hours <= LONGEST_HOURS:
            raise ValueError(
                f"lookback_hours: must be between 1 and {LONGEST_HOURS}; it is {self.lookback_hours}."
            )
        # written so that NaN fails
        if self.half_life_hours is not None and not self.half_life_hours > 0:
            raise ValueError(f"half_life_hours: must be above 0; it is {self.half_life_hours}.")
        if self.forgiveness_hours is not None and self.forgiveness_hours < 0:
            raise ValueError(
                f"forgiveness_hours: must be 0 or more; it is {self.forgiveness_hours}."
            )

    def first_hour(self, now: int) -> int:
        """The earliest hour that counts in the hour `now`."""
        return now - self.lookback_hours

    def weight(self, hours_ago: float) -> float:
        """How much an hour counts that ended so long ago."""
        if self.half_life_hours is None:
            return 1.0
        return float(2.0 ** (-max(0.0, hours_ago) / self.half_life_hours))


@dataclass(slots=True)
class Balances:
    """Owed less delivered of each team in each hour, in GPU-microseconds, and what that makes now.
    Past hours are summed up once in an hour, so that asking costs little."""

    window: UsageWindow
    _hours: dict[int, dict[str, int]] = field(default_factory=lambda: defaultdict(dict))
    _closed: tuple[int, dict[str, tuple[float, float]]] | None = None

    def add(self, hour: int, team: str, net: int) -> None:
        """Count this as well."""
        teams = self._hours[hour]
        teams[team] = teams.get(team, 0) + net
        if self._closed is not None and hour < self._closed[0]:
            self._closed = None

    def at(self, now: int, more: Mapping[tuple[int, str], int]) -> dict[str, TeamBalance]:
        """The balances at `now` (milliseconds), if `more` by hour and team is counted too."""
        hour, part = divmod(now, HOUR_MS)
        closed = self._until(hour)
        aged = self.window.weight(part / HOUR_MS)
        open_: dict[str, int] = defaultdict(int)
        for team, net in self._hours.get(hour, {}).items():
            open_[team] += net
        for (when, team), net in more.items():
            if when >= self.window.first_hour(hour):
                open_[team] += net
        found = {}
        for name in sorted(closed.keys() | open_.keys()):
            recent, old = closed.get(name, (0.0, 0.0))
            balance = (recent + max(0.0, old)) * aged + open_.get(name, 0)
            forgiven = max(0.0, -old) * aged
            found[name] = TeamBalance(name, balance / MICRO, forgiven / MICRO)
        return found

    def _until(self, hour: int) -> dict[str, tuple[float, float]]:
        """(recent, older than the horizon) of each team in the hours before this one, as they count
        when it begins."""
        if self._closed is None or self._closed[0] != hour:
            self._closed = (hour, self._sum_up(hour))
        return self._closed[1]

    def _sum_up(self, hour: int) -> dict[str, tuple[float, float]]:
        first, horizon = self.window.first_hour(hour), self.window.forgiveness_hours
        found: dict[str, tuple[float, float]] = {}
        for when in sorted(self._hours):
            if when < first:
                del self._hours[when]
            elif when < hour:
                weight = self.window.weight(hour - when - 1)
                is_old = horizon is not None and when < hour - horizon
                for team, net in self._hours[when].items():
                    recent, old = found.get(team, (0.0, 0.0))
                    counted = net * weight
                    found[team] = (recent, old + counted) if is_old else (recent + counted, old)
        return found
