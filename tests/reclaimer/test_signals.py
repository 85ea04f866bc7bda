"""Telemetry as it arrives: what is read, and what is not believed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reclaimer.idleness import Busy, IdleSince, Kernel, Terminal, Unknown
from reclaimer.policy import Announcement
from reclaimer.signals import Recorder, read_sample, session_of
from scheduler_bridge.model.phases import Kind, Phase
from scheduler_bridge.model.workload import Idleness, Workload, WorkloadId, WorkloadSpec
from tests.reclaimer.builders import NOW, START, WATCH

SIGNALS: dict[str, Any] = {
    "sampled_at": NOW - 2.0,
    "kernels": [
        {"id": "k1", "name": "python3", "state": "idle", "since": START, "last_activity": START}
    ],
    "terminals": [{"name": "1", "foreground": False, "last_activity": START}],
    "last_input": START,
    "cpu_seconds": 3.5,
    "connections": 2,
    "freezable": True,
    "blockers": [],
}


def workload(signals: dict[str, Any] | None = None, **changes: Any) -> Workload:
    plain = Workload(
        id=WorkloadId("w-1"),
        key="session:hub/ada/",
        spec=WorkloadSpec(kind=Kind.SESSION, name="ada", user="ada", gpus=2, profile="gpu-2"),
        phase=Phase.RUNNING,
        phase_since=START,
        created_at=START,
        version=1,
        signals=SIGNALS if signals is None else signals,
        signals_at=NOW - 1.0,
    )
    return replace(plain, **changes)


def test_a_whole_sample() -> None:
    sample = read_sample(workload())
    assert sample is not None
    assert sample.at == NOW - 2.0
    assert sample.kernels == (Kernel("k1", "python3", "idle", START, START),)
    assert sample.terminals == (Terminal("1", False, START),)
    assert (sample.last_input, sample.cpu_seconds, sample.connections) == (START, 3.5, 2)


def test_the_older_of_two_clocks_dates_a_sample() -> None:
    """A supervisor that repeats an old sample, and a session that dates one into the future."""
    repeated = read_sample(workload(SIGNALS | {"sampled_at": NOW - 500.0}))
    ahead = read_sample(workload(SIGNALS | {"sampled_at": NOW + 500.0}))
    assert repeated is not None
    assert ahead is not None
    assert (repeated.at, ahead.at) == (NOW - 500.0, NOW - 1.0)


@pytest.mark.parametrize(
    "changes", [{"signals_at": None}, {"signals": {}}, {"signals": {"sampled_at": "now"}}]
)
def test_no_sample(changes: dict[str, Any]) -> None:
    assert read_sample(workload(**changes)) is None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("kernels", "none"),
        ("kernels", [1]),
        ("kernels", {"id": "k"}),
        ("terminals", 3),
        ("terminals", [None]),
        ("last_input", "yesterday"),
        ("last_input", True),
        ("last_input", -1),
        ("cpu_seconds", float("nan")),
        ("cpu_seconds", float("inf")),
        ("cpu_seconds", None),
    ],
)
def test_what_has_the_wrong_type_is_not_known(field: str, value: Any) -> None:
    sample = read_sample(workload(SIGNALS | {field: value}))
    assert sample is not None
    assert getattr(sample, field) is None


def test_a_kernel_without_state_is_not_idle() -> None:
    sample = read_sample(workload(SIGNALS | {"kernels": [{"id": "k1"}]}))
    assert sample is not None
    assert sample.kernels == (Kernel("k1", "", "unknown"),)


def test_names_from_inside_cannot_carry_control_characters() -> None:
    kernels = [{"id": "k1", "name": "\x1b[2Jpython\n3" + "x" * 999, "state": "busy"}]
    sample = read_sample(workload(SIGNALS | {"kernels": kernels}))
    assert sample is not None
    assert sample.kernels is not None
    name = sample.kernels[0].name
    assert name.startswith("[2Jpython3xxx")
    assert len(name) <= 200


def test_session_for_the_policy() -> None:
    found = session_of(
        workload(SIGNALS | {"freezable": False, "blockers": ["a", "b", "c", "d", 5]})
    )
    assert (found.user, found.profile, found.gpus) == ("ada", "gpu-2", 2)
    assert (found.freezable, found.blockers) == (False, ("a", "b", "c"))


def test_whether_it_can_be_frozen_is_unknown_unless_said() -> None:
    assert session_of(workload({"freezable": "yes"})).freezable is None


def test_an_announcement_from_before_the_resume_is_not_about_now() -> None:
    old = workload(idleness=Idleness(START - 300, START - 180, "idle"))
    new = workload(idleness=Idleness(START + 10, START + 130, "idle"))
    assert session_of(old).announced is None
    assert session_of(new).announced == Announcement(START + 10, START + 130)


def test_recorder_remembers_work_that_the_samples_no_longer_show() -> None:
    """A burst of CPU ends; the kernel has been idle all the time."""
    recorder = Recorder(active_until=START)
    for step in range(61):
        at = NOW + 2.0 * step
        used = 5.0 + min(step, 20) * 2.0
        signals = SIGNALS | {"sampled_at": at, "cpu_seconds": used}
        recorder.note(read_sample(workload(signals, signals_at=at)))
        found = recorder.assess(at, START, WATCH)
        if step == 20:
            assert isinstance(found, Busy)
    assert isinstance(found, IdleSince)
    assert NOW + 40.0 <= found.since <= NOW + 40.0 + WATCH.cpu_window


def test_an_earlier_reclaimers_finding_is_kept_and_otherwise_it_counts_as_active() -> None:
    known = Recorder.at_first_sight(workload(idleness=Idleness(NOW - 77, NOW, "idle")), NOW)
    unknown = Recorder.at_first_sight(workload(), NOW)
    assert (known.active_until, unknown.active_until) == (NOW - 77, NOW)


def test_the_same_sample_twice_is_one_sample() -> None:
    recorder = Recorder(active_until=START)
    for _ in range(3):
        recorder.note(read_sample(workload()))
    recorder.note(None)
    assert len(recorder.samples) == 1


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(sorted(SIGNALS)), anything))
def test_nonsense_never_raises_and_is_never_idle(nonsense: dict[str, Any]) -> None:
    """Any field replaced by any value: idle only if the fields that matter still make sense."""
    one = workload(SIGNALS | nonsense)
    recorder = Recorder(active_until=START)
    recorder.note(read_sample(one))
    session_of(one)
    found = recorder.assess(NOW, START, WATCH)
    assert isinstance(found, Busy | Unknown)
