"""Clock fix-ups: time that passed while the session was frozen or halted is not idleness.

Jupyter's cullers compare the wall clock with the time of the last activity. After eight hours in a
store every kernel looks eight hours idle, so each culler first asks here whether time was skipped.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from spawner.extension_activity import InputWatch, KernelWatch

_log = logging.getLogger(__name__)

RESUME_FILE = "resume.json"
LARGEST_FILE = 1 << 20


@dataclass(frozen=True, slots=True)
class Resume:
    """What the supervisor left at the last resume (or halt): `at` in UNIX seconds, `seconds` how
    long the tree stood still if it knew, `notes` for the user."""

    epoch: int | None = None
    at: float | None = None
    seconds: float | None = None
    notes: tuple[str, ...] = field(default=())


def read_resume(path: Path) -> Resume:
    """The file's content; nothing if it is missing or not what it should be."""
    try:
        with open(path, "rb") as handle:
            value = json.loads(handle.read(LARGEST_FILE))
        seconds = value.get("seconds")
        return Resume(
            int(value["epoch"]),
            float(value["at"]),
            None if seconds is None else float(seconds),
            tuple(str(note) for note in value.get("notes", ())),
        )
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return Resume()


class Clocks:
    """Notices skipped time and moves the server's clocks forward. `check` is cheap (one stat)."""

    def __init__(
        self,
        serverapp: Any,
        kernels: KernelWatch,
        inputs: InputWatch,
        *,
        file: Path,
        now: Callable[[], float],
    ) -> None:
        self._server = serverapp
        self._kernels = kernels
        self._inputs = inputs
        self._file = file
        self._now = now
        self._stamp = self._look()
        self._last_check = now()
        self.resume = read_resume(file)

    def _look(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self._file)
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns

    def check(self) -> bool:
        """Fix the clocks if time was skipped since the last check. True if so."""
        stamp, now = self._look(), self._now()
        skipped = now - self._last_check
        self._last_check = now
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        before, self.resume = self.resume, read_resume(self._file)
        if (before.epoch, before.at) == (self.resume.epoch, self.resume.at):
            return False
        if self.resume.at is None:
            return False
        self._forward(max(skipped, 0.0))
        return True

    def _forward(self, skipped: float) -> None:
        _log.info("%.0f s passed while this session did not run; clocks are moved", skipped)
        moment = datetime.fromtimestamp(self._now(), UTC)
        self._forward_kernels(moment)
        self._forward_terminals(moment)
        self._forward_server(moment)
        self._kernels.skip(skipped)
        self._inputs.note()

    def _forward_kernels(self, moment: datetime) -> None:
        manager = self._server.kernel_manager
        for kernel_id in manager.list_kernel_ids():
            kernel = manager.get_kernel(kernel_id)
            if hasattr(kernel, "last_activity"):
                kernel.last_activity = moment
        if getattr(manager, "last_kernel_activity", None) is not None:
            manager.last_kernel_activity = moment

    def _forward_terminals(self, moment: datetime) -> None:
        manager = terminal_manager(self._server)
        if manager is not None:
            for terminal in manager.terminals.values():
                terminal.last_activity = moment

    def _forward_server(self, moment: datetime) -> None:
        settings = self._server.web_app.settings
        for name in [n for n in settings if n.endswith("_last_activity")]:
            settings[name] = moment
        times = settings.get("last_activity_times", {})
        for name in list(times):
            times[name] = moment
        settings["api_last_activity"] = moment


def terminal_manager(serverapp: Any) -> Any:
    """The server's terminal manager, None if it has none (yet)."""
    return serverapp.web_app.settings.get("terminal_manager")


class CullerGuard:
    """Puts `clocks.check` in front of everything of the server that ends things by clock."""

    def __init__(self, clocks: Clocks) -> None:
        self._clocks = clocks
        self._guarded: set[tuple[int, str]] = set()

    def guard(self, owner: Any, name: str) -> None:
        """Wrap `owner.name`, also where a timer holds it already. May be repeated."""
        if owner is None or (id(owner), name) in self._guarded or not hasattr(owner, name):
            return
        self._guarded.add((id(owner), name))
        original = getattr(owner, name)

        def checked(*arguments: Any, **options: Any) -> Any:
            self._clocks.check()
            return original(*arguments, **options)

        setattr(owner, name, checked)
        timer = getattr(owner, "_culler_callback", None)
        if timer is not None and getattr(timer, "callback", None) == original:
            timer.callback = checked

    def guard_server(self, serverapp: Any) -> None:
        """All cullers that exist by now."""
        self.guard(serverapp.kernel_manager, "cull_kernels")
        self.guard(terminal_manager(serverapp), "_cull_terminals")
        self.guard(serverapp, "shutdown_no_activity")
