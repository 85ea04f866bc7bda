"""What a supervisor does to the world, as one contract.

`LocalMachine` (in `local_machine`) is the real one. Tests give fakes that fail in one named way.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from snapshot.inspection.verdict import Verdict
from snapshot.model import Blocker, Filling, Process, SandboxSpec, SnapshotKey, Stored, Thawed


class MachineError(Exception):
    """Base. `message` says what happened in plain words, `remedy` what helps."""

    def __init__(self, message: str, *, remedy: str = "") -> None:
        super().__init__(f"{message} {remedy}".strip())
        self.message = message
        self.remedy = remedy


class NotStartedError(MachineError):
    """The sandbox is not there, and nothing of the attempt is left."""


class NotFreezableError(MachineError):
    """The tree runs on as it was and cannot be suspended now."""


class NotResumedError(MachineError):
    """The snapshot was not brought back to life; nothing of the attempt is left."""


class MemoryLostError(MachineError):
    """The tree lacks memory that nobody can bring any more: it has to be ended. Its snapshot is
    whole."""


class StoreSilentError(MachineError):
    """The store did not say whether there is a snapshot: nothing is known."""


class Machine(Protocol):
    """One host. Blocking parts run outside the event loop."""

    async def clear(self, spec: SandboxSpec) -> None:
        """End what a supervisor left that was killed before it could write down which tree it had
        made. Raises `NotStartedError`."""
        ...

    async def start(self, spec: SandboxSpec, *, held: bool) -> Process:
        """Build the sandbox and start its first process; with `held` the command itself begins only
        with `release`. Raises `NotStartedError`."""
        ...

    async def release(self, process: Process, spec: SandboxSpec) -> None:
        """Let a held command begin. Nothing happens if it was not held, or has begun."""
        ...

    async def connect(self, process: Process, spec: SandboxSpec) -> int:
        """Join the sandbox's network to the host's, ending an earlier connection. Returns the host
        port that leads inside: `spec.network.host_port`, or another one if that is taken or 0 (and
        0 if `spec.network.inner_port` is 0: nothing leads in). Raises `NotStartedError`."""
        ...

    async def ensure_connected(self, process: Process, spec: SandboxSpec) -> int:
        """The same, but a connection that is there stays as it is."""
        ...

    async def reconnect(self, process: Process, spec: SandboxSpec) -> int | None:
        """Connect again if the connection was lost since `connect`; returns the new host port, None
        if there was nothing to do. Never undoes a `disconnect`. Raises `NotStartedError`."""
        ...

    async def disconnect(self, spec: SandboxSpec) -> None:
        """End the sandbox's connection, if there is one. May be repeated."""
        ...

    async def ended(self, process: Process) -> None:
        """Returns once the sandbox's first process has ended."""
        ...

    def is_alive(self, process: Process) -> bool: ...

    def is_empty(self, process: Process) -> bool:
        """Proof that no process of the sandbox is left."""
        ...

    def halt(self, process: Process) -> tuple[Process, ...]:
        """Stop every process of the sandbox where it is; those that were stopped already are not
        among the returned. May be repeated."""
        ...

    def go_on(self, halted: tuple[Process, ...]) -> None:
        """Undo a `halt`. May be repeated."""
        ...

    async def terminate(self, process: Process, grace_seconds: float) -> None:
        """SIGTERM, `grace_seconds`, SIGKILL; returns when the sandbox is empty, however long that
        takes. May be repeated."""
        ...

    def exit_code(self, spec: SandboxSpec, process: Process) -> int | None:
        """How the command ended (128 + signal number if by a signal), None if nobody knows."""
        ...

    def cpu_seconds(self, process: Process) -> float | None:
        """CPU time of the living processes and their reaped children, None if it cannot be read."""
        ...

    async def inspect(self, process: Process) -> tuple[Blocker, ...]:
        """What keeps the tree from being frozen."""
        ...

    async def examine(self, process: Process) -> Verdict:
        """The same, and what a suspend would cost. Stops nothing."""
        ...

    async def freeze(self, process: Process, spec: SandboxSpec, key: SnapshotKey) -> Stored:
        """Dump, store, commit and end the tree. Raises `NotFreezableError` (the tree goes on,
        possibly
        disconnected)."""
        ...

    async def mend(self, process: Process, spec: SandboxSpec) -> None:
        """Put right what a freeze left behind whose supervisor died in the middle."""
        ...

    async def thaw(self, manifest: str, spec: SandboxSpec) -> Thawed:
        """Bring a stored tree back, perhaps with memory that is still to come (`Thawed.filling`).
        Raises `NotResumedError`."""
        ...

    async def filling(self, manifest: str, spec: SandboxSpec) -> Filling | None:
        """The filling that an earlier supervisor of the sandbox left. None: the tree lacks nothing.
        Raises `MemoryLostError`."""
        ...

    async def find(self, key: SnapshotKey) -> Stored | None:
        """The committed snapshot of exactly this key, if there is one. Raises
        `StoreSilentError`."""
        ...


def run_directory(directory: Path) -> Path:
    """The folder that the sandbox sees as /run/hubernate."""
    return directory / "run"
