"""How much host memory there is for what comes off the GPUs."""

from __future__ import annotations

import os

from snapshot import proc

_CGROUPS = "/sys/fs/cgroup"


def available_bytes(pid: int) -> int:
    """What a process may still use: the machine's available memory, less where its control group,
    or one above, allows less."""
    return min([_of_the_machine(), *_of_groups(pid)])


def _of_the_machine() -> int:
    for line in proc.read_text("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def _of_groups(pid: int) -> list[int]:
    """Room in each control group (version 2) from the process's own up."""
    found = []
    for line in proc.read_text(f"/proc/{pid}/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        while not controllers and path != os.sep:
            room = room_in_group(*(_read(path, name) for name in ("max", "current", "stat")))
            found += [] if room is None else [room]
            path = os.path.dirname(path)
    return found


def _read(group: str, name: str) -> str:
    return proc.read_text(f"{_CGROUPS}{group}/memory.{name}")


def room_in_group(limit: str, current: str, statistics: str) -> int | None:
    """Bytes that a group may still take, from its memory.max, .current and .stat; cached files give
    way and do not count as used. None without a limit (pure)."""
    if not limit.strip().isdigit() or not current.strip().isdigit():
        return None
    fields = dict(line.split(maxsplit=1) for line in statistics.splitlines() if " " in line)
    cached = sum(int(fields.get(name, 0)) for name in ("inactive_file", "active_file"))
    return max(int(limit) - int(current) + cached, 0)
