"""Traces: what is read, what is refused, and what generators draw."""

from __future__ import annotations

import json
from math import inf, log
from pathlib import Path

import numpy as np
import pytest

from scheduler_bridge.simulator.ai2 import SHARES, ai2
from scheduler_bridge.simulator.jobs import DAY, HOUR
from scheduler_bridge.simulator.philly import generate, philly
from scheduler_bridge.simulator.traces import (
    TraceError,
    as_jobs,
    read_events,
    read_philly,
    shape,
    shares_by_use,
)

_HEAD = "timestamp,duration,num_gpus,gpu_time,cluster\n"


def written(folder: Path, text: str, name: str = "trace.csv") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_jobs_come_in_order_and_begin_at_zero(tmp_path: Path) -> None:
    lines = "2017-10-09 07:01:00,66.0,1,66.0,x\n2017-10-09 07:00:00,4000.0,16,64000.0,y\n\n"
    trace = read_philly(written(tmp_path, _HEAD + lines))
    assert [(job.at, job.duration, job.gpus, job.team) for job in trace] == [
        (0.0, 4000.0, 16, "y"),
        (60.0, 66.0, 1, "x"),
    ]
    long, short = (job for _, job in as_jobs(trace, 8, seed=1).arrivals)
    assert (long.spec.gpus, long.spec.nodes, long.spec.min_runtime) == (8, 2, 4500.0)
    assert (short.spec.min_runtime, short.is_debug, long.is_debug) == (900.0, True, False)
    assert long.spec.limit > long.duration + 120


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("duration,num_gpus,cluster\n1,1,x\n", "no column timestamp"),
        (_HEAD, "no jobs"),
        (_HEAD + "yesterday,66.0,1,66.0,x\n", "trace.csv:2"),
        (_HEAD + "2017-10-09 07:01:00,66.0,0,0,x\n", "trace.csv:2: a job needs"),
        (_HEAD + "2017-10-09 07:01:00,-1,1,0,x\n", "above 0"),
        (_HEAD + "2017-10-09 07:01:00,nan,1,0,x\n", "above 0"),
    ],
)
def test_a_bad_trace_names_the_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(TraceError, match=said):
        read_philly(written(tmp_path, text))


def test_no_file_is_said_plainly(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"nothing\.csv cannot be read"):
        read_philly(tmp_path / "nothing.csv")


def test_a_fleet_that_is_too_small_is_refused(tmp_path: Path) -> None:
    trace = written(tmp_path, _HEAD + "2017-10-09 07:01:00,66.0,32,66.0,x\n")
    with pytest.raises(TraceError, match="needs 32 GPUs; 2 nodes have 16"):
        philly(2, trace=trace)


@pytest.mark.parametrize(
    ("gpus", "found"),
    [(1, (1, 1)), (8, (8, 1)), (12, (6, 2)), (24, (8, 3)), (9, (3, 3)), (11, (1, 11))],
)
def test_gangs_are_even(gpus: int, found: tuple[int, int]) -> None:
    assert shape(gpus, 8) == found


# -- our own events ----------------------------------------------------------------------------


def event(at: float, kind: str, target: str, job: str = "j1", **evidence: object) -> str:
    row = {"at": at, "workload_id": job, "kind": kind, "target": target, "evidence": evidence}
    return json.dumps(row) + "\n"


def test_our_own_events_are_lived_again(tmp_path: Path) -> None:
    told = {"gpus": 2, "nodes": 3, "team": "nlp", "min_runtime_seconds": 600}
    text = (
        event(100.0, "submitted", "queued", **told)
        + event(101.0, "phase", "starting")
        + event(110.0, "phase", "running")
        + event(150.0, "phase", "preempting")
        + event(160.0, "phase", "queued")
        + event(200.0, "phase", "running")
        + event(260.0, "phase", "succeeded")
        + event(120.0, "submitted", "queued", "s1", gpus=1)
        + event(130.0, "phase", "running", "s1")
        + event(190.0, "phase", "suspended", "s1")
        + event(150.0, "submitted", "queued", "never", gpus=1)
    )
    replay, shares = read_events(written(tmp_path, text, "events.jsonl"), seed=1)
    (first, job), (second, session) = replay.arrivals
    assert (first, second) == (0.0, 20.0)
    assert (job.spec.gpus, job.spec.nodes, job.spec.team) == (2, 3, "nlp")
    assert (job.duration, job.spec.min_runtime) == (100.0, 600.0)
    assert (session.duration, session.freezes, session.checkpoint_every) == (60.0, True, inf)
    assert shares == pytest.approx({"default": 60 / 660, "nlp": 600 / 660})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (event(1.0, "submitted", "queued"), "events.jsonl:1: not a row"),
        (event(1.0, "submitted", "queued", gpus=1) + event(2.0, "phase", "flying"), "jsonl:2"),
        ("{", "cannot be read"),
        ("", "tells of no workload"),
    ],
)
def test_bad_events_are_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(TraceError, match=said):
        read_events(written(tmp_path, text, "events.jsonl"), seed=1)


# -- generators --------------------------------------------------------------------------------


def test_work_like_phillys_has_its_figures() -> None:
    jobs = generate(seed=1)
    seconds = np.array([job.duration for job in jobs])
    gpus = np.array([job.gpus for job in jobs])
    assert 70_000 < len(jobs) < 95_000
    assert np.mean(gpus == 1) == pytest.approx(0.93, abs=0.01)
    assert np.mean(seconds < 900) == pytest.approx(0.46, abs=0.02)
    assert np.mean(seconds > 8 * HOUR) == pytest.approx(0.06, abs=0.01)
    for part, known in ((0.1, 61), (0.5, 1_144), (0.9, 11_266)):
        assert log(np.quantile(seconds, part)) == pytest.approx(log(known), abs=0.2)
    used = seconds * gpus
    assert used[gpus >= 8].sum() / used.sum() == pytest.approx(0.62, abs=0.1)
    assert used[seconds > 8 * HOUR].sum() / used.sum() == pytest.approx(0.929, abs=0.03)
    assert used.sum() / 3600 == pytest.approx(978_078, rel=0.2)
    shares = shares_by_use(jobs)
    assert len(shares) == 11
    assert sum(shares.values()) == pytest.approx(1.0)


def test_the_same_seed_gives_the_same_work() -> None:
    assert generate(3, hours=20) == generate(3, hours=20) != generate(4, hours=20)


def test_ai2_asks_for_two_and_a_half_times_the_fleet() -> None:
    scenario = ai2(seed=1)
    work = [job for _, job in scenario.source.first() if not job.is_debug]
    asked = sum(job.spec.size for job in work)
    assert asked / scenario.fleet.capacity == pytest.approx(2.5, rel=0.1)
    assert {job.spec.team for job in work} == set(SHARES)
    assert any(not job.spec.is_allocated for job in work)
    assert max(job.spec.nodes for job in work) >= 8
    mine = {name: share * scenario.fleet.capacity for name, share in SHARES.items()}
    assert all(job.spec.size <= max(1, mine[job.spec.team]) for job in work)


def test_a_user_goes_on_when_the_job_has_ended_and_the_team_is_there() -> None:
    scenario = ai2(seed=1)
    source = scenario.source
    first = list(source.first())
    at, job = next((at, job) for at, job in first if not job.is_debug)
    following = source.after(job, 5 * HOUR)
    assert following is not None
    assert following[0] > 5 * HOUR
    assert following[1].spec.team == job.spec.team
    assert following[1].spec.id != job.spec.id
    assert at < 6 * HOUR


def test_nobody_of_a_team_that_is_away_submits() -> None:
    source = ai2(seed=1).source
    away = source._away
    assert away
    team, (leaves, returns) = next(iter(away.items()))
    mine = [job for _, job in source.first() if job.spec.team == team]
    for job in mine:
        following = source.after(job, leaves + 60)
        assert following is not None
        assert following[0] < leaves or following[0] >= returns or following[0] > 30 * DAY
