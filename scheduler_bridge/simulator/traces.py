"""Reads what really happened: the Philly trace, and an export of our own events."""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from math import ceil, inf, isfinite
from pathlib import Path
from typing import Any, Final

from numpy.random import default_rng

from scheduler_bridge.model.phases import Phase
from scheduler_bridge.policy.values import DEBUG_SECONDS
from scheduler_bridge.simulator.draws import checkpoint_interval, time_limit
from scheduler_bridge.simulator.jobs import (
    LONGEST_PROTECTION,
    NORMAL,
    JobSpec,
    Replay,
    SimJob,
)

_COLUMNS: Final = ("timestamp", "duration", "num_gpus", "cluster")


class TraceError(Exception):
    """The trace cannot be read. Names file, line and what would be accepted."""


@dataclass(frozen=True, slots=True)
class TraceJob:
    """What a trace tells of a job: seconds from its beginning, GPUs in all."""

    at: float
    duration: float
    gpus: int
    team: str


def read_philly(path: Path) -> list[TraceJob]:
    """Jobs in order of submission, the first at 0. Raises `TraceError`."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            missing = [name for name in _COLUMNS if name not in (reader.fieldnames or ())]
            if missing:
                raise TraceError(
                    f"{path} has no column {missing[0]}; a Philly trace has {_COLUMNS}."
                )
            jobs = [_philly_job(row, f"{path}:{reader.line_num}") for row in reader]
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"{path} cannot be read: {error}") from error
    if not jobs:
        raise TraceError(f"{path} has no jobs.")
    jobs.sort(key=lambda job: job.at)
    begin = jobs[0].at
    return [TraceJob(job.at - begin, job.duration, job.gpus, job.team) for job in jobs]


def _philly_job(row: Mapping[str, str | None], where: str) -> TraceJob:
    try:
        at = datetime.fromisoformat(row["timestamp"] or "").replace(tzinfo=UTC).timestamp()
        duration, gpus = float(row["duration"] or ""), int(row["num_gpus"] or "")
    except ValueError as error:
        raise TraceError(f"{where}: {error}") from error
    if not (isfinite(duration) and duration > 0 and gpus > 0):
        raise TraceError(f"{where}: a job needs a duration and GPUs above 0; it has {row}.")
    return TraceJob(at, duration, gpus, row["cluster"] or "")


def as_jobs(trace: Iterable[TraceJob], gpus_per_node: int, seed: int) -> Replay:
    """Work for the world. Short jobs are protected for 15 minutes, others as long as they ran,
    in steps of 15 minutes and at most 8 hours; checkpoints and time limits, of which the trace tells nothing, are drawn."""
    rng = default_rng((seed, 2**22))
    arrivals = []
    for number, job in enumerate(trace):
        gpus, nodes = shape(job.gpus, gpus_per_node)
        is_short = job.duration < DEBUG_SECONDS
        asked = ceil(job.duration / DEBUG_SECONDS) * DEBUG_SECONDS
        protection = DEBUG_SECONDS if is_short else min(LONGEST_PROTECTION, asked)
        limit = time_limit(rng, job.duration)
        spec = JobSpec(f"j{number:06d}", job.team, gpus, nodes, protection, limit, NORMAL)
        arrivals.append((job.at, SimJob(spec, job.duration, checkpoint_interval(rng))))
    return Replay(tuple(arrivals))


def shape(gpus: int, gpus_per_node: int) -> tuple[int, int]:
    """(GPUs per node, nodes) on the fewest nodes that share the GPUs evenly."""
    nodes = -(-gpus // gpus_per_node)
    while gpus % nodes:
        nodes += 1
    return gpus // nodes, nodes


def shares_by_use(trace: Iterable[TraceJob]) -> dict[str, float]:
    """A trace without budgets: every team's share is its part of all GPU time that was used."""
    used: defaultdict[str, float] = defaultdict(float)
    for job in trace:
        used[job.team] += job.gpus * job.duration
    total = sum(used.values())
    return {team: seconds / total for team, seconds in sorted(used.items())}


# -- our own events ----------------------------------------------------------------------------


def read_events(path: Path, seed: int) -> tuple[Replay, dict[str, float]]:
    """Work and shares by use, of an export of the events table: one JSON object per row and line with
    the table's columns. A job's `submitted` row has `gpus` and, if they are not the default, `nodes`,
    `team` and `min_runtime_seconds` as evidence. What has not ended is taken as it stands at the
    last row. Raises `TraceError`."""
    lives: dict[str, _Life] = {}
    last = 0.0
    for row, where in _rows(path):
        try:
            last = max(last, float(row["at"]))
            _follow(lives, row)
        except (KeyError, TypeError, ValueError) as error:
            raise TraceError(f"{where}: not a row of the events table ({error!r}).") from error
    jobs = [life for life in lives.values() if life.seconds(last) > 0 and life.gpus]
    if not jobs:
        raise TraceError(f"{path} tells of no workload with GPUs that ran.")
    jobs.sort(key=lambda life: (life.submitted, life.id))
    begin, rng = jobs[0].submitted, default_rng((seed, 2**23))
    arrivals = []
    for life in jobs:
        duration = life.seconds(last)
        spec = JobSpec(
            life.id,
            life.team,
            life.gpus,
            life.nodes,
            life.min_runtime,
            time_limit(rng, duration),
            NORMAL,
        )
        job = SimJob(
            spec, duration, inf if life.freezes else checkpoint_interval(rng), life.freezes
        )
        arrivals.append((life.submitted - begin, job))
    used = [TraceJob(0.0, life.seconds(last), life.gpus * life.nodes, life.team) for life in jobs]
    return Replay(tuple(arrivals)), shares_by_use(used)


@dataclass(slots=True)
class _Life:
    id: str
    submitted: float
    team: str
    gpus: int
    nodes: int
    min_runtime: float
    freezes: bool = False
    ran: float = 0.0
    running_since: float | None = None

    def seconds(self, last: float) -> float:
        """How long it ran in all."""
        return self.ran + (0.0 if self.running_since is None else last - self.running_since)


def _rows(path: Path) -> Iterator[tuple[dict[str, Any], str]]:
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield json.loads(line), f"{path}:{number}"
    except (OSError, ValueError) as error:
        raise TraceError(f"{path} cannot be read: {error}") from error


def _follow(lives: dict[str, _Life], row: Mapping[str, Any]) -> None:
    name, at, told = str(row["workload_id"]), float(row["at"]), row.get("evidence") or {}
    if row["kind"] == "submitted":
        lives[name] = _Life(
            name,
            at,
            str(told.get("team", "default")),
            int(told["gpus"]),
            int(told.get("nodes", 1)),
            float(told.get("min_runtime_seconds", 0.0)),
        )
    elif row["kind"] == "phase" and name in lives:
        _move(lives[name], Phase(row["target"]), at)


def _move(life: _Life, target: Phase, at: float) -> None:
    if target is Phase.RUNNING:
        life.running_since = at
    elif life.running_since is not None:
        life.ran += at - life.running_since
        life.running_since = None
    life.freezes |= target is Phase.SUSPENDED
