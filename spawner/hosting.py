"""Where a session's supervisor lives, as the Hub's side sees it: a small contract and its values.

`spawner.local` implements it for this machine. Nothing here knows JupyterHub.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from scheduler_bridge.model.phases import Phase
from scheduler_bridge.model.workload import Grant, SnapshotRef, Workload
from spawner.supervisor.status import Outcome, Status

_READY = frozenset({Phase.RUNNING.value, Phase.FILLING.value})


class HostError(Exception):
    """The machine could not do what was asked; `remedy` says what helps."""

    def __init__(self, message: str, *, remedy: str = "") -> None:
        super().__init__(message if not remedy else f"{message} {remedy}")
        self.message = message
        self.remedy = remedy


class LaunchFailed(HostError):
    """No supervisor was started, and no sandbox."""


class NotReachable(HostError):
    """The supervisor's control socket does not answer."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What this machine shows of a session, without asking anybody.

    `status` is what the supervisor wrote last; None when it has not written yet.
    """

    status: Status | None = None
    supervisor_alive: bool = False
    sandbox_alive: bool = False

    @property
    def is_live(self) -> bool:
        """Whether processes of the session may exist."""
        return self.supervisor_alive or self.sandbox_alive

    @property
    def is_ready(self) -> bool:
        """Whether the session's server answers on `status.host_port`."""
        status = self.status
        return bool(
            self.supervisor_alive
            and status is not None
            and status.outcome is None
            and status.host_port
            and status.phase in _READY
        )

    @property
    def is_suspended(self) -> bool:
        """Whether the last supervisor ended in a commit."""
        return not self.is_live and self.outcome is Outcome.SUSPENDED

    @property
    def outcome(self) -> Outcome | None:
        return self.status.outcome if self.status is not None else None

    @property
    def exit_code(self) -> int:
        """For the Hub's poll, once nothing lives: 0 after a suspend or an ordered stop."""
        if self.status is None or self.outcome in (Outcome.SUSPENDED, Outcome.STOPPED):
            return 0
        if self.status.exit_code is not None:
            return self.status.exit_code
        return 1 if self.outcome is Outcome.FAILED or self.outcome is None else 0


NOTHING_SEEN = Seen()


@dataclass(frozen=True, slots=True)
class Launch:
    """What a new supervisor is to do: `mode` is start, resume or adopt (see `SupervisorOrder`, also
    for `memory_bytes`, `cpus` and `not_freezable_because`)."""

    mode: str
    workload: Workload
    grant: Grant
    argv: tuple[str, ...]
    environment: dict[str, str]
    base_url: str
    memory_bytes: int = 0
    cpus: float = 0.0
    not_freezable_because: str = ""


class SessionHost(Protocol):
    """The machine (or cluster) on which supervisors of sessions are started."""

    def observe(self, workload_id: str) -> Seen:
        """What is there now. Cheap, needs no other program, never raises."""
        ...

    async def launch(self, launch: Launch) -> Mapping[str, Any]:
        """Start a supervisor; returns once its process exists, with what proves it gone later
        (see `Report.handle`). Raises `LaunchFailed` when none was started. Not idempotent: the
        caller has just taken the lease."""
        ...

    async def ask(self, workload_id: str, command: str, *, actor: str, reason: str) -> None:
        """Tell the supervisor to `suspend` or `stop`; returns once it has accepted. Raises
        `NotReachable`."""
        ...

    async def wait_news(self, workload_id: str, seen: Seen) -> None:
        """Return when `observe` may show something else than `seen`, after a second at the latest.
        Never raises."""
        ...

    async def wait_end(self, workload_id: str) -> None:
        """Return once the supervisor has told its outcome or ended (at once if there is none)."""
        ...

    def remembered_token(self, workload_id: str) -> str:
        """The API token that the session's processes were started with, empty if unknown."""
        ...

    def why_not_freezable(self, workload_id: str) -> str:
        """Empty if the session may be suspended, else what forbids it in one sentence."""
        ...

    async def fork(self, workload: Workload, new_id: str) -> SnapshotRef:
        """Lay out under a new id what a suspended session consists of, and say what its snapshot is
        there. The caller sees to it that the session stays suspended meanwhile, or forgets the
        new one. Raises `HostError`; nothing is left then."""
        ...

    async def forget(self, workload: Workload) -> None:
        """Delete all snapshots of a session that has ended, and its folder. Idempotent."""
        ...
