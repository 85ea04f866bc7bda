"""A short name for all that the planner saw, stored with what it decided.

Whoever has the same inputs (a replay, a second planner) gets the same digest, in whatever order they
come; whoever gets another one did not decide about the same world.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from operator import attrgetter
from typing import Any, Final, Generic, TypeVar

from scheduler_bridge.policy.values import FleetState, NodeState, Pending, Rules, Running

LENGTH: Final = 16
"""Hexadecimal digits. They tell inputs apart; nobody gains by making two that look alike."""

_MODULUS: Final = 1 << 256
_PLAIN: Final = frozenset({str, bool, type(None)})
_NUMBERS: Final = frozenset({int, float})
_Item = TypeVar("_Item")


class Prints(Generic[_Item]):
    """The sum of the fingerprints of named values, kept up to date by small changes. A sum does not
    depend on the order, and can be taken back."""

    def __init__(self) -> None:
        self.total = 0
        self._items: dict[str, _Item] = {}
        self._prints: dict[str, int] = {}

    def put(self, name: str, item: _Item) -> None:
        """The value of this name is now that one."""
        made = fingerprint((name, item))
        self.total = (self.total - self._prints.get(name, 0) + made) % _MODULUS
        self._items[name], self._prints[name] = item, made

    def drop(self, name: str) -> None:
        """There is no value of this name any more, if there was one."""
        if name in self._items:
            self.total = (self.total - self._prints.pop(name)) % _MODULUS
            del self._items[name]

    def tell(self, name: str, item: _Item | None) -> None:
        """What is of this name now; None if there is nothing."""
        if item is None:
            self.drop(name)
        elif self._items.get(name) != item:
            self.put(name, item)

    def follow(self, items: Mapping[str, _Item]) -> int:
        """Make it these values and no others; returns the sum. Reads only what is new."""
        seen = self._items.get
        for name, item in items.items():
            before = seen(name)
            if before is item:
                continue
            if before is not None and before == item:
                # the same object next time: comparing two costs more than all the rest
                self._items[name] = item
            else:
                self.put(name, item)
        if len(self._items) != len(items):
            for name in self._items.keys() - items.keys():
                self.drop(name)
        return self.total


class Known:
    """All that is seen of fleet and work. Whoever keeps it tells of each change; the digest is the same as
    that of somebody who sees everything for the first time."""

    def __init__(self) -> None:
        self.nodes = Prints[NodeState]()
        self.pending = Prints[Pending]()
        self.running = Prints[Running]()
        self.holders = Prints[str]()


def digest(
    fleet: FleetState,
    pending: Iterable[Pending],
    running: Iterable[Running],
    rules: Rules,
    now: float,
    *,
    known: Known | None = None,
) -> str:
    """The digest of a planner's inputs. Depends on nothing else, and on none of their orders. `now` is
    in UNIX seconds."""
    known = known or Known()
    known.nodes.follow({node.name: node for node in fleet.nodes})
    known.pending.follow({item.id: item for item in pending})
    known.running.follow({item.id: item for item in running})
    known.holders.follow(fleet.holders)
    return named(known, rules, fleet.earmarks, now)


def named(known: Known, rules: Rules, earmarks: Mapping[str, str], now: float) -> str:
    """The digest, where fleet and work are known already."""
    parts = (known.nodes, known.pending, known.running, known.holders)
    # as text: a number of that size is more than a fraction can hold
    names = [f"{part.total:x}" for part in parts]
    return f"{fingerprint((names, rules, earmarks, now)):064x}"[:LENGTH]


def fingerprint(value: object) -> int:
    """256 bits of a value in its canonical form."""
    return int.from_bytes(hashlib.sha256(repr(plain(value)).encode()).digest())


def plain(value: Any) -> Any:
    """The value as tuples of texts and numbers: every field of a record, mappings by key. What is
    equal has the same form. Raises `TypeError` for what has none."""
    if type(value) in _PLAIN:
        return value
    if type(value) in _NUMBERS:
        return value + 0.0  # 3 is 3.0, and -0.0 is 0.0
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return tuple(sorted((plain(key), plain(inner)) for key, inner in value.items()))
    if is_dataclass(value):
        kind: Any = type(value)
        # most fields are texts, which need no call
        return tuple([v if type(v) in _PLAIN else plain(v) for v in _values(kind)(value)])
    if isinstance(value, list | tuple):
        return tuple(map(plain, value))
    raise TypeError(f"{type(value).__name__} has no canonical form")


@cache
def _values(kind: type[Any]) -> attrgetter[tuple[Any, ...]]:
    return attrgetter(*(field.name for field in fields(kind)))
