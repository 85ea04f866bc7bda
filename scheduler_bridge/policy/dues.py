"""What each team is due at one moment, and what follows from who holds what: who lends, who borrows,
and whose guaranteed GPUs are used by others. All numbers are thousandths of a GPU."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

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
    """What is held and waited for."""

    allocated: int = 0
    unallocated: int = 0
    waiting: int = 0

    @property
    def gpus(self) -> int:
        """All that is held."""
        return self.allocated + self.unallocated


class Tree:
    """Teams above their sub-teams. A team that nobody knows has no parent and is due nothing."""

    def __init__(self, due: Dues) -> None:
        self.dues = {
            name: each if _is_rooted(due, name) else replace(each, parent="")
            for name, each in due.items()
        }
        self._lines: dict[str, tuple[str, ...]] = {}
        self.below: dict[str, tuple[str, ...]] = {"": ()}
        """Sub-teams by parent, parents first; those without parent under the empty name."""
        for name in sorted(self.dues, key=lambda name: (len(self.line(name)), name)):
            parent = self.dues[name].parent
            self.below[parent] = (*self.below.get(parent, ()), name)

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
        root = self.line(name)[-1]
        return root, "" if root == name else name

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


class Moment:
    """How things stand at one moment. `totals` are what teams hold and wait for, sub-teams included;
    one that is not named holds nothing."""

    def __init__(self, tree: Tree, capacity: int, totals: Mapping[str, Held]) -> None:
        self._tree, self._capacity = tree, capacity
        self._totals = totals
        self._held = dict.fromkeys(tree.dues, 0)
        self._held.update((name, it.allocated + it.unallocated) for name, it in totals.items())
        unknown = (name for name in totals if name not in tree.dues)
        self._roots = (*tree.below[""], *unknown)

    def rates(self) -> dict[str, TeamSums]:
        """What each team's sums grow by in one millisecond."""
        lending = self._lending()
        lent, used = self._guarantees()
        found = {}
        for name, held in self._held.items():
            due, total = self._tree.due(name), self._totals.get(name, _NOBODY)
            own_lent, own_borrowed = lending.get(name, _NEITHER)
            found[name] = TeamSums(
                min(due.share, held + total.waiting),
                total.allocated,
                total.unallocated,
                own_lent,
                own_borrowed,
                max(0, due.guaranteed - held),
                lent.get(name, 0),
                used.get(name, 0),
            )
        return found

    def fleet(self) -> FleetSums:
        """The same for the fleet."""
        held = sum(self._held[name] for name in self._roots)
        return FleetSums(self._capacity, held, self._capacity - held)

    def _lending(self) -> dict[str, tuple[int, int]]:
        """What each team lends and borrows. First between teams without parent; then between a team's
        sub-teams, who also pass on what their parent lends or borrows."""
        found = self._among("", self._roots, *_NEITHER)
        for parent, names in self._tree.below.items():
            if parent:
                found |= self._among(parent, names, *found.get(parent, _NEITHER))
        return found

    def _among(
        self, parent: str, names: tuple[str, ...], lends: int, borrows: int
    ) -> dict[str, tuple[int, int]]:
        held, due = self._held, self._tree.due
        spare = {name: due(name).share - held[name] for name in names}
        if parent:
            # what the parent holds itself is one more beside its sub-teams
            spare[""] = due(parent).share - held[parent] - sum(spare.values())
        over = {name: -n for name, n in spare.items() if n < 0}
        under = {name: n for name, n in spare.items() if n > 0}
        passed = min(sum(over.values()), sum(under.values()))
        found = {name: (0, n) for name, n in apportion(passed + borrows, over).items()}
        found |= {name: (n, 0) for name, n in apportion(passed + lends, under).items()}
        found.pop("", None)
        return found

    def _guarantees(self) -> tuple[dict[str, int], dict[str, int]]:
        """What teams without parent have lent of their guaranteed GPUs, and who uses it. Free GPUs
        come first: as long as they are enough to give everything back, nothing is lent."""
        spare = {name: self._tree.due(name).guaranteed - self._held[name] for name in self._roots}
        unused = {name: n for name, n in spare.items() if n > 0}
        lent = max(0, sum(unused.values()) - max(0, self.fleet().free))
        if not lent:
            return {}, {}
        above = {name: -n for name, n in spare.items() if n < 0}
        lent = min(lent, sum(above.values()))
        return apportion(lent, unused), apportion(lent, above)


_NOBODY = Held()
_NEITHER = (0, 0)


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
