"""Reads values out of a YAML document that remembers its lines; collects mistakes, never raises."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches

from ruamel.yaml.comments import CommentedMap, CommentedSeq

from reclaimer.durations import format_duration, parse_duration


@dataclass(frozen=True, slots=True)
class Mistake:
    """One thing that is wrong: the line (from 1), the key, what is wrong and what is allowed."""

    line: int
    key: str
    problem: str
    allowed: tuple[str, ...] = ()
    nearest: str = ""

    def __str__(self) -> str:
        parts = [
            f"{self.line}: {self.key}: {self.problem}"
            if self.key
            else f"{self.line}: {self.problem}"
        ]
        if self.nearest:
            parts.append(f"did you mean {self.nearest}?")
        if self.allowed:
            parts.append(f"allowed: {', '.join(self.allowed)}")
        return "; ".join(parts)


@dataclass(slots=True)
class Reader:
    """Each method gives a usable value, and notes a mistake if what is written is not one."""

    mistakes: list[Mistake] = field(default_factory=list)

    def complain(
        self,
        node: CommentedMap,
        key: str,
        problem: str,
        *,
        allowed: Sequence[str] = (),
        given: str = "",
    ) -> None:
        """Note a mistake at `key` of `node` (at the node itself when the key is not there)."""
        near = get_close_matches(given, allowed, n=1, cutoff=0.6) if given else []
        self.mistakes.append(
            Mistake(_line(node, key), key, problem, tuple(allowed), near[0] if near else "")
        )

    def known_keys(self, node: CommentedMap, allowed: Sequence[str]) -> None:
        """Note every key that is not one of `allowed`."""
        for key in node:
            if key not in allowed:
                self.complain(node, str(key), "unknown key", allowed=allowed, given=str(key))

    def mapping(self, node: CommentedMap, key: str) -> CommentedMap:
        """The object below `key`, empty if there is none."""
        value = node.get(key)
        if isinstance(value, CommentedMap):
            return value
        if value is not None:
            self.complain(node, key, "must be a group of keys")
        return CommentedMap()

    def mappings(self, node: CommentedMap, key: str, *, required: bool) -> list[CommentedMap]:
        """The list of objects below `key`."""
        value = node.get(key)
        if value is None and not required:
            return []
        if not isinstance(value, CommentedSeq) or not value:
            self.complain(node, key, "must be a list with at least one entry")
            return []
        for index, entry in enumerate(value):
            if not isinstance(entry, CommentedMap):
                line = value.lc.item(index)[0] + 1
                self.mistakes.append(Mistake(line, key, "every entry must be a group of keys"))
        return [entry for entry in value if isinstance(entry, CommentedMap)]

    def duration(
        self, node: CommentedMap, key: str, default: float, *, least: float = 0.0, most: float
    ) -> float:
        """Seconds within the bounds."""
        if key not in node:
            return default
        try:
            seconds = parse_duration(_scalar(node[key]))
        except ValueError as error:
            self.complain(node, key, str(error))
            return default
        if not least <= seconds <= most:
            bounds = f"between {format_duration(least)} and {format_duration(most)}"
            self.complain(node, key, f"must be {bounds}, is {_scalar(node[key])}")
            return default
        return seconds

    def number(
        self,
        node: CommentedMap,
        key: str,
        default: float,
        *,
        least: float = 0.0,
        most: float,
        whole: bool = False,
    ) -> float:
        """A number within the bounds."""
        value = node.get(key, default)
        kinds = int if whole else (int, float)
        good = isinstance(value, kinds) and not isinstance(value, bool)
        if good and least <= value <= most:
            return float(value)
        kind = "a whole number" if whole else "a number"
        self.complain(node, key, f"must be {kind} between {least:.9g} and {most:.9g}, is {value}")
        return default

    def choice(self, node: CommentedMap, key: str, default: str, allowed: Sequence[str]) -> str:
        """One of the allowed words."""
        if key not in node:
            return default
        value = node[key]
        if isinstance(value, str) and value in allowed:
            return str(value)
        self.complain(node, key, f"{value} is not known", allowed=allowed, given=_scalar(value))
        return default

    def choices(self, node: CommentedMap, key: str, allowed: Sequence[str]) -> tuple[str, ...]:
        """Several of the allowed words."""
        found = self.texts(node, key)
        for word in found:
            if word not in allowed:
                self.complain(node, key, f"{word} is not known", allowed=allowed, given=word)
        return tuple(word for word in found if word in allowed)

    def text(self, node: CommentedMap, key: str) -> str:
        """A name, which must be there."""
        value = node.get(key)
        if isinstance(value, str) and value.strip():
            return str(value)
        self.complain(node, key, "must be a name")
        return ""

    def texts(self, node: CommentedMap, key: str) -> tuple[str, ...]:
        """A name or a list of names; () if the key is not there."""
        if key not in node:
            return ()
        value = node[key]
        entries = list(value) if isinstance(value, CommentedSeq) else [value]
        if entries and all(isinstance(entry, str) and entry for entry in entries):
            return tuple(str(entry) for entry in entries)
        self.complain(node, key, "must be a name or a list of names")
        return ()


def _scalar(value: object) -> str:
    return "" if value is None else str(value)


def _line(node: CommentedMap, key: str) -> int:
    """The line of a key from 1; of the node if the key is missing; 1 if nothing is known."""
    try:
        return int(node.lc.key(key)[0]) + 1
    except (KeyError, AttributeError, TypeError):
        line = getattr(node.lc, "line", None)
        return 1 if line is None else int(line) + 1
