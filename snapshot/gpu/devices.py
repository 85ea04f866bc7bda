"""NVIDIA devices as the kernel shows them: whose sandbox has some, which process holds which.

Reads only /proc and /dev. A program in the sandbox chooses what it opens: a name here says no more
than that this program holds something of that name.
"""

from __future__ import annotations

import os
import re
import stat

from snapshot import proc
from snapshot.gpu.model import OLDEST_DRIVER, major
from snapshot.model import SandboxSpec

DRIVER_FILE = "/proc/driver/nvidia/version"
_GPU = re.compile(r"nvidia(\d+)")
_VERSION = re.compile(r"\b(\d{3,}(?:\.\d+)+)\b")


def gpus_of(spec: SandboxSpec) -> tuple[int, ...]:
    """Minor numbers of the real GPUs that the sandbox may open, in the order of its lease."""
    found = [
        int(match[1])
        for path in spec.devices
        if (match := _GPU.fullmatch(os.path.basename(path))) and _is_character_device(path)
    ]
    return tuple(found)


def _is_character_device(path: str) -> bool:
    try:
        return stat.S_ISCHR(os.stat(path).st_mode)
    except OSError:
        return False


def is_drivers(path: str) -> bool:
    """True for a device that the NVIDIA driver's own library opens (and its checkpoint closes)."""
    return path.startswith("/dev/nvidia")


def driver_saves_memory() -> bool:
    """True if this machine's driver knows the checkpoint calls, as far as /proc tells."""
    found = _VERSION.search(proc.read_text(DRIVER_FILE))
    return found is not None and major(found[1]) >= OLDEST_DRIVER


def held_by(pid: int) -> tuple[str, ...]:
    """NVIDIA devices that a process has open or mapped, by name; empty if it is gone."""
    return tuple(sorted({path for path in (*_opened(pid), *_mapped(pid)) if is_drivers(path)}))


def _opened(pid: int) -> list[str]:
    folder = f"/proc/{pid}/fd"
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    found = []
    for name in names:
        try:
            found.append(os.readlink(f"{folder}/{name}"))
        except OSError:
            continue
    return found


def _mapped(pid: int) -> list[str]:
    lines = proc.read_text(f"/proc/{pid}/maps").splitlines()
    return [line[73:] for line in lines if len(line) > 73]


def inner_pid(pid: int) -> int:
    """The PID that a process has in its own namespace, 0 if it is gone."""
    for line in proc.read_text(f"/proc/{pid}/status").splitlines():
        if line.startswith("NSpid:"):
            return int(line.split()[-1])
    return 0
