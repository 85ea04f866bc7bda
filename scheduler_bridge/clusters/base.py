"""Contract of a cluster manager."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Protocol

from scheduler_bridge.model.phases import Phase
from scheduler_bridge.model.workload import Grant, SnapshotRef, Workload

Handle = Mapping[str, Any]
"""What a holder reports about itself with its heartbeats: `supervisor` and `sandbox`, each with
`pid` and `started` (field 22 of /proc/PID/stat), and possibly more."""


class LaunchFailed(Exception):
    """No supervisor was started. `permanent`: trying again cannot help."""

    def __init__(self, message: str, *, permanent: bool) -> None:
        super().__init__(message)
        self.permanent = permanent


class Life(Enum):
    """What is left of a lease's holder."""

    ALIVE = auto()
    ORPHANED = auto()
    """The supervisor is gone, its sandbox lives."""
    GONE = auto()
    """Proven: neither supervisor nor sandbox lives."""
    UNKNOWN = auto()
    """Nothing may be concluded."""


@dataclass(frozen=True, slots=True)
class LastWords:
    """What a supervisor wrote down before it ended without being able to tell us."""

    phase: Phase
    cause: str
    snapshot: SnapshotRef | None = None
    exit_code: int | None = None
    error: str = ""
    remedy: str = ""


class ClusterManager(Protocol):
    """One cluster. Blocking methods are quick (files, /proc); the others are coroutines."""

    def answering(self) -> Collection[str]:
        """Names of its machines that are there, as far as it knows by itself."""
        ...

    async def launch(self, job: Workload, grant: Grant, *, adopt: bool) -> Handle:
        """Start a supervisor for the job's lease and return what is known of it at once; with
        `adopt`, one for the sandbox that lives. Raises `LaunchFailed`."""
        ...

    def life(self, handle: Handle) -> Life:
        """What is left. An empty handle is `UNKNOWN`."""
        ...

    def is_gone(self, handle: Handle) -> bool:
        """Whether it is proven that neither supervisor nor sandbox lives."""
        ...

    def has_no_sandbox(self, handle: Handle) -> bool:
        """Whether it is proven that the supervisor is gone and left no sandbox, although `life`
        cannot tell because it never named one. Takes longer than `life`; False proves nothing."""
        ...

    def last_words(self, workload: Workload, handle: Handle) -> LastWords | None:
        """What the supervisor of this handle wrote down as its end, if it did."""
        ...

    def terminate(self, handle: Handle) -> None:
        """End sandbox and supervisor by force. May be called any number of times."""
        ...

    def forget(self, workload_id: str) -> None:
        """The workload has ended: remove what `launch` left behind."""
        ...
