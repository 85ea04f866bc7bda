"""What a supervisor tells the session's own pages."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from scheduler_bridge.model.phases import Desired, Phase
from snapshot.model import Progress
from spawner.extension_state import STATE_FILE, read_state
from spawner.supervisor import telling
from tests.builders.supervisor import Stage, stage, until
from tests.fakes.filling import MachineWithSlowMemory
from tests.fakes.machine import MachineWithOpenGpuHandle, WorkingMachine

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="a supervisor gives files to users")


def state_file(s: Stage) -> Path:
    return s.directory / "run" / STATE_FILE


async def tells(s: Stage, filling: Any) -> None:
    """The pages hear this of the memory, from the file as the server extension reads it."""
    await until(lambda: state_file(s).exists() and read_state(state_file(s))["filling"] == filling)


def test_writer_and_reader_mean_the_same_file() -> None:
    assert telling.STATE_FILE == STATE_FILE


async def test_arriving_memory_is_told_until_all_of_it_is_there(tmp_path: Path) -> None:
    machine = MachineWithSlowMemory()
    async with stage(tmp_path, machine) as s:
        await s.begin()
        await s.reaches(Phase.RUNNING)
        await tells(s, None)
        await s.scheduler.desire(s.id, Desired.SUSPENDED, actor="r", reason="idle")
        await s.outcome()

        await s.scheduler.desire(s.id, Desired.RUNNING, actor="alice", reason="back")
        await s.begin("resume")
        await tells(s, {"percent": None, "trouble": ""})
        machine.memory.progress = Progress(remaining=37, total=100)
        await tells(s, {"percent": 63, "trouble": ""})
        machine.memory.progress = Progress(remaining=37, total=100, trouble="the store is away")
        await tells(s, {"percent": 63, "trouble": "the store is away"})
        assert s.workload.phase is Phase.FILLING
        machine.memory.complete()
        await s.reaches(Phase.RUNNING)
        await tells(s, None)


async def test_whether_it_can_be_suspended_is_told_to_its_user_alone(tmp_path: Path) -> None:
    async with stage(tmp_path, WorkingMachine()) as s:
        await s.begin()
        await until(lambda: state_file(s).exists() and read_state(state_file(s))["suspend"]["can"])
        told = read_state(state_file(s))["suspend"]["sentence"]
        assert told.startswith("Can be suspended: 5 MB of memory, 2 s at most")
        found = state_file(s).stat()
        assert (found.st_uid, found.st_mode & 0o777) == (s.order.identity.uid, 0o600)  # type: ignore[union-attr]


async def test_what_is_in_the_way_is_told(tmp_path: Path) -> None:
    async with stage(tmp_path, MachineWithOpenGpuHandle()) as s:
        await s.begin()
        await until(
            lambda: state_file(s).exists() and read_state(state_file(s))["suspend"]["can"] is False
        )
        told = read_state(state_file(s))["suspend"]["sentence"]
        assert told == (
            "Cannot be suspended. trainer (process 7): uses an InfiniBand queue. Stop it."
        )


async def test_a_user_who_made_a_folder_of_the_file_loses_only_the_news(tmp_path: Path) -> None:
    async with stage(tmp_path, WorkingMachine()) as s:
        state_file(s).mkdir(parents=True)
        await s.begin()
        await s.reaches(Phase.RUNNING)
        await until(lambda: s.workload.signals.get("suspend_bytes"))
        await s.scheduler.desire(s.id, Desired.SUSPENDED, actor="r", reason="idle")
        await s.outcome()
        assert s.workload.phase is Phase.SUSPENDED
        assert state_file(s).is_dir()


UNKNOWN = {"filling": None, "suspend": {"can": None, "sentence": ""}}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", UNKNOWN),
        ("[1]", UNKNOWN),
        ("[" * 100_000, UNKNOWN),
        ('{"filling": 7, "suspend": []}', UNKNOWN),
        (
            '{"filling": {"percent": "9", "trouble": 1}, "suspend": {"can": 1, "sentence": null}}',
            {**UNKNOWN, "filling": {"percent": None, "trouble": ""}},
        ),
        (
            json.dumps({"filling": {"percent": 900}, "suspend": {"can": False, "sentence": "No."}}),
            {
                "filling": {"percent": None, "trouble": ""},
                "suspend": {"can": False, "sentence": "No."},
            },
        ),
    ],
)
def test_a_file_that_somebody_else_wrote_says_nothing_wrong(
    tmp_path: Path, content: str, said: Any
) -> None:
    (tmp_path / STATE_FILE).write_text(content)
    assert read_state(tmp_path / STATE_FILE) == said
    assert read_state(tmp_path / "nothing") == UNKNOWN
