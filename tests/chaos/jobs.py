"""A training job beside the sessions: it takes its GPU for itself, and fails where another has it."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Final

from scheduler_bridge.client import SchedulerClient
from scheduler_bridge.errors import SchedulerError
from scheduler_bridge.model.phases import TERMINAL, Kind, Phase
from scheduler_bridge.model.workload import Workload, WorkloadSpec

TRAIN: Final = """
import fcntl, glob, time
with open(glob.glob('/dev/vgpu*')[0], 'r+') as handle:
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    time.sleep(2)
"""
PATIENCE: Final = 600.0


async def run_job(scheduler: SchedulerClient, key: str, delay: float) -> str:
    """Submit it after a while and see it through; what went wrong, in words."""
    await asyncio.sleep(delay)
    command = ("python3", "-u", "-c", TRAIN)
    spec = WorkloadSpec(Kind.JOB, "train", "carol", gpus=1, command=command)
    end, job = monotonic() + PATIENCE, None
    while monotonic() < end:
        try:
            job = await _next(scheduler, spec, key, job)
        except SchedulerError:
            pass
        else:
            if job.phase in TERMINAL:
                return "" if job.phase is Phase.SUCCEEDED else f"job {job.phase}: {job.last_error}"
        await asyncio.sleep(0.5)
    return f"the job has not ended: {job}"


async def _next(
    scheduler: SchedulerClient, spec: WorkloadSpec, key: str, job: Workload | None
) -> Workload:
    if job is None:
        return await scheduler.submit(spec, key=key)
    return await scheduler.get(job.id)
