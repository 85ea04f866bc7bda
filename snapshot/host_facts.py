"""What this machine is, in the words of `compat`: looked up where a tree is frozen or thawed."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from snapshot import compat, cpuid, criu, programs
from snapshot.instructions import instructions
from snapshot.model import SandboxSpec, Tools
from snapshot.refusals import CannotThawError

VERSION_SECONDS = 10.0
_NVIDIA = Path("/proc/driver/nvidia")
_GPU_DEVICE = re.compile(r"nvidia(\d+)")


def machine() -> dict[str, str]:
    """Processor and kernel."""
    facts = {"architecture": platform.machine(), "kernel": platform.release()}
    if flags := instructions(_cpu_flags()):
        facts["cpu_flags"] = " ".join(sorted(flags))
    if area := cpuid.save_area():
        facts["xsave_bytes"] = str(area.size)
        facts["xsave_layout"] = " ".join(f"{n}@{at}+{size}" for n, at, size in area.states)
    return facts


def gpus(devices: Sequence[str], nvidia: Path = _NVIDIA) -> dict[str, str]:
    """Driver and models of the GPUs among these device files, in their order; empty facts where
    there are none."""
    minors = [number[1] for path in devices if (number := _device_number(path))]
    models = _models(nvidia)
    names = [models.get(minor, "an unknown GPU") for minor in minors]
    return {"driver": driver(nvidia), "gpus": ", ".join(names)}


def driver(nvidia: Path = _NVIDIA) -> str:
    """The loaded NVIDIA driver's version, empty if there is none."""
    text = _text(nvidia / "version")
    found = re.search(r"NVRM version:.*?\s(\d+\.\d+(?:\.\d+)?)\s", text)
    return found[1] if found else ""


def constraints(spec: SandboxSpec, *, criu_version: str, holds_gpu_state: bool) -> dict[str, str]:
    """What a tree frozen here demands of the machine that thaws it. Driver and GPUs matter only
    to one that has state of theirs in its memory."""
    facts = machine()
    if criu_version:
        facts["criu"] = criu_version
    if spec.image:
        facts["image"] = spec.image
    wanted = gpus(spec.devices) if holds_gpu_state else {}
    return facts | {name: value for name, value in wanted.items() if value}


async def look(spec: SandboxSpec, tools: Tools) -> dict[str, str]:
    """All facts of this machine, for a sandbox of this spec. CRIU's version is left out if it does
    not tell: the thaw itself will say why."""
    facts = machine() | gpus(spec.devices) | {"image": spec.image}
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


def _device_number(path: str) -> re.Match[str] | None:
    return _GPU_DEVICE.fullmatch(os.path.basename(path))


def _models(nvidia: Path) -> dict[str, str]:
    """Model by the minor number of the device file."""
    texts = [_text(path) for path in sorted(nvidia.glob("gpus/*/information"))]
    found = [
        (
            re.search(r"^Device Minor:\s*(\d+)", text, re.M),
            re.search(r"^Model:\s*(.+)$", text, re.M),
        )
        for text in texts
    ]
    return {minor[1]: model[1].strip() for minor, model in found if minor and model}


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
