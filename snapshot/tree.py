"""A folder's content as values, and the difference between two looks at it (pure).

Paths are relative to the folder, with `/` between names; the folder itself is the empty path. Names
that are not UTF-8 are kept by Python's surrogate escapes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Final, Literal

from pydantic import Base64Bytes, Field, TypeAdapter

Kind = Literal["folder", "file", "link", "pipe"]
Attributes = dict[str, bytes]


@dataclass(frozen=True, slots=True)
class Entry:
    """One name. `mode` without the kind; `inode` is (device, number) and `names` how many hard
    links there are; `target` of a symbolic link; `attributes` are extended ones."""

    kind: Kind
    mode: int
    uid: int
    gid: int
    size: int
    modified_ns: int
    changed_ns: int
    inode: tuple[int, int]
    names: int = 1
    target: str = ""
    attributes: Attributes = field(default_factory=dict)

    def fingerprint(self) -> str:
        """Another one whenever anything about the file has changed, its content too: that moves
        `changed_ns`, which no program can set."""
        size = 0 if self.kind == "folder" else self.size
        seen = (self.kind, self.mode, self.uid, self.gid, size, self.modified_ns, self.changed_ns)
        text = repr((*seen, self.inode, self.target, sorted(self.attributes.items())))
        return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


@dataclass(frozen=True, slots=True)
class Tree:
    """What was found, and what was left out, as path -> why."""

    entries: dict[str, Entry]
    left_out: dict[str, str] = field(default_factory=dict)


Fingerprints = Mapping[str, str]


UNSETTLED = ""
"""In place of a fingerprint: a change in the same tick of the file system's clock would not show."""


def fingerprints(tree: Tree, *, settled_ns: int) -> dict[str, str]:
    """All that a later look needs of an earlier one. What has changed since `settled_ns` counts as
    changed from then on."""
    return {
        path: entry.fingerprint() if entry.changed_ns < settled_ns else UNSETTLED
        for path, entry in tree.entries.items()
    }


@dataclass(frozen=True, slots=True)
class Changes:
    """`changed` in an order in which they can be made (folders before what is in them), with the
    folders above each; `removed` without what is below something removed."""

    changed: tuple[str, ...]
    removed: tuple[str, ...]


def difference(before: Fingerprints, now: Tree) -> Changes:
    """What turned the one into the other, as far as it was looked at now."""
    changed = {p for p, entry in now.entries.items() if before.get(p) != entry.fingerprint()}
    above = {folder for path in changed for folder in folders_above(path)}
    unseen = now.left_out.keys()
    gone = {
        path
        for path in before
        if path not in now.entries and unseen.isdisjoint((path, *folders_above(path)))
    }
    removed = (path for path in gone if not any(folder in gone for folder in folders_above(path)))
    return Changes(tuple(sorted(changed | above)), tuple(sorted(removed)))


def folders_above(path: str) -> Iterable[str]:
    """Every folder that a path lies in, up to the empty one."""
    while path:
        path = path.rpartition("/")[0]
        yield path


@dataclass(frozen=True, slots=True)
class Run:
    """Bytes of a file at `offset`; holes lie between runs. They are in data part `part`."""

    offset: int
    length: int
    part: int
    start: int


Count = Annotated[int, Field(ge=0)]


@dataclass(frozen=True, slots=True)
class Item:
    """One step of applying a layer: make `path` what it was. With `same_as` it is another name of
    an earlier one; `kind` `gone`: it is removed."""

    path: str
    kind: Literal["folder", "file", "link", "pipe", "gone"]
    mode: Annotated[int, Field(ge=0, le=0o7777)] = 0
    uid: Count = 0
    gid: Count = 0
    size: Count = 0
    modified_ns: int = 0
    target: str = ""
    same_as: str | None = None
    attributes: dict[str, Base64Bytes] = field(default_factory=dict)
    runs: tuple[Run, ...] = ()


_ITEM: Final = TypeAdapter(Item)


def to_line(item: Item) -> bytes:
    """As one line of an index."""
    return _ITEM.dump_json(_with_names(item, _as_bytes), exclude_defaults=True) + b"\n"


def from_line(line: bytes) -> Item:
    """Raises `ValueError` for what is none, or leads out of the folder."""
    item = _with_names(_ITEM.validate_json(line), _as_name)
    check_path(item.path)
    if item.same_as is not None:
        check_path(item.same_as)
    return item


def _with_names(item: Item, change: Callable[[str], str]) -> Item:
    same_as = None if item.same_as is None else change(item.same_as)
    return replace(item, path=change(item.path), target=change(item.target), same_as=same_as)


# JSON has no place for names that are not UTF-8: there, a character stands for one byte.
def _as_bytes(name: str) -> str:
    return name.encode("utf-8", "surrogateescape").decode("latin-1")


def _as_name(text: str) -> str:
    return text.encode("latin-1").decode("utf-8", "surrogateescape")


def check_path(path: str) -> None:
    """Raises `ValueError` unless it is a plain path below the folder."""
    names = path.split("/") if path else []
    if any(name in {"", ".", ".."} or "\0" in name for name in names):
        raise ValueError(f"not a path inside the folder: {path!r}")
