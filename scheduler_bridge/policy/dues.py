"""What each team is due at one moment, and what follows from who holds what: who lends, who borrows,
and whose guaranteed GPUs are used by others. All numbers are thousandths of a GPU."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from scheduler_bridge.model.usage import MILLI, FleetSums, TeamSums
from scheduler_bridge.policy.budgets import Budgets, team_rules

_ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class Due:
    """A team's, its sub-teams included: its share of the fleet, and what is guaranteed to it."""

    share: int = 0
    guaranteed: int = 0
    parent: str = ""


Dues = Mapping[str, Due]


def dues(budgets: Budgets, fleet_gpus: int) -> dict[str, Due]:
    """Of all teams. More than its limit a team is never due: nobody could deliver it."""
    rules = team_rules(budgets, fleet_gpus, {})
    found = {}
    for name, rule in rules.items():
        # rounded down, so that what sub-teams are due never exceeds what their parent is
        share = int(rule.share * fleet_gpus * MILLI + _ROUNDING)
        if rule.limit is not None:
            share = min(share, rule.limit * MILLI)
        found[name] = Due(share, rule.guaranteed * MILLI, budgets.teams[name].parent)
    return found


@dataclass(slots=True)
class Held:
    """What a team itself holds and waits for, its sub-teams not included."""

    allocated: int = 0
    unallocated: int = 0
    waiting: int = 0

    @property
    def gpus(self) -> int:
        """All that it holds."""
        return self.allocated + self.unallocated

    def add(self, other: Held) -> None:
        """That as well."""
        self.allocated += other.allocated
        self.unallocated += other.unallocated
        self.waiting += other.waiting


class Tree:
    """Teams above their sub-teams. A team that nobody knows has no parent and is due nothing."""

    def __init__(self, due: Dues) -> None:
        self.dues = {
            name: each if _is_rooted(due, name) else replace(each, parent="")
            for name, each in due.items()
        }
        self._lines: dict[str, tuple[str, ...]] = {}
        names = sorted(self.dues, key=lambda name: (len(self.line(name)), name))
        self.downwards: tuple[str, ...] = tuple(names)

    def due(self, name: str) -> Due:
        """What it is due."""
        return self.dues.get(name, _NOTHING)

    def line(self, name: str) -> tuple[str, ...]:
        """The team, its parent, and so on up."""
        known = self._lines.get(name)
        if known is None:
            parent = self.due(name).parent
            known = self._lines[name] = (name, *(self.line(parent) if parent else ()))
        return known

    def place(self, name: str) -> tuple[str, str]:
        """The team without parent, and the sub-team if it is one."""
        line = self.line(name)
        return line[-1], name if len(line) > 1 else ""

    def is_root(self, name: str) -> bool:
        """Whether it has no parent."""
        return not self.due(name).parent


_NOTHING = Due()


def _is_rooted(due: Dues, name: str) -> bool:
    """Whether its parents lead to one without parent; not so below itself or below nobody."""
    seen = {name}
    while parent := due[name].parent:
        if parent in seen or parent not in due:
            return False
        seen.add(parent)
        name = parent
    return True


@dataclass(slots=True)
class Moment:
    """How things stand at one moment, until something changes."""

    tree: Tree
    capacity: int
    held: Mapping[str, Held]
    totals: dict[str, Held] = field(default_factory=dict)

    def rates(self) -> dict[str, TeamSums]:
        """What each team's sums grow by in one millisecond."""
        self._sum_up()
        lending = self._lending()
        lent, used = self._guarantees()
        found = {}
        for name, total in self.totals.items():
            due = self.tree.due(name)
            own_lent, own_borrowed = lending.get(name, (0, 0))
            found[name] = TeamSums(
                min(due.share, total.gpus + total.waiting),
                total.allocated,
                total.unallocated,
                own_lent,
                own_borrowed,
                max(0, due.guaranteed - total.gpus),
                lent.get(name, 0),
                used.get(name, 0),
            )
        return found

    def fleet(self) -> FleetSums:
        """The same for the fleet."""
        held = sum(each.gpus for each in self.held.values())
        return FleetSums(self.capacity, held, self.capacity - held)

    def _sum_up(self) -> None:
        self.totals = {name: Held() for name in self.tree.downwards}
        for name, own in self.held.items():
            for above in self.tree.line(name):
                self.totals.setdefault(above, Held()).add(own)

    def _lending(self) -> dict[str, tuple[int, int]]:
        """What each team lends and borrows. First between teams without parent; then between a team's
        sub-teams, who also pass on what their parent lends or borrows."""
        below: dict[str, list[str]] = {}
        for name in self.totals:
            parent = "" if self.tree.is_root(name) else self.tree.due(name).parent
            below.setdefault(parent, []).append(name)
        found: dict[str, tuple[int, int]] = {"": (0, 0)}
        for parent in ("", *self.tree.downwards):
            if parent in below:
                found |= self._among(parent, below[parent], *found[parent])
        del found[""]
        return found

    def _among(
        self, parent: str, names: list[str], lends: int, borrows: int
    ) -> dict[str, tuple[int, int]]:
        spare = {name: self.tree.due(name).share - self.totals[name].gpus for name in names}
        if parent:
            # what the parent holds itself is one more beside its sub-teams
            whole = self.tree.due(parent).share - self.totals[parent].gpus
            spare[""] = whole - sum(spare.values())
        over = {name: -n for name, n in spare.items() if n < 0}
        under = {name: n for name, n in spare.items() if n > 0}
        passed = min(sum(over.values()), sum(under.values()))
        borrowed = apportion(passed + borrows, over)
        lent = apportion(passed + lends, under)
        return {name: (lent.get(name, 0), borrowed.get(name, 0)) for name in names}

    def _guarantees(self) -> tuple[dict[str, int], dict[str, int]]:
        """What teams without parent have lent of their guaranteed GPUs, and who uses it. Free GPUs
        come first: as long as they are enough to give everything back, nothing is lent."""
        roots = [name for name in self.totals if self.tree.is_root(name)]
        spare = {name: self.tree.due(name).guaranteed - self.totals[name].gpus for name in roots}
        unused = {name: n for name, n in spare.items() if n > 0}
        above = {name: -n for name, n in spare.items() if n < 0}
        lent = max(0, sum(unused.values()) - max(0, self.fleet().free))
        lent = min(lent, sum(above.values()))
        return apportion(lent, unused), apportion(lent, above)


def apportion(total: int, parts: Mapping[str, int]) -> dict[str, int]:
    """The total (at most the sum of the parts) split in proportion, in whole numbers that add up to
    it; none gets more than its part. The same for every order of the parts."""
    whole = sum(parts.values())
    if total >= whole:
        return dict(parts)
    return dict(_shares(total, whole, sorted(parts.items())))


def _shares(total: int, whole: int, parts: Iterable[tuple[str, int]]) -> Iterable[tuple[str, int]]:
    given = seen = 0
    for name, part in parts:
        seen += part
        upto = total * seen // whole
        yield name, upto - given
        given = upto
