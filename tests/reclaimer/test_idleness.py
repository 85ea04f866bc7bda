"""Tables of the judgement over telemetry."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reclaimer.idleness import (
    Busy,
    IdleSince,
    Kernel,
    Sample,
    Terminal,
    Unknown,
    Watch,
    assess,
)
from tests.reclaimer.builders import (
    NOW,
    START,
    WATCH,
    busy_kernel,
    history,
    idle_kernel,
    prompt,
    sample,
)


def judged(samples: list[Sample], now: float = NOW, **changes: float) -> object:
    return assess(
        samples, now, running_since=changes.pop("running_since", START), watch=WATCH, **changes
    )


@dataclass(frozen=True)
class Row:
    """One sentence, the latest sample, and what must be in the reason."""

    sentence: str
    latest: Sample
    words: str
    cores: float = 0.0


BUSY = [
    Row(
        "a cell has run for hours and no browser is open",
        sample(kernels=(busy_kernel(START),)),
        "running a cell",
    ),
    Row(
        "a silent cell sleeps for a day and prints nothing",
        sample(kernels=(Kernel("k", "python3", "busy", since=START, last_activity=START),)),
        "running a cell",
    ),
    Row(
        "one kernel of several is busy",
        sample(kernels=(idle_kernel(), busy_kernel(), idle_kernel())),
        "running a cell",
    ),
    Row(
        "a busy kernel counts although other fields are missing",
        sample(kernels=(busy_kernel(),), terminals=None, last_input=None, cpu_seconds=None),
        "running a cell",
    ),
    Row(
        "a terminal runs a download in front",
        sample(terminals=(prompt("1"), Terminal("2", True, START))),
        "terminal 2 runs a program",
    ),
    Row("a background process computes", sample(), "use 0.1 CPU", cores=0.5),
]


@pytest.mark.parametrize("row", BUSY, ids=lambda row: row.sentence)
def test_busy(row: Row) -> None:
    latest = row.latest
    samples = history(latest, cores=row.cores) if latest.cpu_seconds is not None else [latest]
    found = judged(samples)
    assert isinstance(found, Busy)
    assert row.words in found.why


IDLE = [
    Row(
        "an idle kernel with open tabs is idle", sample(connections=7), "kernel python3 (3f2a9b10)"
    ),
    Row(
        "a held-open websocket does not make it active",
        sample(connections=1, kernels=(idle_kernel(START + 50),)),
        "kernel python3",
    ),
    Row(
        "a shell at its prompt is not activity",
        sample(terminals=(prompt(),)),
        "kernel python3",
    ),
    Row("no kernel was ever started", sample(kernels=(), last_input=0.0), "started or came back"),
    Row("a process that hardly does anything", sample(), "kernel python3", cores=0.05),
]


@pytest.mark.parametrize("row", IDLE, ids=lambda row: row.sentence)
def test_idle(row: Row) -> None:
    found = judged(history(row.latest, cores=row.cores))
    assert isinstance(found, IdleSince)
    assert row.words in found.because


UNKNOWN = [
    Row("kernels are not reported", sample(kernels=None), "its kernels"),
    Row("terminals are not reported", sample(terminals=None), "its terminals"),
    Row("input is not reported", sample(last_input=None), "last typed"),
    Row("CPU time is not reported", sample(cpu_seconds=None), "CPU time"),
    Row("a kernel is starting", sample(kernels=(idle_kernel(state="unknown"),)), "state of kernel"),
    Row(
        "a kernel has a state that is new to us",
        sample(kernels=(idle_kernel(state="dreaming"),)),
        "state of kernel",
    ),
    Row(
        "an idle kernel does not say since when",
        sample(kernels=(idle_kernel(since=None, last_activity=None),)),
        "since when",
    ),
    Row(
        "what runs in a terminal cannot be found out",
        sample(terminals=(Terminal("3", None, START),)),
        "runs in terminal 3",
    ),
    Row("telemetry stopped", sample(at=NOW - 61.0), "stopped more than 60 s ago"),
    Row(
        "telemetry of a busy session stopped",
        sample(at=NOW - 61.0, kernels=(busy_kernel(),)),
        "stopped",
    ),
    Row("telemetry is dated in the future", sample(at=NOW + 10.0), "future"),
]


@pytest.mark.parametrize("row", UNKNOWN, ids=lambda row: row.sentence)
def test_unknown(row: Row) -> None:
    latest = row.latest
    samples = history(latest) if latest.cpu_seconds is not None else [latest]
    found = judged(samples)
    assert isinstance(found, Unknown)
    assert row.words in found.why


def test_nothing_was_ever_reported() -> None:
    assert isinstance(judged([]), Unknown)


def test_cpu_counter_that_goes_backwards_says_nothing() -> None:
    latest = sample(cpu_seconds=12.0)
    samples = [
        replace(latest, at=latest.at - 30.0, cpu_seconds=12.0),
        replace(latest, at=latest.at - 10.0, cpu_seconds=40.0),
        latest,
    ]
    found = judged(samples)
    assert isinstance(found, Unknown)
    assert "backwards" in found.why


def test_cpu_use_needs_a_whole_window() -> None:
    found = judged(history(sample(), before=20.0))
    assert isinstance(found, Unknown)
    assert "not watched for 30 s" in found.why


def test_a_burst_does_not_drown_in_a_gap_of_telemetry() -> None:
    found = judged(history(sample(), cores=0.05, before=300.0))
    assert isinstance(found, Unknown)
    assert "gap" in found.why


def test_a_window_shorter_than_the_rhythm_of_telemetry_still_measures() -> None:
    short = replace(WATCH, cpu_window=1.0)
    found = assess(history(sample(), before=5.0), NOW, running_since=START, watch=short)
    assert isinstance(found, IdleSince)


def test_one_low_sample_inside_a_busy_window_does_not_make_it_idle() -> None:
    latest = sample(cpu_seconds=100.0)
    samples = [
        replace(latest, at=latest.at - 30.0, cpu_seconds=90.0),
        replace(latest, at=latest.at - 2.0, cpu_seconds=100.0),
        latest,
    ]
    assert isinstance(judged(samples), Busy)


@pytest.mark.parametrize(
    ("sentence", "changes", "since"),
    [
        (
            "the kernel that went quiet last decides",
            {"kernels": (idle_kernel(START + 10), idle_kernel(START + 300))},
            START + 300,
        ),
        ("recent user input vetoes", {"last_input": NOW - 3.0}, NOW - 3.0),
        (
            "a job in a terminal ended",
            {"terminals": (prompt(last_activity=NOW - 90.0),)},
            NOW - 90.0,
        ),
        (
            "last activity of a kernel counts when it is later",
            {"kernels": (idle_kernel(START, last_activity=START + 77),)},
            START + 77,
        ),
        ("a moment in the future counts as now", {"last_input": NOW + 500.0}, NOW),
    ],
)
def test_idle_since(sentence: str, changes: dict[str, object], since: float) -> None:
    found = judged(history(sample(**changes)))
    assert isinstance(found, IdleSince), sentence
    assert found.since == since


def test_after_a_resume_idle_time_counts_from_the_resume() -> None:
    resumed = NOW - 40.0
    found = judged(history(sample()), running_since=resumed)
    assert found == replace(found, since=resumed)  # type: ignore[type-var]
    assert isinstance(found, IdleSince)


def test_samples_from_before_a_resume_say_nothing() -> None:
    found = judged(history(sample(at=NOW - 20.0)), running_since=NOW - 10.0)
    assert isinstance(found, Unknown)


def test_what_the_caller_saw_at_work_counts() -> None:
    found = judged(history(sample()), active_until=NOW - 33.0)
    assert isinstance(found, IdleSince)
    assert (found.since, found.because) == (NOW - 33.0, "it was last seen at work")


def test_signals_that_are_not_counted_are_not_asked_for() -> None:
    kernels_only = replace(WATCH, counted=frozenset({"kernels"}))
    latest = sample(terminals=(Terminal("1", True),), last_input=None, cpu_seconds=None)
    found = assess([latest], NOW, running_since=START, watch=kernels_only)
    assert isinstance(found, IdleSince)


def test_evidence_shows_every_signal() -> None:
    found = judged(history(sample(terminals=(prompt(),), connections=3)))
    assert isinstance(found, IdleSince)
    shown = " ".join(found.evidence)
    for word in ("kernel python3", "terminal 1: at its prompt", "0.00 cores", "connections: 3"):
        assert word in shown


times = st.floats(min_value=START - 100, max_value=NOW + 100, allow_nan=False)
kernels = st.builds(
    Kernel,
    id=st.just("k1"),
    name=st.just("python3"),
    state=st.sampled_from(["busy", "idle", "unknown", "starting"]),
    since=st.none() | times,
    last_activity=st.none() | times,
)
terminals = st.builds(
    Terminal,
    name=st.just("1"),
    foreground=st.none() | st.booleans(),
    last_activity=st.none() | times,
)
any_samples = st.lists(
    st.builds(
        Sample,
        at=times,
        kernels=st.none() | st.tuples(kernels) | st.just(()),
        terminals=st.none() | st.tuples(terminals) | st.just(()),
        last_input=st.none() | times,
        cpu_seconds=st.none() | st.floats(0, 1e6),
        connections=st.none() | st.integers(0, 9),
    ),
    max_size=5,
).map(lambda found: sorted(found, key=lambda s: s.at))


@given(any_samples)
def test_idle_only_when_everything_is_known_fresh_and_quiet(samples: list[Sample]) -> None:
    found = judged(samples)
    if not isinstance(found, IdleSince):
        return
    latest = samples[-1]
    missing = [f.name for f in fields(latest) if getattr(latest, f.name) is None]
    assert missing in ([], ["connections"])
    assert all(k.state == "idle" for k in latest.kernels or ())
    assert not any(t.foreground is not False for t in latest.terminals or ())
    assert START <= found.since <= NOW
    assert NOW - latest.at <= WATCH.stale_after
    counters = [
        s.cpu_seconds for s in samples if s.at >= latest.at - 30 and s.cpu_seconds is not None
    ]
    assert all(later >= earlier for earlier, later in pairwise(counters))


@given(any_samples, st.integers(0, 50))
def test_open_connections_never_change_the_verdict(samples: list[Sample], connections: int) -> None:
    changed = [replace(s, connections=connections) for s in samples]
    one, other = judged(samples), judged(changed)
    assert type(one) is type(other)
    assert getattr(one, "since", None) == getattr(other, "since", None)


@given(any_samples, st.floats(0, 10_000))
def test_time_alone_never_makes_a_session_less_idle(samples: list[Sample], later: float) -> None:
    """As time passes without news, what was idle stays idle since the same moment, or is unknown."""
    watch = Watch()
    before = assess(samples, NOW, running_since=START, watch=watch)
    after = assess(samples, NOW + later, running_since=START, watch=watch)
    if isinstance(before, IdleSince) and isinstance(after, IdleSince):
        assert after.since >= before.since or after.because == before.because
