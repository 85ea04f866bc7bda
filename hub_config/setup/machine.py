"""What this machine is, and whether Hubernate can run on it. Reading takes milliseconds."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

GIB = 2**30
NEEDED_CAPABILITIES = {
    "CAP_CHOWN": 0,
    "CAP_KILL": 5,
    "CAP_SETGID": 6,
    "CAP_SETUID": 7,
    "CAP_NET_ADMIN": 12,
    "CAP_SYS_PTRACE": 19,
    "CAP_SYS_ADMIN": 21,
    "CAP_MKNOD": 27,
}
TRIED_RELEASES = ("12", "13")
HIDDEN_INSIDE = tuple(map(Path, ("/tmp", "/var/tmp", "/dev", "/proc", "/sys")))  # noqa: S108
"""Folders of which a session has its own, so that nothing of the machine's can be shown there."""

_NAMESPACES = 0x10000000 | 0x20000000 | 0x00020000 | 0x40000000 | 0x08000000


class Level(StrEnum):
    """How bad a finding is. STOP: the goal cannot be reached here."""

    OK = "ok"
    WARN = "warn"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Facts:
    """One machine, as far as set-up cares."""

    architecture: str
    distribution: str
    release: str
    pretty_name: str
    kernel: str
    is_root: bool
    missing_capabilities: tuple[str, ...]
    namespaces_refused: str
    disk_free_bytes: int
    memory_bytes: int
    has_apt: bool
    state: Path


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at: what it is, how it was found, and what follows."""

    subject: str
    level: Level
    text: str
    remedy: str = ""


def read_facts(state: Path) -> Facts:
    """Look at the machine; changes nothing."""
    release = read_os_release(Path("/etc/os-release"))
    existing = next(path for path in (state, *state.parents) if path.exists())
    return Facts(
        architecture=platform.machine(),
        distribution=release.get("ID", "unknown"),
        release=release.get("VERSION_ID", ""),
        pretty_name=release.get("PRETTY_NAME", "an unknown distribution"),
        kernel=platform.release(),
        is_root=os.geteuid() == 0,
        missing_capabilities=missing_capabilities(Path("/proc/self/status").read_text()),
        namespaces_refused=_try_namespaces(),
        disk_free_bytes=shutil.disk_usage(existing).free,
        memory_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        has_apt=bool(shutil.which("apt-get") and shutil.which("dpkg-deb")),
        state=state,
    )


def read_os_release(path: Path) -> dict[str, str]:
    """The distribution's own description; empty where there is none."""
    try:
        lines = path.read_text().splitlines()
    except FileNotFoundError:
        return {}
    pairs = (line.split("=", 1) for line in lines if "=" in line)
    return {key: value.strip().strip('"') for key, value in pairs}


def missing_capabilities(status: str) -> tuple[str, ...]:
    """Names of the needed capabilities that this process lacks, from /proc/self/status."""
    line = next((line for line in status.splitlines() if line.startswith("CapEff:")), "CapEff: 0")
    effective = int(line.split()[1], 16)
    return tuple(name for name, bit in NEEDED_CAPABILITIES.items() if not effective >> bit & 1)


def hidden_inside(path: Path) -> Path | None:
    """The folder above `path` that sessions have their own of, if there is one (pure)."""
    return next((folder for folder in HIDDEN_INSIDE if path.is_relative_to(folder)), None)


def _try_namespaces() -> str:
    """Really create the namespaces of a sandbox, in a child that ends at once; why not, or ""."""
    libc = ctypes.CDLL(None, use_errno=True)
    child = os.fork()
    if child == 0:
        code = 0 if libc.unshare(_NAMESPACES) == 0 else min(ctypes.get_errno(), 254) or 255
        os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return os.strerror(code) if code else ""


def judge(facts: Facts, *, downloads_bytes: int, runs_sessions: bool) -> tuple[Finding, ...]:
    """All findings for a goal (pure). `runs_sessions` False: only checks of the source are to run."""
    findings = [
        _architecture(facts),
        _distribution(facts),
        _kernel(facts),
        _root(facts, runs_sessions),
        _disk(facts, downloads_bytes),
        _memory(facts),
    ]
    if runs_sessions:
        findings += [_place(facts), _capabilities(facts), _freezable(facts)]
    return tuple(findings)


def _architecture(facts: Facts) -> Finding:
    if facts.architecture == "x86_64":
        return Finding("architecture", Level.OK, "x86_64")
    return Finding(
        "architecture",
        Level.STOP,
        f"{facts.architecture} is not supported: set-up, the sandbox's system-call filter and the "
        "memory images were built and tried on x86_64 only.",
        "Use an x86_64 (amd64) machine.",
    )


def _distribution(facts: Facts) -> Finding:
    if facts.distribution == "debian" and facts.release in TRIED_RELEASES:
        return Finding("distribution", Level.OK, facts.pretty_name)
    if facts.distribution == "debian" and facts.has_apt:
        text = f"{facts.pretty_name} was not tried; Debian 12 and 13 were."
        return Finding("distribution", Level.WARN, text)
    return Finding(
        "distribution",
        Level.WARN,
        f"{facts.pretty_name} is not supported: only Debian 12 and 13 were tried, and CRIU is "
        "brought from Debian's archive.",
        "Install criu 4.2 or newer, passt, iproute2 and tini-static yourself: they are then used.",
    )


def _kernel(facts: Facts) -> Finding:
    numbers = tuple(int(part) for part in facts.kernel.split("-")[0].split(".")[:2])
    if numbers >= (6, 1):
        return Finding("kernel", Level.OK, facts.kernel)
    return Finding(
        "kernel",
        Level.WARN,
        f"{facts.kernel} was not tried (6.1 and newer were): suspending may be refused.",
        "Start a newer kernel.",
    )


def _root(facts: Facts, runs_sessions: bool) -> Finding:
    if facts.is_root:
        return Finding("root", Level.OK, "yes")
    if not runs_sessions:
        return Finding("root", Level.OK, "no, and not needed for this")
    return Finding(
        "root",
        Level.STOP,
        "This is not root. Sessions run under their users' accounts in sandboxes of their own, "
        "which only root can start and freeze.",
        "Start it as root. Without root work: make check, and "
        "make test PYTEST_ARGS='-m \"not criu and not e2e\"', with HUBERNATE_STATE in a folder "
        "of yours.",
    )


def _place(facts: Facts) -> Finding:
    hidden = hidden_inside(facts.state)
    if hidden is None:
        return Finding("folder", Level.OK, str(facts.state))
    return Finding(
        "folder",
        Level.STOP,
        f"sessions have a {hidden} of their own and could not see their programs in {facts.state}.",
        "Choose another folder with HUBERNATE_STATE, such as /srv/hubernate.",
    )


def _capabilities(facts: Facts) -> Finding:
    if not facts.missing_capabilities:
        return Finding("capabilities", Level.OK, "all that sandboxes and CRIU need")
    return Finding(
        "capabilities",
        Level.WARN,
        f"missing: {', '.join(facts.missing_capabilities)}.",
        "In a container, add them (for example --privileged); on a machine, start as root.",
    )


def _disk(facts: Facts, downloads_bytes: int) -> Finding:
    free, need = facts.disk_free_bytes, downloads_bytes * 2 + GIB
    text = f"{free / GIB:.1f} GiB free for {facts.state}"
    if free >= need:
        return Finding("disk", Level.OK, text)
    return Finding(
        "disk",
        Level.STOP if free < downloads_bytes else Level.WARN,
        f"{text}; {need / GIB:.1f} GiB are needed.",
        "Free space, or choose a folder on another disk with HUBERNATE_STATE.",
    )


def _memory(facts: Facts) -> Finding:
    text = f"{facts.memory_bytes / GIB:.1f} GiB"
    if facts.memory_bytes >= 3 * GIB:
        return Finding("memory", Level.OK, text)
    text += "; with less than 3 GiB, Hub and a session may not fit."
    return Finding("memory", Level.WARN, text)


def _freezable(facts: Facts) -> Finding:
    problem = facts.namespaces_refused
    if not problem and not facts.missing_capabilities:
        return Finding("freezable", Level.OK, "sessions will be suspended and resumed")
    why = f"namespaces cannot be created ({problem})" if problem else "capabilities are missing"
    return Finding(
        "freezable",
        Level.WARN,
        f"{why}: sessions cannot be sandboxed or suspended here.",
        "Check `sysctl user.max_user_namespaces`; in a container, start it privileged.",
    )
