"""Limits of a sandbox's memory, processors and processes, kept by the kernel's control groups.

A supervisor makes the groups (`apply`) and writes down where they are; the launcher goes into them
before it starts or restores anything (`join`), so that every process and every page of the sandbox
counts from the first on. Works with the unified hierarchy (v2), and with separate ones (v1), where
only `memory`, `cpu` and `pids` are used: a group of v1's freezer would hang CRIU. CRIU is told to leave
control groups alone, so a tree comes back in the groups of where it is restored. `pids` is used
where it is there; a machine without it keeps the other limits all the same.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

_log = logging.getLogger(__name__)

FOLDER: Final = "hubernate"
RECORD: Final = "cgroups"
CONTROLLERS: Final = ("memory", "cpu", "pids")
MOST_PROCESSES: Final = 2**15
"""Processes and threads of one sandbox: far above what a notebook starts, far below what the kernel of
a usual machine can have."""
PERIOD_MICROSECONDS: Final = 100_000
LEAST_QUOTA_MICROSECONDS: Final = 1_000
FORGOTTEN_SECONDS: Final = 3600.0
_NO_SWAP: Final = ("memory.swap.max", "memory.memsw.limit_in_bytes")
"""Files that a kernel without accounting of swap does not have."""


class CgroupError(Exception):
    """The limits cannot be kept on this machine; the message says why."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a sandbox may use; 0: no limit."""

    memory_bytes: int = 0
    cpus: float = 0.0
    processes: int = 0

    def __bool__(self) -> bool:
        return bool(self.memory_bytes or self.cpus or self.processes)


@dataclass(frozen=True, slots=True)
class Place:
    """A folder of the hierarchy below which groups of ours may be made, for these controllers."""

    folder: str
    version: int
    controllers: tuple[str, ...]


def places(mounts: str, own: str) -> tuple[Place, ...]:
    """Where groups can be made, from the text of /proc/self/mountinfo and /proc/self/cgroup (pure).

    v1 groups lie below our own, so that they cannot escape a limit that we are under ourselves. v2
    ones lie at the top: where there are processes, v2 gives no controllers to groups below.
    """
    paths = dict(_own_paths(own))
    found: list[Place] = []
    for line in mounts.splitlines():
        head, _, tail = line.partition(" - ")
        root, point = head.split()[3:5]
        kind, _, options = tail.split()[:3]
        if kind == "cgroup2" and "" in paths:
            found.append(Place(point, 2, CONTROLLERS))
        for name in CONTROLLERS if kind == "cgroup" else ():
            if name in options.split(",") and name in paths:
                below = os.path.relpath(paths[name], root)
                if not below.startswith(".."):
                    found.append(Place(os.path.normpath(f"{point}/{below}"), 1, (name,)))
    return tuple(found)


def _own_paths(own: str) -> Iterable[tuple[str, str]]:
    for line in own.splitlines():
        _, names, path = line.split(":", 2)
        for name in names.split(","):
            yield name, path


def settings(limits: Limits, place: Place) -> Mapping[str, str]:
    """Which files of a group get which content, in this order (pure)."""
    files: dict[str, str] = {}
    if limits.memory_bytes and "memory" in place.controllers:
        size = str(limits.memory_bytes)
        if place.version == 2:
            files |= {"memory.max": size, "memory.swap.max": "0"}
        else:
            files |= {"memory.limit_in_bytes": size, "memory.memsw.limit_in_bytes": size}
    if limits.cpus and "cpu" in place.controllers:
        quota = max(LEAST_QUOTA_MICROSECONDS, round(limits.cpus * PERIOD_MICROSECONDS))
        if place.version == 2:
            files["cpu.max"] = f"{quota} {PERIOD_MICROSECONDS}"
        else:
            files["cpu.cfs_period_us"] = str(PERIOD_MICROSECONDS)
            files["cpu.cfs_quota_us"] = str(quota)
    if limits.processes and "pids" in place.controllers:
        files["pids.max"] = str(limits.processes)
    return files


def most_processes(wanted: int) -> int:
    """`wanted`, or half of what this machine's kernel can have, if that is less."""
    names = ("pid_max", "threads-max")
    found = [int(text) for name in names if (text := _read(f"/proc/sys/kernel/{name}"))]
    return min([wanted, *(most // 2 for most in found)])


def why_not() -> str:
    """Empty if limits can be kept here, else the reason in one sentence. Tries it out."""
    name = f"try-{os.getpid()}"
    try:
        made = _make(name, Limits(memory_bytes=2**30, cpus=1.0))
    except CgroupError as error:
        return str(error)
    _remove(made)
    return ""


def apply(directory: Path, limits: Limits) -> None:
    """Make the groups of the sandbox in this folder, or change those it has. May be repeated.

    Raises `CgroupError`; a new sandbox then starts without limits.
    """
    earlier = joined(directory)
    try:
        _note(directory, _make(directory.name, limits) if limits else ())
    except CgroupError:
        # a sandbox that lives keeps the limits it has
        _note(directory, [group for group in earlier if group.exists()])
        raise


def _note(directory: Path, groups: Iterable[Path]) -> None:
    temporary = directory / f"{RECORD}.new"
    temporary.write_text("".join(f"{group}\n" for group in groups))
    temporary.replace(directory / RECORD)


def joined(directory: Path) -> tuple[Path, ...]:
    """The groups of the sandbox in this folder."""
    try:
        return tuple(Path(line) for line in (directory / RECORD).read_text().splitlines())
    except FileNotFoundError:
        return ()


def join(directory: Path) -> None:
    """Go into the groups of this folder's sandbox; children follow. Raises `OSError`."""
    for folder in joined(directory):
        (folder / "cgroup.procs").write_text("0")


def remove(directory: Path) -> None:
    """Take the groups of a sandbox away once it is empty. May be repeated."""
    _remove(joined(directory))
    (directory / RECORD).unlink(missing_ok=True)


def _make(name: str, limits: Limits) -> list[Path]:
    made: list[Path] = []
    try:
        for place in _usable(limits):
            group = Path(place.folder, FOLDER, name)
            made.append(group)
            try:
                _fit_out(group, place, limits)
            except OSError as error:
                if place.controllers != ("pids",):
                    raise
                _log.warning("the number of processes is not limited: %s", error)
                _remove([made.pop()])
    except OSError as error:
        _remove(made)
        raise CgroupError(f"Control groups cannot be used here: {error}.") from error
    return made


def _fit_out(group: Path, place: Place, limits: Limits) -> None:
    if place.version == 2:
        _hand_down(Path(place.folder), place.controllers)
        group.parent.mkdir(exist_ok=True)
        _hand_down(group.parent, place.controllers)
    group.mkdir(parents=True, exist_ok=True)
    _sweep(group.parent)
    _set(group, settings(limits, place))


def _usable(limits: Limits) -> tuple[Place, ...]:
    found = places(_read("/proc/self/mountinfo"), _read("/proc/self/cgroup"))
    unified = next((place for place in found if place.version == 2), None)
    there = _read(f"{unified.folder}/cgroup.controllers").split() if unified else ()
    return choose(limits, found, unified_has=there)


def choose(
    limits: Limits, found: Iterable[Place], *, unified_has: Iterable[str]
) -> tuple[Place, ...]:
    """The places that have the controllers, the unified hierarchy where both would do, or where it is
    the better one (pure). Raises `CgroupError`; `pids` may be missing."""
    needed = {"memory"} if limits.memory_bytes else set[str]()
    needed |= {"cpu"} if limits.cpus else set()
    wanted = needed | ({"pids"} if limits.processes else set())
    has, places = set(unified_has), tuple(found)
    there = [replace(p, controllers=tuple(n for n in p.controllers if n in has)) for p in places]
    unified = tuple(p for p in there if p.version == 2 and wanted & set(p.controllers))
    separate = tuple(p for p in places if p.version == 1 and wanted & set(p.controllers))
    for enough in (wanted, needed):
        for chosen in (unified, separate):
            if enough <= _held(chosen):
                return chosen
    missing = " and ".join(sorted(needed - _held(separate)))
    raise CgroupError(f"There is no control group for {missing} here.")


def _held(places: Iterable[Place]) -> set[str]:
    return {name for place in places for name in place.controllers}


def _hand_down(folder: Path, controllers: Iterable[str]) -> None:
    text = " ".join(f"+{name}" for name in controllers)
    (folder / "cgroup.subtree_control").write_text(text)


def _set(group: Path, files: Mapping[str, str]) -> None:
    with contextlib.suppress(OSError):
        # a new limit may be above the old one of memory and swap together
        (group / "memory.memsw.limit_in_bytes").write_text("-1")
    for name, content in files.items():
        if name in _NO_SWAP and not (group / name).exists():
            continue
        (group / name).write_text(content)


def _remove(groups: Iterable[Path]) -> None:
    for group in groups:
        with contextlib.suppress(OSError):
            group.rmdir()


def _sweep(folder: Path) -> None:
    """Take away what sandboxes left behind that were ended by force. One that is just being started
    is empty too, but young; one that lives cannot be taken away."""
    for group in folder.iterdir():
        with contextlib.suppress(OSError):
            if group.is_dir() and time.time() - group.stat().st_mtime > FORGOTTEN_SECONDS:
                group.rmdir()


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
