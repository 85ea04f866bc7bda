"""A dask cluster of this session: scheduler and two worker processes over TCP, a result that is kept
in a worker, and a task that runs through every stage."""

import os

import dask
from distributed import Client, LocalCluster

from stage import STAGES, reached, stages, wait_for

dask.config.set({"distributed.worker.daemon": False})


def fill(size: int) -> bytes:
    return os.urandom(size)


def run_until(stage: str) -> tuple[str, int]:
    wait_for(lambda: reached(stage), 600)
    return stage, os.getpid()


if __name__ == "__main__":
    with (
        LocalCluster(
            n_workers=2,
            threads_per_worker=2,
            processes=True,
            host="127.0.0.1",
            dashboard_address=None,
        ) as cluster,
        Client(cluster) as client,
    ):
        workers = client.run(os.getpid)
        kept = client.submit(fill, 1_000_000, pure=False)
        size = client.submit(len, kept)
        assert size.result(30) == 1_000_000
        running = client.submit(run_until, STAGES[0], pure=False)
        for number, stage in enumerate(stages()):
            ended, pid = running.result(30)
            assert ended == stage and pid in workers.values()
            assert client.submit(len, kept, pure=False).result(30) == 1_000_000
            assert sum(client.gather(client.map(abs, range(-50, 0)))) == 1275
            # No worker was lost and replaced: they are the same processes.
            assert client.run(os.getpid) == workers
            if number + 1 < len(STAGES):
                running = client.submit(run_until, STAGES[number + 1], pure=False)
