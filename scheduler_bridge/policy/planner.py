"""Planning for a fleet whose GPUs are named: columns, one pass, and named GPUs again."""

from __future__ import annotations

from collections.abc import Iterable

from scheduler_bridge.policy.columns import Columns, Group
from scheduler_bridge.policy.devices import Devices, load
from scheduler_bridge.policy.exact import ExactRooms
from scheduler_bridge.policy.passing import Desk
from scheduler_bridge.policy.reasons import Reasons, never_fits
from scheduler_bridge.policy.values import FleetState, Pending, Plan, Rules, Running

__all__ = ["never_fits", "plan"]


def plan(
    fleet: FleetState,
    pending: Iterable[Pending],
    running: Iterable[Running],
    rules: Rules,
    now: float,
) -> Plan:
    """Decide about every pending workload. `now` is in UNIX seconds. Pure: the same inputs, in
    whatever order, give the same plan."""
    columns, devices = load(fleet, pending, running)
    return plan_named(columns, devices, rules, now)


def plan_named(
    columns: Columns,
    devices: Devices,
    rules: Rules,
    now: float,
    only: Iterable[Group] | None = None,
    *,
    explain: bool = True,
    patience: int | None = None,
) -> Plan:
    """The same for columns that are kept from pass to pass, which stay as they are. With `only`, about
    some groups alone. Without `explain` those that wait for nothing in particular are not told why. See
    `Desk.run` for `patience`."""
    exact = ExactRooms(devices)
    desk = Desk(columns, rules, now, exact)
    decided = desk.run(only, explain=Reasons(desk).why if explain else None, patience=patience)
    placed = devices.placements(decided.placements)
    marks = devices.earmarks(decided.promised, placed, exact.leaving(desk))
    devices.fixed.clear()
    return Plan(
        placed,
        decided.preemptions,
        decided.waits,
        marks,
        decided.stuck,
        decided.reservations,
        decided.unfinished,
        decided.lost,
    )
