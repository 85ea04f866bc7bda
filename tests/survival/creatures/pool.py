"""A multiprocessing pool with work on its way at every stage."""

import multiprocessing
import os

from stage import STAGES, reached, stages, wait_for


def square(number: int) -> int:
    return number * number


def work_until(stage: str) -> tuple[str, int]:
    wait_for(lambda: reached(stage), 600)
    return stage, os.getpid()


with multiprocessing.Pool(2) as pool:
    workers = sorted(process.pid for process in pool._pool)
    begun = pool.apply_async(work_until, (STAGES[0],))
    for number, stage in enumerate(stages()):
        ended, worker = begun.get(timeout=20)
        assert ended == stage and worker in workers
        assert pool.map(square, range(200)) == [n * n for n in range(200)]
        assert sorted(process.pid for process in pool._pool) == workers
        if number + 1 < len(STAGES):
            begun = pool.apply_async(work_until, (STAGES[number + 1],))
