"""What this machine is, in the words of `compat`: looked up where a tree is frozen or thawed."""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping
from pathlib import Path

from snapshot import compat, cpuid, criu, programs
from snapshot.instructions import instructions
from snapshot.model import SandboxSpec, Tools
from snapshot.refusals import CannotThawError

VERSION_SECONDS = 10.0
_NVIDIA_VERSION = Path("/proc/driver/nvidia/version")


def machine() -> dict[str, str]:
    """Processor and kernel."""
    facts = {"architecture": platform.machine(), "kernel": platform.release()}
    if flags := instructions(_cpu_flags()):
        facts["cpu_flags"] = " ".join(sorted(flags))
    if area := cpuid.save_area():
        facts["xsave_bytes"] = str(area.size)
        facts["xsave_layout"] = " ".join(f"{n}@{at}+{size}" for n, at, size in area.states)
    return facts


def driver(said: Path = _NVIDIA_VERSION) -> str:
    """The loaded NVIDIA driver's version, empty if there is none."""
    found = re.search(r"NVRM version:.*?\s(\d+\.\d+(?:\.\d+)?)\s", _text(said))
    return found[1] if found else ""


def constraints(spec: SandboxSpec, criu_version: str) -> dict[str, str]:
    """What a tree frozen here demands of the machine that thaws it; GPU state adds its own."""
    facts = machine()
    if criu_version:
        facts["criu"] = criu_version
    if spec.image:
        facts["image"] = spec.image
    return facts


async def look(spec: SandboxSpec, tools: Tools) -> dict[str, str]:
    """All facts of this machine, for a sandbox of this spec, but the GPUs of its lease, which the
    driver itself is asked about. CRIU's version is left out if it does not tell: the thaw itself
    will say why."""
    facts = machine() | {"gpu_driver": driver(), "image": spec.image}
    if version := await criu_version(tools):
        facts["criu"] = version
    return facts


async def criu_version(tools: Tools) -> str:
    """As `4.2.1`; empty if it cannot be asked."""
    try:
        said = await programs.run([*tools.criu, "--version"], seconds=VERSION_SECONDS)
    except (OSError, TimeoutError):
        return ""
    return ".".join(map(str, criu.parse_version(said.output)))


def refuse_unless_compatible(constraints: Mapping[str, str], host: Mapping[str, str]) -> None:
    """Raises `CannotThawError` with the first reason, and how many more there are."""
    found = compat.verdict(constraints, host)
    if not found:
        return
    more = f" (and {len(found) - 1} more reasons)" if len(found) > 1 else ""
    raise CannotThawError(f"{found[0].why}{more}", remedy=found[0].remedy)


def _cpu_flags() -> list[str]:
    """Of the first processor: Linux starts no others that have fewer."""
    for line in _text(Path("/proc/cpuinfo")).splitlines():
        name, _, value = line.partition(":")
        if name.strip() in {"flags", "Features"}:
            return value.split()
    return []


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
