"""CRIU >= 4.2, pasta, ss and the sandbox's init, in a private prefix or from the machine."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hub_config.paths import StateFolder
from hub_config.setup.debian import PrivateApt
from hub_config.setup.problems import SetupFailed
from hub_config.setup.progress import Progress
from hub_config.setup.stamps import Stamps, digest

OLDEST = (4, 2)
RECIPE = "2"
"""Grows when the way the prefix is made changes, so that existing ones are made again."""

_IP = """#!/bin/sh
# iproute2 of this prefix with the libraries of this prefix, for CRIU, which calls it by name.
prefix=$(dirname "$(dirname "$0")")
libraries=$prefix/usr/lib/x86_64-linux-gnu
exec "$libraries/ld-linux-x86-64.so.2" --library-path "$libraries" "$prefix/usr/bin/ip" "$@"
"""

COMPANIONS = ("passt", "iproute2", "tini-static")
_DROPPED = ("usr/share/man", "usr/share/locale", "usr/share/bash-completion", "var")


@dataclass(frozen=True, slots=True)
class ToolsPrefix:
    """The private prefix of one downloads folder."""

    folder: StateFolder
    progress: Progress
    stamps: Stamps

    def ensure(self) -> None:
        """Bring the programs that are missing. Ends with `criu check`, whose answer is noted."""
        system = usable_system_criu()
        wanted = digest([RECIPE, *COMPANIONS, str(system or "private criu")])
        if self.stamps.is_current("tools", wanted, self.folder.tools_prefix / "bin/tini"):
            return
        packages = [*COMPANIONS, *([] if system else ["criu"])]
        self.progress.say(f"tools: {', '.join(packages)} from Debian {_suite()} ...")
        self.stamps.forget("tools")
        versions = self._make(packages, system)
        complaint = criu_complaint(self.folder.tools().criu)
        if complaint:
            self.progress.say(f"tools: sessions cannot be suspended here: {complaint}")
        self.stamps.write("tools", wanted, versions=versions, complaint=complaint)

    def _make(self, packages: list[str], system: Path | None) -> dict[str, str]:
        self.folder.downloads.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix="tools-new-", dir=self.folder.downloads))
        try:
            apt = PrivateApt(fresh / "apt", self.progress)
            apt.update()
            root = fresh / "root"
            versions = apt.unpack(packages, root)
            _finish(root, system)
            _exchange(root, self.folder.tools_prefix)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
        return versions


def _suite() -> str:
    from hub_config.setup.debian import SUITE

    return SUITE


def _finish(root: Path, system: Path | None) -> None:
    root.chmod(0o755)
    for name in _DROPPED:
        shutil.rmtree(root / name, ignore_errors=True)
    init = root / "usr/bin/tini-static"
    if not init.exists():
        raise SetupFailed("The package tini-static holds no program of that name any more.")
    (root / "bin").mkdir(exist_ok=True)
    shutil.copy2(init, root / "bin/tini")
    (root / "bin/ip").write_text(_IP)
    (root / "bin/ip").chmod(0o755)
    if system is not None:
        (root / "system.json").write_text(json.dumps({"criu": str(system)}) + "\n")


def _exchange(fresh: Path, place: Path) -> None:
    """Put the new prefix in place; running programs keep the files that they have open."""
    old = place.with_name(place.name + ".old")
    shutil.rmtree(old, ignore_errors=True)
    if place.exists():
        place.rename(old)
    fresh.rename(place)
    shutil.rmtree(old, ignore_errors=True)


def usable_system_criu() -> Path | None:
    """The machine's own CRIU where it is new enough."""
    found = shutil.which("criu")
    if found is None:
        return None
    answer = subprocess.run(
        [found, "--version"], capture_output=True, text=True, check=False, timeout=20
    )
    return Path(found) if parse_version(answer.stdout) >= OLDEST else None


def parse_version(text: str) -> tuple[int, int]:
    """Major and minor from `criu --version`; (0, 0) where there is none."""
    found = re.search(r"Version: (\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def criu_complaint(criu: Sequence[str]) -> str:
    """Why CRIU cannot work on this machine, in its own words; empty when `criu check` is content."""
    try:
        answer = subprocess.run(
            [*criu, "check"], capture_output=True, text=True, check=False, timeout=60
        )
    except OSError as error:
        return f"CRIU could not be started: {error}"
    except subprocess.TimeoutExpired:
        return "`criu check` did not answer within 60 s"
    if answer.returncode == 0:
        return ""
    lines = [line.strip() for line in (answer.stderr + answer.stdout).splitlines() if line.strip()]
    return lines[-1] if lines else f"`criu check` failed with exit status {answer.returncode}"
