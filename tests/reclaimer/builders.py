"""Values of the reclaimer's tests: everything idle and known unless a test says otherwise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from reclaimer.idleness import Kernel, Sample, Terminal, Watch
from reclaimer.policy import Session

START = 1_000_000.0
"""When the session of most tests began to run."""

NOW = START + 1000.0
WATCH = Watch(stale_after=60.0, cpu_cores=0.1, cpu_window=30.0)


def idle_kernel(since: float = START + 10.0, **changes: Any) -> Kernel:
    kernel = Kernel("3f2a9b10-aaaa", "python3", "idle", since=since, last_activity=since)
    return replace(kernel, **changes)


def busy_kernel(since: float = START + 10.0) -> Kernel:
    return Kernel("77e0c1d2-bbbb", "python3", "busy", since=since, last_activity=since)


def prompt(name: str = "1", last_activity: float = START) -> Terminal:
    return Terminal(name, foreground=False, last_activity=last_activity)


def sample(at: float = NOW - 1.0, **changes: Any) -> Sample:
    quiet = Sample(
        at=at,
        kernels=(idle_kernel(),),
        terminals=(),
        last_input=START + 5.0,
        cpu_seconds=12.0,
        connections=0,
    )
    return replace(quiet, **changes)


def history(latest: Sample, *, cores: float = 0.0, before: float = 30.0) -> list[Sample]:
    """The latest sample and an earlier one, `cores` busy cores in between."""
    assert latest.cpu_seconds is not None
    used = latest.cpu_seconds - cores * before
    return [replace(latest, at=latest.at - before, cpu_seconds=used), latest]


def session(**changes: Any) -> Session:
    plain = Session(
        id="w-1", user="ada", team="vision", profile="gpu-1", gpus=1, running_since=START
    )
    return replace(plain, **changes)
