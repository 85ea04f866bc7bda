"""What the real scheduler wrote down can be simulated again."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from scheduler_bridge.engine.settings import ManualClock
from scheduler_bridge.inprocess import InProcessScheduler
from scheduler_bridge.model.phases import Kind, Phase
from scheduler_bridge.model.workload import WorkloadSpec
from scheduler_bridge.simulator.scenarios import Request, simulate
from scheduler_bridge.simulator.traces import TraceError, read_events


async def export(folder: Path) -> Path:
    """The events of one job that waits 0 s, starts for 10 s and runs for 300 s."""
    clock = ManualClock(1_000_000.0)
    scheduler = InProcessScheduler(gpus=4, clock=clock)
    spec = WorkloadSpec(
        Kind.JOB, "train", "ada", gpus=2, min_runtime_seconds=120.0, command=("python", "train.py")
    )
    job = await scheduler.submit(spec, key="job:ada/1")
    grant = await scheduler.take(job.id)
    for seconds, target in ((10, Phase.RUNNING), (300, Phase.SUCCEEDED)):
        scheduler.advance(0)
        clock.advance(seconds)
        await scheduler.move(grant.lease.id, grant.credential, target, cause="it did")
    rows = [json.dumps(asdict(event)) for event in await scheduler.history(job.id)]
    file = folder / "events.jsonl"
    file.write_text("\n".join(rows), encoding="utf-8")
    return file


async def test_our_own_past_is_read_back(tmp_path: Path) -> None:
    replay, shares = read_events(await export(tmp_path), seed=1)
    ((at, job),) = replay.arrivals
    assert (at, job.duration) == (0.0, 300.0)
    assert (job.spec.team, job.spec.gpus, job.spec.nodes) == ("default", 2, 1)
    assert job.spec.min_runtime == 120.0
    assert shares == {"default": 1.0}


async def test_it_can_be_simulated_on_a_fleet_that_is_large_enough(tmp_path: Path) -> None:
    past = await export(tmp_path)
    found = simulate(Request("trace", "fifo", past, nodes=1, gpus_per_node=4)).figures
    assert (found.jobs, found.unstarted, found.violations) == (1, 0, {})
    with pytest.raises(TraceError, match="needs 2 GPUs on 1 machines"):
        simulate(Request("trace", "fifo", past, nodes=1, gpus_per_node=1))
