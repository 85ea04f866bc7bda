"""CRIU: its argument vectors, what its log means, whether it works here.

Nothing here knows how a snapshot is stored. The argument builders and the reader of logs are pure.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from snapshot import programs
from snapshot.model import Process, Tools
from snapshot.plan import Mount
from snapshot.printable import printable

OLDEST_VERSION = (4, 2)
CHECK_SECONDS = 20.0
GHOST_BYTES = 2**30
DUMP_LOG = "dump.log"
RESTORE_LOG = "restore.log"

# Both ways: connections inside the tree live on, sockets to nowhere are tolerated, locks and
# unlinked files come along, cgroups are the supervisor's business.
_BOTH = (
    "-v4",
    "--tcp-established",
    "--ext-unix-sk",
    "--file-locks",
    "--link-remap",
    "--manage-cgroups=ignore",
)


@dataclass(frozen=True, slots=True)
class Capability:
    """Whether trees can be frozen on this machine; if not, `reason` and `remedy` for people."""

    works: bool
    version: str = ""
    reason: str = ""
    remedy: str = ""


def dump_arguments(
    tools: Tools,
    process: Process,
    images: Path,
    mounts: Sequence[Mount],
    *,
    hook: Path,
    log: Path,
    page_socket: int,
) -> list[str]:
    """CRIU's dump: pages go to the inherited socket, `hook` holds the tree at the end (pure)."""
    return [
        *tools.criu,
        *("dump", "--leave-running", "-t", str(process.pid), "-D", str(images), "-o", str(log)),
        *_BOTH,
        # The network is locked by having been ended; rules would outlive a killed CRIU.
        *("--network-lock", "skip", "--ghost-limit", str(GHOST_BYTES)),
        *("--page-server", "--ps-socket", str(page_socket), "--action-script", str(hook)),
        *(word for m in mounts for word in ("--external", f"mnt[{m.target}]:{m.key}")),
    ]


def restore_arguments(
    tools: Tools,
    images: Path,
    mounts: Sequence[Mount],
    *,
    root: str,
    pid_file: Path,
    log: Path,
    lazy: bool = False,
) -> list[str]:
    """CRIU's restore, detached, below `root` with the staged binds (pure). `lazy`: memory that may
    come later is left to whoever listens at `lazy-pages.socket` beside the images."""
    return [
        *tools.criu,
        *("restore", "-D", str(images), "-o", str(log), "-d", "--pidfile", str(pid_file)),
        # Memory of images that were read goes to the tree at once: half the peak, and on a virtual
        # machine memory that is new to it costs two seconds a GiB.
        "--lazy-pages" if lazy else "--auto-dedup",
        *_BOTH,
        *("--root", root),
        *(word for m in mounts for word in ("--external", f"mnt[{m.key}]:{m.staging}")),
    ]


def read_log(path: Path) -> str:
    """The log's text, empty if CRIU wrote none."""
    with contextlib.suppress(OSError):
        return path.read_text(errors="replace")
    return ""


# What to tell people for the errors that their doing can cause. First match wins.
_SENTENCES: tuple[tuple[str, str], ...] = (
    (r"File (.+) has bad size", "The file {0} changed while the session slept."),
    (r"File (.+) has bad build-ID", "The program file {0} was replaced while the session slept."),
    (r"Can't open file (\S+) on restore", "The file {0} is gone or cannot be read any more."),
    (r"Can't dump ghost file (.+) of \d+ size", "The deleted but open file {0} is too large."),
    (r"Can't dump file .*type", "A program holds something open that cannot be saved."),
    (r"Can't handle non-regular mapping", "A program uses memory of a device."),
    (r"Cannot assign requested address", "A socket is bound to an address that is gone."),
    (r"No space left on device", "There is no space left in memory for the image."),
    (r"Cannot allocate memory", "There is not enough memory."),
    (r"seize.*(Operation not permitted)", "A debugger or tracer is attached to a program."),
)
LONGEST_ERROR = 400
"""Characters of CRIU's own words that people see; names that programs chose are part of them."""

_NOISE = (
    "RLIMIT_NOFILE",
    "iptables",
    "ip6tables",
    "nftables",
    "Dumping FAILED",
    "Restoring FAILED",
)


def dominant_error(log: str) -> str:
    """The first error line of a log that is not noise, without time stamp and prefix, printable
    (pure)."""
    errors = [line for line in log.splitlines() if "Error (" in line]
    telling = [line for line in errors if not any(word in line for word in _NOISE)] or errors
    if not telling:
        return ""
    said = re.sub(r"^\(\d+\.\d+\)\s*(\d+:\s*)?Error \([^)]*\):\s*", "", telling[0])
    return printable(said.strip(), LONGEST_ERROR)


def explain(log: str) -> str:
    """A plain sentence for a failed dump or restore, with CRIU's own words (pure)."""
    error = dominant_error(log)
    for pattern, sentence in _SENTENCES:
        if found := re.search(pattern, log):
            return f"{sentence.format(*found.groups())} (CRIU: {error})"
    return f"CRIU said: {error}" if error else "CRIU ended without saying why."


def parse_version(text: str) -> tuple[int, ...]:
    """The numbers of `criu --version`, empty if there are none (pure)."""
    found = re.search(r"Version:\s*(\d+(?:\.\d+)*)", text)
    return tuple(map(int, found[1].split("."))) if found else ()


def logged_version(log: str) -> str:
    """The version of the CRIU that wrote a log, empty if it does not say (pure)."""
    found = re.search(r"^\S* ?Version: (\S+)", log, re.MULTILINE)
    return found[1] if found else ""


async def check(tools: Tools) -> Capability:
    """Ask CRIU for its version and whether this kernel and these rights suffice. Never raises."""
    try:
        said = await programs.run([*tools.criu, "--version"], seconds=CHECK_SECONDS)
        version = parse_version(said.output)
        name = ".".join(map(str, version))
        if version < OLDEST_VERSION:
            return Capability(
                False,
                name,
                f"CRIU {name or '(unknown version)'} cannot save sessions on current kernels.",
                "Install CRIU 4.2 or newer: `hubernate doctor` says how.",
            )
        verdict = await programs.run([*tools.criu, "check"], seconds=CHECK_SECONDS)
    except (OSError, TimeoutError) as error:
        reason = f"CRIU cannot be started: {error or 'it does not answer'}."
        return Capability(False, reason=reason, remedy="Run `make setup` again.")
    if verdict.status != 0:
        reason = dominant_error(verdict.errors + verdict.output) or "`criu check` failed."
        return Capability(False, name, reason, "Root with all capabilities is needed.")
    return Capability(True, name)
