"""Processes that belong to nothing. All of them are seen: a run has a PID namespace of its own."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from snapshot import proc


@dataclass(frozen=True, slots=True)
class Running:
    """One process, and what a person would call it."""

    pid: int
    parent: int
    name: str


def running() -> tuple[Running, ...]:
    """All processes of this PID namespace, without those that only wait to be reaped."""
    found = []
    for pid in proc.all_pids():
        stat = proc.stat(pid)
        if stat is not None and stat.state not in proc.GONE_STATES:
            words = proc.read_text(f"/proc/{pid}/cmdline").replace("\0", " ")
            found.append(Running(pid, stat.parent, (words or stat.name)[:160]))
    return tuple(found)


def orphans(everybody: Iterable[Running], roots: Collection[int]) -> tuple[Running, ...]:
    """Those that neither are one of `roots` nor come from one (pure)."""
    by_pid = {each.pid: each for each in everybody}

    def belongs(each: Running | None) -> bool:
        seen = set()
        while each is not None and each.pid not in seen:
            if each.pid in roots:
                return True
            seen.add(each.pid)
            each = by_pid.get(each.parent)
        return False

    return tuple(each for each in by_pid.values() if not belongs(each))
