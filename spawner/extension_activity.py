"""What goes on in a Jupyter Server: kernels, terminals, a person's input.

Runs inside the session and imports nothing but the server's own parts. What cannot be found out is
left out or None, never guessed.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

MOST_TOLD = 64
"""Of kernels and of terminals; a report must fit into one datagram."""

_KNOWN_STATES = frozenset({"busy", "idle"})


@dataclass(slots=True)
class _State:
    """What a kernel does, and since when (UNIX seconds)."""

    name: str
    since: float


class KernelWatch:
    """Follows the execution state of every kernel of a `MappingKernelManager`."""

    def __init__(self, manager: Any, now: Callable[[], float]) -> None:
        self._manager = manager
        self._now = now
        self._states: dict[str, _State] = {}

    def look(self) -> None:
        """Begin to follow new kernels, forget ended ones."""
        current = dict(self._kernels())
        for kernel_id, kernel in current.items():
            state = getattr(kernel, "execution_state", None)
            if kernel_id not in self._states:
                self._states[kernel_id] = _State(str(state), self._now())
                self._follow(kernel_id, kernel)
            else:
                # For managers that do not announce changes, and for a missed announcement.
                self._note(kernel_id, state)
        for kernel_id in self._states.keys() - current.keys():
            del self._states[kernel_id]

    def _kernels(self) -> list[tuple[str, Any]]:
        return [(i, self._manager.get_kernel(i)) for i in self._manager.list_kernel_ids()]

    def _follow(self, kernel_id: str, kernel: Any) -> None:
        if getattr(kernel, "has_trait", lambda _: False)("execution_state"):
            kernel.observe(lambda change: self._note(kernel_id, change.new), "execution_state")

    def _note(self, kernel_id: str, state: object) -> None:
        known = self._states.get(kernel_id)
        if known is not None and known.name != str(state):
            self._states[kernel_id] = _State(str(state), self._now())

    def skip(self, seconds: float) -> None:
        """Time passed that nothing lived through: an idle kernel is idle since now, a busy one is
        busy for as long as it really worked."""
        now = self._now()
        for state in self._states.values():
            state.since = now if state.name == "idle" else min(state.since + seconds, now)

    def describe(self) -> list[dict[str, Any]]:
        """One entry per kernel, busy ones first."""
        entries = [
            self._entry(kernel_id, kernel)
            for kernel_id, kernel in self._kernels()
            if kernel_id in self._states
        ]
        return sorted(entries, key=lambda entry: entry["state"] != "busy")[:MOST_TOLD]

    def _entry(self, kernel_id: str, kernel: Any) -> dict[str, Any]:
        state = self._states[kernel_id]
        return {
            "id": kernel_id,
            "name": str(getattr(kernel, "kernel_name", "") or ""),
            "state": state.name if state.name in _KNOWN_STATES else "unknown",
            "since": state.since,
            "last_activity": seconds_of(getattr(kernel, "last_activity", None)),
        }

    def connections(self) -> int:
        """How many browsers' sockets lead to kernels."""
        return sum(max(n, 0) for n in getattr(self._manager, "_kernel_connections", {}).values())


class TerminalWatch:
    """Looks at the terminals of a `TerminalManager`, once there is one."""

    def __init__(self, manager: Callable[[], Any]) -> None:
        self._manager = manager

    def _terminals(self) -> dict[str, Any]:
        manager = self._manager()
        return {} if manager is None else dict(manager.terminals)

    def describe(self) -> list[dict[str, Any]]:
        """One entry per terminal, those with a program in front first."""
        entries = [
            {
                "name": name,
                "foreground": has_foreground(terminal),
                "last_activity": seconds_of(getattr(terminal, "last_activity", None)),
            }
            for name, terminal in self._terminals().items()
        ]
        return sorted(entries, key=lambda entry: entry["foreground"] is False)[:MOST_TOLD]

    def connections(self) -> int:
        """How many browsers show a terminal."""
        return sum(len(terminal.clients) for terminal in self._terminals().values())


def has_foreground(terminal: Any) -> bool | None:
    """Whether another program than the terminal's shell is in front; None: cannot be told."""
    try:
        shell = int(terminal.ptyproc.pid)
        return os.tcgetpgrp(int(terminal.ptyproc.fd)) != os.getpgid(shell)
    except (AttributeError, OSError, TypeError, ValueError):
        return None


class InputWatch:
    """When a person last ran, edited or typed something.

    `last` begins with the server's start: somebody opened it. Executions are seen on the kernels'
    output channel, where they show also if sent from elsewhere; saves of a notebook count only when
    its cells' sources changed, because Lab also saves what a running cell printed.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._sources: dict[str, str] = {}
        self.last = now()

    def note(self) -> None:
        """There was some right now."""
        self.last = max(self.last, self._now())

    def watch_kernels(self, manager: Any) -> None:
        """The manager asks `track_message_type` about every message; we only listen in."""
        original = manager.track_message_type

        def listen(message_type: str) -> Any:
            if message_type == "execute_input":
                self.note()
            return original(message_type)

        manager.track_message_type = listen

    def watch_contents(self, manager: Any) -> None:
        """Saves of files and notebooks."""
        register = getattr(manager, "register_pre_save_hook", None)
        if register is not None:
            register(self.saving)

    def saving(self, *, model: dict[str, Any], path: str, **_: Any) -> None:
        """Hook of the contents manager: something is about to be saved."""
        kind = model.get("type")
        if kind == "directory":
            return
        if kind != "notebook":
            self.note()
            return
        digest = _digest_of_sources(model.get("content"))
        if self._sources.get(path) != digest:
            self._sources[path] = digest
            self.note()

    def watch_terminals(self, socket_class: Any) -> None:
        """Keys typed into terminals: messages `["stdin", …]` of their sockets."""
        original = socket_class.on_message

        async def on_message(handler: Any, message: Any) -> Any:
            if _is_typed(message):
                self.note()
            return await original(handler, message)

        socket_class.on_message = on_message


def _is_typed(message: Any) -> bool:
    try:
        return bool(json.loads(message)[0] == "stdin")
    except (ValueError, TypeError, LookupError):
        return False


def _digest_of_sources(content: Any) -> str:
    cells = content.get("cells", []) if isinstance(content, dict) else []
    sources = [(cell.get("cell_type"), cell.get("source")) for cell in cells]
    return hashlib.sha256(json.dumps(sources, default=str).encode()).hexdigest()


def seconds_of(moment: datetime | None) -> float | None:
    """UNIX seconds of a time that Jupyter keeps (with a time zone), None if there is none."""
    return moment.timestamp() if isinstance(moment, datetime) and moment.tzinfo else None
