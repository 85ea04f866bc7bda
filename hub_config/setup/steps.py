"""Goals and their steps: what `make` asks for, in the order in which it is brought."""

from __future__ import annotations

import argparse
import fcntl
import math
import os
import shutil
import sys
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from hub_config.paths import StateFolder, state_folder
from hub_config.setup import machine, postgres
from hub_config.setup.criu import ToolsPrefix
from hub_config.setup.debian import install_on_machine
from hub_config.setup.node import ProxyFolder
from hub_config.setup.problems import SetupFailed
from hub_config.setup.progress import MB, Progress
from hub_config.setup.python import Environment
from hub_config.setup.stamps import Stamps

if TYPE_CHECKING:
    from collections.abc import Iterator

CHECKOUT = Path(__file__).resolve().parents[2]
BROWSER_PACKAGES = ("chromium", "fonts-dejavu-core")
COMPILER_PACKAGES = ("gcc", "libc6-dev")
C_HEADER = Path("/usr/include/stdlib.h")


SLOW_BYTES_PER_SECOND = 10 * MB


@dataclass(frozen=True, slots=True)
class Cost:
    """What a step that was never done costs: bytes, and seconds of work on two cores, as measured
    with this lock file on Debian 12 and 13."""

    download_bytes: int
    disk_bytes: int
    seconds: int


COSTS = {
    "venv": Cost(265 * MB, 1000 * MB, 20),
    "venv-dev": Cost(370 * MB, 1250 * MB, 30),
    "tools": Cost(27 * MB, 50 * MB, 5),
    "proxy": Cost(2 * MB, 10 * MB, 2),
    "browser": Cost(120 * MB, 450 * MB, 40),
    "compiler": Cost(60 * MB, 230 * MB, 15),
    "postgres": Cost(50 * MB, 200 * MB, 15),
}

GOALS = {
    "check": ("venv-dev",),
    "runtime": ("venv", "proxy", "tools"),
    "test": ("venv-dev", "proxy", "tools", "browser", "compiler", "postgres"),
}


def main(arguments: list[str]) -> int:
    """Bring one goal; returns the exit status."""
    parser = argparse.ArgumentParser(prog="bootstrap", description=__doc__)
    parser.add_argument("goal", choices=sorted(GOALS))
    goal = parser.parse_args(arguments).goal
    folder = state_folder()
    progress = Progress(folder.downloads / "setup-logs")
    os.umask(0o022)
    try:
        reach(goal, folder, progress)
    except SetupFailed as error:
        progress.say(f"set-up stopped: {error.message}")
        if error.remedy:
            progress.say(f"what to do: {error.remedy}")
        return 1
    except KeyboardInterrupt:
        progress.say("set-up interrupted; the same command goes on from here")
        return 130
    return 0


def reach(goal: str, folder: StateFolder, progress: Progress) -> None:
    """Judge the machine, then do every step of the goal. Raises `SetupFailed`."""
    stamps = Stamps(folder.downloads / "stamps")
    missing = [name for name in GOALS[goal] if not _was_done(name, folder, stamps)]
    _judge(goal, folder, missing, progress)
    _make_reachable(folder.downloads)
    with _only_one(folder.downloads / "setup.lock", progress):
        for name in GOALS[goal]:
            begun = monotonic()
            _step(name, folder, progress, stamps)()
            seconds = monotonic() - begun
            if seconds > 1:
                progress.say(f"{name.removesuffix('-dev')}: done in {seconds:.1f} s")


def _step(name: str, folder: StateFolder, progress: Progress, stamps: Stamps) -> Callable[[], None]:
    if name.startswith("venv"):
        environment = Environment(CHECKOUT, folder.downloads, progress, stamps)
        return lambda: environment.ensure(dev=name == "venv-dev")
    if name == "proxy":
        return ProxyFolder(folder, progress, stamps).ensure
    if name == "tools":
        return ToolsPrefix(folder, progress, stamps).ensure
    if name == "compiler":
        return lambda: _ensure_compiler(progress)
    if name == "postgres":
        return lambda: postgres.ensure(progress)
    return lambda: _ensure_browser(progress)


def _was_done(name: str, folder: StateFolder, stamps: Stamps) -> bool:
    if name == "browser":
        return shutil.which("chromium") is not None
    if name == "compiler":
        return has_compiler()
    if name == "postgres":
        return postgres.server_programs() is not None
    if name.startswith("venv"):
        noted = stamps.read("venv")
        return bool(noted) and (name == "venv" or bool(noted.get("dev")))
    return bool(stamps.read(name))


def _judge(goal: str, folder: StateFolder, missing: list[str], progress: Progress) -> None:
    disk = sum(COSTS[name].disk_bytes for name in missing)
    facts = machine.read_facts(folder.downloads)
    findings = machine.judge(facts, downloads_bytes=disk, runs_sessions=goal == "runtime")
    for finding in findings:
        if missing or finding.level is not machine.Level.OK:
            mark = {"ok": " ", "warn": "!", "stop": "X"}[finding.level]
            progress.say(f"{mark} {finding.subject}: {finding.text}")
            if finding.remedy:
                progress.say(f"    {finding.remedy}")
    stops = [finding for finding in findings if finding.level is machine.Level.STOP]
    if stops:
        raise SetupFailed(f"{stops[0].subject}: {stops[0].text}", remedy=stops[0].remedy)
    if missing:
        costs = [COSTS[name] for name in missing]
        download = sum(cost.download_bytes for cost in costs)
        seconds = sum(cost.seconds for cost in costs) + download / SLOW_BYTES_PER_SECOND
        progress.say(
            f"to come: {', '.join(name.removesuffix('-dev') for name in missing)}; about "
            f"{download // MB} MB to download ({math.ceil(seconds / 60)} minute(s) at 10 MB/s on "
            f"two cores), {disk // MB} MB on disk, all in {folder.downloads}"
        )


def _make_reachable(downloads: Path) -> None:
    try:
        downloads.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SetupFailed(
            f"{downloads} cannot be created: {error.strerror}.",
            remedy="Start as root, or choose a folder of yours with HUBERNATE_STATE.",
        ) from error
    if not os.access(downloads, os.W_OK):
        raise SetupFailed(
            f"{downloads} is not writable.",
            remedy="Start as root, or choose a folder of yours with HUBERNATE_STATE.",
        )


@contextmanager
def _only_one(path: Path, progress: Progress) -> Iterator[None]:
    """Two set-ups of one folder wait for each other."""
    with path.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress.say("another set-up of this folder is at work; waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _ensure_browser(progress: Progress) -> None:
    if shutil.which("chromium") is None:
        install_on_machine("browser", BROWSER_PACKAGES, progress)


def has_compiler() -> bool:
    """Whether this machine can build the small C libraries of the tests."""
    return shutil.which("gcc") is not None and C_HEADER.exists()


def _ensure_compiler(progress: Progress) -> None:
    if not has_compiler():
        install_on_machine("compiler", COMPILER_PACKAGES, progress)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
