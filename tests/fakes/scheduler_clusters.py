"""Cluster managers that fail in the way their names say."""

from __future__ import annotations

from scheduler_bridge.clusters.base import Handle, LastWords, LaunchFailed, Life
from scheduler_bridge.model.workload import Grant, Workload


class ClusterWithoutProcesses:
    """Launches nothing; what lives is what the test says. Keeps every grant it was given."""

    def __init__(self) -> None:
        self.grants: dict[str, Grant] = {}
        self.adopted: list[str] = []
        self.lives: dict[str, Life] = {}
        self.empty: set[str] = set()
        self.words: dict[str, LastWords] = {}
        self.terminated: list[Handle] = []
        self.forgotten: list[str] = []
        self.nodes: tuple[str, ...] = ()

    def answering(self) -> tuple[str, ...]:
        return self.nodes

    async def launch(self, job: Workload, grant: Grant, *, adopt: bool) -> Handle:
        self.grants[job.id] = grant
        if adopt:
            self.adopted.append(job.id)
            self.lives[job.id] = Life.ALIVE
        return {"name": job.id}

    def life(self, handle: Handle) -> Life:
        return self.lives.get(handle.get("name", ""), Life.ALIVE if handle else Life.UNKNOWN)

    def is_gone(self, handle: Handle) -> bool:
        return self.life(handle) is Life.GONE

    def has_no_sandbox(self, handle: Handle) -> bool:
        return handle.get("name", "") in self.empty

    def last_words(self, workload: Workload, handle: Handle) -> LastWords | None:
        return self.words.get(workload.id)

    def terminate(self, handle: Handle) -> None:
        self.terminated.append(handle)

    def forget(self, workload_id: str) -> None:
        self.forgotten.append(workload_id)


class ClusterThatCannotLaunch(ClusterWithoutProcesses):
    """Every launch fails."""

    def __init__(self, *, permanent: bool) -> None:
        super().__init__()
        self.permanent = permanent
        self.tries = 0

    async def launch(self, job: Workload, grant: Grant, *, adopt: bool) -> Handle:
        self.tries += 1
        raise LaunchFailed("The disk is full.", permanent=self.permanent)
