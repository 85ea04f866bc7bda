"""Files that a process has mapped into its memory, read from /proc/PID/maps."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from snapshot import proc
from snapshot.inspection.descriptors import MEMORY_FILES, Surroundings, on_disk
from snapshot.inspection.facts import Held, Kind
from snapshot.inspection.mounts import inode


@dataclass(frozen=True, slots=True)
class Mapping:
    """A mapped file, each once: `place` is one of its ranges, `writes` a shared, writable one."""

    name: str
    place: str
    writes: bool


def parse(text: str) -> tuple[Mapping, ...]:
    """The mapped files in the kernel's text (pure)."""
    found: dict[tuple[str, str, str], Mapping] = {}
    for line in text.splitlines():
        place, rights, _, device, number, name = [*line.split(None, 5), ""][:6]
        if not name or number == "0":
            continue
        key = (device, number, name)
        writes = rights[1] == "w" and rights[3] == "s"
        known = found.get(key)
        if known is None or (writes and not known.writes):
            found[key] = Mapping(name, place, writes)
    return tuple(found.values())


class Mapped:
    """Mapped files of a tree, each looked at once: its programs share most of their libraries."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._seen: dict[tuple[str, bool], Held | None] = {}

    def by(self, pid: int) -> Iterator[Held]:
        """Everything on disk (or of a device) that a process maps."""
        for mapping in parse(proc.read_text(f"/proc/{pid}/maps")):
            key = (mapping.name, mapping.writes)
            if key not in self._seen:
                self._seen[key] = self._look(pid, mapping)
            held = self._seen[key]
            if held is not None:
                yield held

    def _look(self, pid: int, mapping: Mapping) -> Held | None:
        if mapping.name.startswith("anon_inode:"):
            return Held(Kind.HANDLE, mapping.name, is_mapped=True)
        if mapping.name.startswith(MEMORY_FILES):
            return Held(Kind.OTHER, mapping.name, is_mapped=True)
        try:
            found = os.stat(f"/proc/{pid}/map_files/{_as_file(mapping.place)}")
        except OSError:
            return None
        return on_disk(
            mapping.name,
            inode(found),
            self._around,
            reads=True,
            writes=mapping.writes,
            is_mapped=True,
        )


def _as_file(place: str) -> str:
    """A range as /proc/PID/map_files spells it: without leading zeros."""
    start, _, end = place.partition("-")
    return f"{int(start, 16):x}-{int(end, 16):x}"
