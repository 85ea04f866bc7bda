"""Everybody who looks, however late, reads the whole story."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from scheduler_bridge.model.phases import Kind, Phase
from scheduler_bridge.model.workload import Workload, WorkloadId, WorkloadSpec
from spawner.progress import ProgressLog, phase_line, place_kept_sentence, waiting_sentence

QUEUED = Workload(
    WorkloadId("w"), "k", WorkloadSpec(Kind.SESSION, "ada", "ada"), Phase.QUEUED, 0, 0, 1
)
JARGON = ("pod", "node", "schedul", "kube", "container", "lease", "epoch", "null", "None")


async def everything(log: ProgressLog) -> list[str]:
    return [event.message async for event in log.read()]


async def test_early_late_and_second_readers_read_the_same() -> None:
    log = ProgressLog()
    early = asyncio.create_task(everything(log))
    log.say(5, "one")
    await asyncio.sleep(0)
    middle = asyncio.create_task(everything(log))
    await asyncio.sleep(0)
    log.say(10, "two")
    log.close()
    story = ["one", "two"]
    assert await asyncio.gather(early, middle, everything(log), everything(log)) == [story] * 4


async def test_a_reader_that_leaves_takes_nothing_with_it() -> None:
    log = ProgressLog()
    log.say(1, "one")
    reader = log.read()
    assert (await anext(reader)).message == "one"
    await reader.aclose()  # type: ignore[attr-defined]
    log.close()
    assert await everything(log) == ["one"]


def test_repeats_add_nothing_and_the_bar_never_goes_back() -> None:
    log = ProgressLog()
    for percent, text in ((30, "a"), (30, "a"), (10, "b"), (30, "b")):
        log.say(percent, text)
    assert [(e.percent, e.message) for e in log.history] == [(30, "a"), (30, "b")]


def test_html_is_escaped() -> None:
    log = ProgressLog()
    log.say(1, "<script>")
    assert log.history[0].as_hub_event()["html_message"] == "&lt;script&gt;"


@pytest.mark.parametrize(
    ("position", "reason", "sentence"),
    [
        (7, "all 4 GPUs are in use.", "You are number 7. All 4 GPUs are in use."),
        (1, "", "You are next."),
        (None, "", "You are in the queue."),
    ],
)
def test_the_place_in_the_queue(position: int | None, reason: str, sentence: str) -> None:
    queued = dataclasses.replace(QUEUED, position=position, wait_reason=reason)
    assert waiting_sentence(queued) == sentence
    assert "your place is kept" in place_kept_sentence(queued)


@pytest.mark.parametrize("phase", [p for p in Phase if p not in (Phase.STOPPED, Phase.FAILED)])
def test_no_jargon(phase: Phase) -> None:
    percent, text = phase_line(dataclasses.replace(QUEUED, phase=phase))
    assert 0 < percent < 100
    assert not [word for word in JARGON if word in text.lower()]
