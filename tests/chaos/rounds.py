"""One round: sessions, a job, faults; then everything settles and is looked at."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Awaitable, Callable, Collection, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from tempfile import gettempdir
from time import monotonic
from typing import Final

from hub_config.children import read_records
from hub_config.demo.browserless import Researcher, log_in
from hub_config.demo.stage import Stage
from hub_config.secrets_store import SecretFiles
from hub_config.settings import SERVICE_NAME
from scheduler_bridge.client import SchedulerClient
from scheduler_bridge.errors import SchedulerError
from scheduler_bridge.model.phases import Phase
from snapshot import network, proc
from spawner.supervisor.status import read_status
from tests.chaos import gpus, jobs, leftovers, processes
from tests.chaos.faults import Faults
from tests.chaos.plan import Plan
from tests.chaos.play import Player

SETTLES: Final = 60.0
"""Seconds within which what is left over is gone."""


@dataclass(slots=True)
class Findings:
    """What is wrong, one sentence each."""

    lost_sessions: list[str] = field(default_factory=list)
    leaked_gpus: list[str] = field(default_factory=list)
    double_allocations: list[str] = field(default_factory=list)
    orphan_processes: list[str] = field(default_factory=list)
    leftovers: list[str] = field(default_factory=list)

    def add(self, other: Findings) -> None:
        """Another round's findings too."""
        for name in self.__slots__:
            getattr(self, name).extend(getattr(other, name))

    def __bool__(self) -> bool:
        return any(self.counts().values())

    def counts(self) -> dict[str, int]:
        """How many of each."""
        return {name: len(getattr(self, name)) for name in self.__slots__}

    def sentences(self) -> list[str]:
        """All of them, with what they count as."""
        return [f"{name}: {each}" for name in self.__slots__ for each in getattr(self, name)]


Living = Callable[[], Awaitable[set[str]]]
"""The ids of the workloads that are to have processes now."""


class Rounds:
    """Rounds on one installation, one after another."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        token = SecretFiles(stage.state / "secrets").service_token("admin")
        self._scheduler = SchedulerClient(f"{stage.url}/services/{SERVICE_NAME}", token)
        self._before = leftovers.traces()

    async def play(self, plan: Plan) -> Findings:
        """One round, and what is wrong after it."""
        found, watch = Findings(), gpus.Watch()
        watching = asyncio.create_task(watch.run())
        users = [await self._log_in(play.user) for play in plan.plays]
        try:
            await self._sessions(plan, users, found)
        finally:
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching
            for user in users:
                await user.http.aclose()
        found.double_allocations.extend(watch.verdict())
        await self._look(found, _nobody)
        found.leftovers += await _until_nothing(self._left)
        if found:
            self._keep(plan.name)
        return found

    async def _log_in(self, name: str) -> Researcher:
        return await log_in(self._stage.url, name, self._stage.password())

    async def _sessions(self, plan: Plan, users: list[Researcher], found: Findings) -> None:
        faults = Faults(self._stage, Random(plan.name))
        run_folder = self._stage.state / "run"
        players = [Player(user, self._scheduler, faults, run_folder) for user in users]
        job = asyncio.create_task(
            jobs.run_job(self._scheduler, f"job:carol/{plan.name}", plan.job_delay)
        )
        plays = zip(players, plan.plays, strict=True)
        await _all(found, [player.play(play, plan.name) for player, play in plays])
        await self._look(found, self._living)
        await _all(found, [player.end() for player in players])
        if wrong := await job:
            found.lost_sessions.append(wrong)

    async def _look(self, found: Findings, living: Living) -> None:
        """Nobody holds a GPU, and no process is there, but for workloads that live."""
        found.leaked_gpus += await _until_nothing(lambda: self._leaked(living))
        found.orphan_processes += await _until_nothing(lambda: self._orphans(living))

    async def _living(self) -> set[str]:
        running = [each.id for each in await self._scheduler.list() if each.phase is Phase.RUNNING]
        return {each for each in running if self._is_alive(each)}

    def _is_alive(self, workload_id: str) -> bool:
        status = read_status(self._stage.state / "run" / workload_id)
        sandbox = status.sandbox if status else None
        return sandbox is not None and not proc.has_ended(sandbox)

    async def _leaked(self, living: Living) -> list[str]:
        fleet, alive = await self._scheduler.fleet(), await living()
        return [f"{gpu} of {fleet.holders[gpu]}" for gpu in gpus.leaked(fleet.holders, alive)]

    async def _orphans(self, living: Living) -> list[str]:
        everybody = await asyncio.to_thread(processes.running)
        roots = self._roots(await living()) | {os.getpid()}
        found = processes.orphans(everybody, roots)
        return [f"{each.pid} {each.name}" for each in found if each.pid != 1]

    def _roots(self, living: Collection[str]) -> set[int]:
        records = read_records(self._stage.state / "run" / "children.json").values()
        found = {self._stage.process.pid, *(record.pid for record in records)}
        for workload_id in living:
            folder = self._stage.state / "run" / workload_id
            if (link := network.recorded(folder)) is not None:
                found.add(link.process.pid)
            if (status := read_status(folder)) is not None:
                found |= {p.pid for p in (status.supervisor, status.sandbox) if p is not None}
        return found

    async def _left(self) -> list[str]:
        return list(leftovers.left(self._before, await asyncio.to_thread(leftovers.traces)))

    def _keep(self, name: str) -> None:
        """Copy the logs to where they outlive the installation."""
        kept = Path(gettempdir()) / f"hubernate-chaos-{name.replace('/', '-')}"
        shutil.rmtree(kept, ignore_errors=True)
        for log in (*self._stage.state.glob("logs/*"), *self._stage.state.glob("run/*/*.log")):
            target = kept / log.parent.name / log.name
            target.parent.mkdir(parents=True, exist_ok=True)
            with suppress(OSError):
                shutil.copy(log, target)
        print(f"logs of round {name}: {kept}", flush=True)

    async def close(self) -> None:
        """Give back what is held."""
        await self._scheduler.aclose()


async def _nobody() -> set[str]:
    return set()


async def _all(found: Findings, doing: list[Coroutine[None, None, None]]) -> None:
    """Let all of them happen at once; each that fails has lost a session."""
    for result in await asyncio.gather(*doing, return_exceptions=True):
        if isinstance(result, Exception):
            found.lost_sessions.append(f"{type(result).__name__}: {result}")
        elif isinstance(result, BaseException):
            raise result


async def _until_nothing(look: Callable[[], Awaitable[list[str]]]) -> list[str]:
    """What is still wrong when everything has had its time to settle."""
    end, wrong = monotonic() + SETTLES, ["nobody has looked"]
    while wrong and monotonic() < end:
        try:
            wrong = await look()
        except SchedulerError as error:
            wrong = [f"the scheduler does not answer: {error}"]
        if wrong:
            await asyncio.sleep(0.5)
    return wrong
