"""A queue of work whose first failure stops the rest, and that may be given up by somebody else."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from snapshot.crew import Crew, given_up
from snapshot.errors import SnapshotError


@pytest.mark.parametrize("queued", [0, 50])
def test_whoever_waits_for_a_crew_that_is_given_up_hears_why(queued: int) -> None:
    crew, gate = Crew(1, "given up"), threading.Event()
    crew.submit(lambda: gate.wait() and None)
    for _ in range(queued):
        crew.submit(lambda: None)
    with ThreadPoolExecutor(1) as pool:
        draining = pool.submit(crew.drain)
        while not draining.running():
            threading.Event().wait(0.001)
        crew.fail(given_up())
        crew.stop(wait=False)  # drops what is queued, and what `drain` may be waiting for
        gate.set()
        with pytest.raises(SnapshotError, match="given up"):
            draining.result()
    crew.stop(wait=True)


def test_the_first_failure_is_raised_and_the_rest_not_begun() -> None:
    crew, gate, done = Crew(1, "failing"), threading.Event(), []

    def fail() -> None:
        gate.wait()
        raise SnapshotError("the first")

    crew.submit(fail)
    crew.submit(lambda: done.append(1))
    gate.set()
    with pytest.raises(SnapshotError, match="the first"):
        crew.drain()
    with pytest.raises(SnapshotError, match="the first"):
        crew.submit(lambda: done.append(2))
    crew.stop(wait=True)
    assert done == []
