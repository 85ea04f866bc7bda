"""GPU time of the real program, which is killed meanwhile."""

from __future__ import annotations

import signal

from scheduler_bridge.model.phases import Phase
from scheduler_bridge.model.usage import Grouping, UsageQuestion
from tests.builders.scheduler import session
from tests.scheduler_bridge.test_service_process import Service, service

__all__ = ["service"]


async def test_gpu_time_is_exact_through_kill_9_and_sigterm(service: Service) -> None:
    await service.start()
    client = service.client
    workload = await client.submit(session("alice", gpus=2), key="s")
    await service.phase(workload, Phase.STARTING)
    grant = await client.take(workload.id)
    await client.move(grant.lease.id, grant.credential, Phase.RUNNING, cause="up")
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL):
        service.end(number)
        await service.start()
    await client.move(grant.lease.id, grant.credential, Phase.STOPPED, cause="done")
    events = await client.history(workload.id)
    placed = next(it.at for it in events if it.target == Phase.STARTING)
    released = next(it.at for it in events if it.kind == "lease_released")
    seen = await client.usage(UsageQuestion(group_by=Grouping.USER))
    (line,) = seen.lines
    assert line.delivered == round(2 * (round(released, 2) - round(placed, 2)), 2) > 0
    service.end(signal.SIGKILL)
    await service.start()
    again = await client.usage(UsageQuestion(group_by=Grouping.USER))
    assert again.lines == seen.lines
