"""The story, scene by scene. Each scene raises `StoryError` unless what it promises really held."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from hub_config.demo import cells
from hub_config.demo.browserless import Researcher, StoryError
from hub_config.demo.stage import Stage

PROFILE = "gpu-1"


@dataclass(slots=True)
class Report:
    """Timings in seconds and sentences, in the order in which they happened."""

    lines: list[tuple[str, float | None, str]] = field(default_factory=list)

    def add(self, what: str, seconds: float | None, detail: str = "") -> None:
        self.lines.append((what, seconds, detail))
        shown = "" if seconds is None else f"{seconds:6.2f} s"
        print(f"  {what:<52} {shown:>9}  {detail}", flush=True)


def expect(held: bool, sentence: str) -> None:
    """Raise `StoryError` with the sentence unless it held."""
    if not held:
        raise StoryError(f"did not hold: {sentence}")


@dataclass(slots=True)
class Session:
    """Alice's session as the story goes on."""

    alice: Researcher
    kernel_id: str = ""
    terminal: str = ""
    device: str = ""


async def phase_of(alice: Researcher) -> dict[str, Any]:
    """Alice's default session as her home page shows it ({} when there is none)."""
    for session in await alice.sessions():
        if session["server"] == "":
            return session
    return {}


async def until_phase(alice: Researcher, phase: str, *, timeout: float) -> dict[str, Any]:
    """Wait until the home page shows the phase."""
    seen: dict[str, Any] = {}
    try:
        async with asyncio.timeout(timeout):
            while True:
                seen = await phase_of(alice)
                if seen.get("phase") == phase:
                    return seen
                await asyncio.sleep(0.05)
    except TimeoutError as error:
        raise StoryError(f"not {phase} within {timeout} s; the page says {seen}") from error


async def open_and_compute(session: Session, report: Report) -> None:
    """Open a notebook on one GPU and fill it with things that are hard to keep."""
    alice = session.alice
    started = monotonic()
    await alice.open({"profile": PROFILE})
    session.kernel_id = await alice.new_kernel()
    async with alice.kernel(session.kernel_id) as kernel:
        answer = await kernel.run("print(6 * 7)")
        expect(answer == "42", "a first cell answers 42")
        report.add("open a notebook on 1 GPU, first cell", monotonic() - started)
        *_, session.device = (await kernel.run(cells.PREPARE)).split()
    session.terminal = await alice.new_terminal()
    async with alice.terminal(session.terminal) as terminal:
        await terminal.type("mark=still-here; echo ready-$mark\n")
        await terminal.until("ready-still-here")
    report.add("64 MB of floats, generator, thread, child, terminal", None, session.device)


async def job_waits(stage: Stage, report: Report) -> str:
    """Bob submits a training job while Alice holds the only GPU; returns its id."""
    job = await stage.hubernate_json(
        *("submit", "--user", "bob", "--gpus", "1", "--name", "train", "--json"),
        *("--", "python", "-u", "-c", cells.TRAIN),
    )
    why = await stage.hubernate("why", job["id"])
    report.add("bob submits a training job; it waits", None, why.strip().splitlines()[0])
    return str(job["id"])


async def job_done(stage: Stage, job_id: str, *, timeout: float) -> dict[str, Any]:
    """Wait for the job's end and return it. Raises `StoryError` when it failed."""
    async with asyncio.timeout(timeout):
        while True:
            jobs = await stage.hubernate_json("jobs", "--all", "--json")
            job = next(job for job in jobs if job["id"] == job_id)
            if job["phase"] == "succeeded":
                return dict(job)
            if job["phase"] in {"failed", "cancelled"}:
                raise StoryError(f"the job ended: {job}")
            await asyncio.sleep(0.2)


async def walk_away(stage: Stage, session: Session, job_id: str, report: Report) -> None:
    """Nobody types; the session is suspended, and the job has its GPU in between."""
    started = monotonic()
    shown = await until_phase(session.alice, "suspended", timeout=stage.idle_after + 40)
    await session.alice.until_stopped()
    seconds = monotonic() - started
    report.add("idle: frozen, stored in S3, GPU given back", seconds, f"{stage.idle_note}")
    started = monotonic()
    job = await job_done(stage, job_id, timeout=60)
    log = await stage.hubernate("logs", job["id"])
    found = re.search(r"device /dev/(\S+) (\S+)", log)
    expect(bool(found) and found is not None and found[1] == session.device, "the job had the GPU")
    expect("trained: weight" in log, "the job trained to its end")
    report.add("the job ran on that GPU", monotonic() - started, f"{found[2] if found else ''}")
    expect(bool(shown), "the suspended session is on the home page")


async def come_back(
    session: Session, report: Report, *, what: str, until: str = "to the answered cell"
) -> None:
    """Press Resume and run a cell in the same kernel."""
    alice = session.alice
    started = monotonic()
    await alice.act("resume")
    await alice.until_ready()
    async with alice.kernel(session.kernel_id) as kernel:
        await kernel.run("pass")
        report.add(what, monotonic() - started, f"from click {until}")
    ids = [kernel["id"] for kernel in await alice.kernels()]
    expect(ids == [session.kernel_id], "the same kernel id, and only that one")


async def all_is_there(session: Session, report: Report, *, generator: int, child: int) -> None:
    """Variables, generator, thread, child process and terminal go on where they were."""
    async with session.alice.kernel(session.kernel_id) as kernel:
        answer = await kernel.run(cells.CHECK)
    wanted = f"True {generator} True {child}"
    expect(answer == wanted, f"the kernel goes on: wanted {wanted!r}, got {answer!r}")
    async with session.alice.terminal(session.terminal) as terminal:
        await terminal.type("echo again-$mark\n")
        await terminal.until("again-still-here")
    report.add("same kernel, variables, generator, thread, child, terminal", None)


async def suspend_in_a_loop(session: Session, report: Report) -> None:
    """Suspend by hand in the middle of a cell; it goes on after the resume."""
    alice = session.alice
    async with alice.kernel(session.kernel_id) as kernel:
        cell = await kernel.send(cells.LOOP)
        await kernel.until_output(cell, r"10/40")
        started = monotonic()
        await alice.act("suspend")
    await until_phase(alice, "suspended", timeout=30)
    await alice.until_stopped()
    report.add("Suspend now, in the middle of a loop", monotonic() - started)
    await come_back(
        session, report, what="Resume; the loop goes on", until="to the loop's last step"
    )
    async with alice.kernel(session.kernel_id) as kernel:
        answer = await kernel.run(cells.LOOP_CHECK)
    expect(answer == "True", "every step of the loop ran exactly once")


async def store_dies(stage: Stage, session: Session, report: Report) -> None:
    """The S3 server is killed during a suspend; nothing is lost, whatever the outcome."""
    alice = session.alice
    await alice.act("suspend")
    await until_phase(alice, "suspending", timeout=10)
    killed = await stage.kill("store")
    async with asyncio.timeout(90):
        while True:
            shown = await phase_of(alice)
            if shown.get("phase") in {"running", "suspended"}:
                break
            await asyncio.sleep(0.05)
    if shown["phase"] == "suspended":
        await alice.until_stopped()
        await come_back(session, report, what="Resume after the store was killed")
    note = "kept running" if shown["phase"] == "running" else "suspended after all"
    report.add("S3 server killed during a suspend", None, f"pid {killed}; session {note}")


async def play(stage: Stage, alice: Researcher, report: Report) -> None:
    """The whole story in order."""
    session = Session(alice)
    await open_and_compute(session, report)
    job_id = await job_waits(stage, report)
    await walk_away(stage, session, job_id, report)
    await come_back(session, report, what="Resume")
    await all_is_there(session, report, generator=5, child=2)
    await suspend_in_a_loop(session, report)
    await store_dies(stage, session, report)
    await all_is_there(session, report, generator=6, child=3)
