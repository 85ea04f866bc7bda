"""The loop: outages, pauses between passes, and the program around it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from reclaimer.actions import Judged
from reclaimer.app import LONGEST_BACKOFF_SECONDS, Loop, ReclaimerApp, read_token
from scheduler_bridge.errors import Unavailable
from scheduler_bridge.model.phases import Desired
from scheduler_bridge.model.workload import Workload
from tests.hub_config.cli_bench import RECLAIMER_TOKEN, Service, running_service
from tests.reclaimer.bench import Bench, quiet, working


class ClockThatEnds:
    """Sleeping moves it; after so many sleeps it cancels the sleeper."""

    def __init__(self, bench: Bench, sleeps: int) -> None:
        self.bench, self.left = bench, sleeps
        self.slept: list[float] = []

    def now(self) -> float:
        return self.bench.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.left -= 1
        if self.left <= 0:
            raise asyncio.CancelledError
        self.bench.scheduler.advance(seconds)


class SchedulerAway:
    """Nobody answers, for as many calls as it was told; then the real one does."""

    def __init__(self, bench: Bench, calls: int) -> None:
        self.bench, self.left = bench, calls

    def __getattr__(self, name: str) -> object:
        return getattr(self.bench.scheduler, name)

    async def list(self, **arguments: object) -> object:
        if self.left > 0:
            self.left -= 1
            raise Unavailable("connection refused")
        return await self.bench.scheduler.list(**arguments)  # type: ignore[arg-type]


async def run(loop: Loop) -> None:
    with pytest.raises(asyncio.CancelledError):
        await loop.run()


async def test_an_outage_is_survived_and_is_never_a_reason_to_reclaim() -> None:
    bench = Bench()
    session = await bench.open_session()
    counting = await bench.live(session, 100)
    assert counting.idleness.suspend_at is not None

    bench.reclaimer.scheduler = SchedulerAway(bench, calls=4)  # type: ignore[assignment]
    clock = ClockThatEnds(bench, sleeps=6)
    await run(Loop(bench.reclaimer, 2.0, clock, jitter=lambda: 1.0))

    assert clock.slept == [4.0, 8.0, 16.0, 32.0, 2.0, 2.0]
    found = await bench.scheduler.get(session.id)
    assert found.desired is Desired.RUNNING
    assert found.idleness.suspend_at is None
    again = await bench.live(session, 60)
    assert again.desired is Desired.RUNNING
    assert (await bench.live(session, 40)).desired is Desired.SUSPENDED


async def test_the_pause_between_attempts_is_bounded_and_jittered() -> None:
    bench = Bench()
    bench.reclaimer.scheduler = SchedulerAway(bench, calls=1000)  # type: ignore[assignment]
    clock = ClockThatEnds(bench, sleeps=30)
    await run(Loop(bench.reclaimer, 2.0, clock))
    assert len(clock.slept) == 30
    assert max(clock.slept) <= LONGEST_BACKOFF_SECONDS * 1.1
    assert len(set(clock.slept[10:])) > 1


async def test_a_mistake_of_ours_in_one_pass_does_not_end_the_loop(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench()
    session = await bench.open_session()
    passes = 0

    class ReclaimerThatFailsOnce:
        async def run_once(self, now: float) -> tuple[Judged, ...]:
            nonlocal passes
            passes += 1
            if passes == 1:
                raise ZeroDivisionError("a mistake")
            await bench.report(session.id, quiet(now))
            return await bench.reclaimer.run_once(now)

    clock = ClockThatEnds(bench, sleeps=80)
    await run(Loop(ReclaimerThatFailsOnce(), 2.0, clock, jitter=lambda: 1.0))  # type: ignore[arg-type]
    assert passes == 80
    assert (await bench.scheduler.get(session.id)).desired is Desired.SUSPENDED
    assert "a mistake" in caplog.text


async def test_a_scheduler_that_never_answers_does_not_hold_up_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("reclaimer.app.PASS_SECONDS", 0.05)
    bench = Bench()

    class SchedulerThatHangs:
        async def list(self, **_: object) -> object:
            await asyncio.Event().wait()
            raise AssertionError

    bench.reclaimer.scheduler = SchedulerThatHangs()  # type: ignore[assignment]
    loop = Loop(bench.reclaimer, 2.0, ClockThatEnds(bench, sleeps=2), jitter=lambda: 1.0)
    async with asyncio.timeout(10):
        await run(loop)
    assert loop.failures == 2


def test_token_from_a_plain_file_from_json_or_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, several = tmp_path / "plain", tmp_path / "several.json"
    plain.write_text("abc\n")
    several.write_text(json.dumps({"admin": "x", "reclaimer": "def"}))
    assert read_token(str(plain)) == "abc"
    assert read_token(str(several)) == "def"
    monkeypatch.setenv("HUBERNATE_TOKEN", "ghi")
    assert read_token("") == "ghi"


@pytest.mark.parametrize("content", [None, "", "{}", "{broken"])
def test_no_token_ends_the_program_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None
) -> None:
    monkeypatch.delenv("HUBERNATE_TOKEN", raising=False)
    path = tmp_path / "token"
    if content is not None:
        path.write_text(content)
    with pytest.raises(SystemExit, match="token"):
        read_token(str(path))
    with pytest.raises(SystemExit, match="HUBERNATE_TOKEN"):
        read_token("")


def test_an_unknown_scheduler_names_those_that_are_known() -> None:
    app = ReclaimerApp(scheduler_class="htpp")
    with pytest.raises(SystemExit, match=r"no scheduler htpp; known: http, in-process"):
        app.open_scheduler()


def test_an_interval_of_nothing_is_refused() -> None:
    with pytest.raises(SystemExit, match="interval"):
        ReclaimerApp().initialize(["--interval=0"])


QUICK = """\
version: 1
defaults: {idle_after: 1s, warn_before: 0, minimum_age: 0}
signals: {cpu_window: 1s}
rules:
  - name: quick
"""


def test_the_program_suspends_an_idle_session_and_only_that_over_http(tmp_path: Path) -> None:
    """`python -m reclaimer` with its own token, which may not do much more."""
    token, policy = tmp_path / "token", tmp_path / "policy.yaml"
    token.write_text(RECLAIMER_TOKEN)
    policy.write_text(QUICK)
    with running_service() as service, (tmp_path / "log").open("wb") as log:
        idle, busy = service.run(service.session("ada")), service.run(service.session("bob"))
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "reclaimer", f"--scheduler-url={service.url}"),
                *(f"--token-file={token}", f"--policy={policy}", "--interval=0.2"),
            ],
            stderr=log,
        )
        try:
            suspended, working_on = _report_until_suspended(service, idle, busy)
        finally:
            process.terminate()
            assert process.wait(timeout=20) == 0
    assert (suspended.desired, suspended.desired_by) == (Desired.SUSPENDED, "reclaimer")
    assert "rule quick suspends after 1s" in suspended.desired_reason
    assert working_on.desired is Desired.RUNNING
    assert "is running a cell" in working_on.idleness.reason
    written = (tmp_path / "log").read_text()
    assert "suspending " in written
    assert not any(word in written for word in ("Traceback", "DEBUG", RECLAIMER_TOKEN))


def _report_until_suspended(
    service: Service, idle: Workload, busy: Workload
) -> tuple[Workload, Workload]:
    """Send telemetry of both until the first is to be suspended; the deadline is generous."""
    since, seen = time.time(), idle
    while time.time() < since + 30 and seen.desired is not Desired.SUSPENDED:
        service.report(idle, quiet(time.time(), since=since))
        service.report(busy, working(time.time()))
        seen = service.next_state(seen, seconds=0.2)
    return seen, service.do(lambda s: s.get(busy.id))


async def test_the_program_ends_on_sigterm(tmp_path: Path) -> None:
    """Started as a program against a port where nobody listens: it keeps trying until SIGTERM."""
    token = tmp_path / "token"
    token.write_text("abc")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "reclaimer", "--scheduler-url=http://127.0.0.1:9/services/x"),
        *(f"--token-file={token}", "--interval=0.05", "--log-level=INFO"),
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    assert process.stderr is not None
    async with asyncio.timeout(30):
        said = b""
        while b"nobody is suspended meanwhile" not in said:
            line = await process.stderr.readline()
            assert line, said.decode()
            said += line
        process.send_signal(signal.SIGTERM)
        rest = await process.stderr.read()
        assert await process.wait() == 0
    assert b"Traceback" not in said + rest
    assert b"DEBUG" not in said + rest
