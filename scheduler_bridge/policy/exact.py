"""Snapshots that want the very same GPUs, or several models in order: room for them is found GPU by GPU,
beside the columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scheduler_bridge.policy.columns import Ints, Takes
from scheduler_bridge.policy.devices import Devices
from scheduler_bridge.policy.passing import Desk
from scheduler_bridge.policy.values import Pending
from scheduler_bridge.policy.victims import Candidates, Making


@dataclass(slots=True)
class ExactRooms:
    """Finds them in a fleet whose GPUs are named."""

    devices: Devices

    def room(self, desk: Desk, item: Pending, available: Ints, *, soon: bool) -> Takes | None:
        """The GPUs if they are free, or with `soon` being freed."""
        usable = self._free(desk)
        if soon:
            usable |= self.leaving(desk)
        return self._pick(desk, item, available, usable)

    def making(
        self, desk: Desk, item: Pending, found: Candidates, available: Ints
    ) -> Making | None:
        """The cheapest victims, taken in order until it fits; none that can be spared."""
        work = desk.columns.work
        rows = [int(row) for row in np.flatnonzero(np.isfinite(found.cost))]
        taken: list[int] = []
        for row in sorted(rows, key=lambda r: (found.cost[r], work.ids[r])):
            taken.append(row)
            if self._with(desk, item, available, taken) is not None:
                break
        else:
            return None
        for row in taken[:-1][::-1]:
            fewer = [other for other in taken if other != row]
            if self._with(desk, item, available, fewer) is not None:
                taken = fewer
        takes = self._with(desk, item, available, taken)
        return None if takes is None else Making(tuple(sorted(taken)), takes)

    def leaving(self, desk: Desk) -> set[str]:
        """GPUs of those that were asked to yield."""
        work = desk.columns.work
        rows = {*map(int, np.flatnonzero(work.leaving[: len(work.ids)])), *desk.yielding}
        return {gpu for row in rows for gpu in work.running[row].gpus}

    def _with(self, desk: Desk, item: Pending, available: Ints, rows: list[int]) -> Takes | None:
        work, then = desk.columns.work, available.copy()
        usable = self._free(desk) | self.leaving(desk)
        for row in rows:
            usable.update(work.running[row].gpus)
            for pool, gpus in work.takes[row]:
                then[pool] += gpus
        return self._pick(desk, item, then, usable)

    def _free(self, desk: Desk) -> set[str]:
        spoken = {gpu for gpus in self.devices.fixed.values() for gpu in gpus}
        return set(self.devices.pool_of) - set(self.devices.holders) - spoken

    def _pick(self, desk: Desk, item: Pending, available: Ints, usable: set[str]) -> Takes | None:
        own = self.devices.fixed.pop(item.id, ())
        counts = {pool: int(available[pool]) for pool in range(len(available))}
        within = [bool(each) for each in desk.within(item)]
        takes = self.devices.pick(item, within, counts, usable | set(own))
        if takes is None and own:
            self.devices.fixed[item.id] = own
        return takes
