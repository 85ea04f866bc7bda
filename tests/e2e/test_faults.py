"""What happens when each part fails. Nothing is lost, no GPU is leaked, nothing runs twice."""

from __future__ import annotations

import asyncio
import os
import signal

import psutil
import pytest

from hub_config.demo.browserless import Researcher, StoryError, log_in
from hub_config.demo.stage import Stage
from spawner.supervisor.status import read_status
from tests.e2e.scenes import (
    end,
    open_with_a_secret,
    read_secret,
    resume,
    shown,
    suspend,
    until,
    until_shown,
    workload,
)

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.criu,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(180),
]


def supervisor_of(stage: Stage, workload_id: str) -> psutil.Process:
    """The supervisor that looks after a workload, as it says itself."""
    status = read_status(stage.state / "run" / workload_id)
    assert status is not None
    assert status.supervisor is not None
    return psutil.Process(status.supervisor.pid)


async def hub_answers(stage: Stage, user: Researcher) -> None:
    """Wait until the Hub has come back."""

    async def claim() -> bool:
        try:
            return (await user.http.get(f"{stage.url}/hub/api/")).status_code == 200
        except Exception:
            return False

    await until(claim, timeout=60, what="the Hub answers")


async def leases(stage: Stage) -> int:
    """How many GPUs are leased."""
    return len((await stage.hubernate_json("nodes", "--json"))["holders"])


async def test_supervisor_killed_session_lives_and_can_be_suspended(
    two_gpus: Stage, alice: Researcher
) -> None:
    kernel_id, word = await open_with_a_secret(alice)
    mine = await workload(two_gpus, "alice")
    victim = supervisor_of(two_gpus, str(mine["id"]))
    victim.kill()
    assert await read_secret(alice, kernel_id) == word

    async def adopted() -> bool:
        try:
            return supervisor_of(two_gpus, str(mine["id"])).pid != victim.pid
        except psutil.NoSuchProcess:
            return False

    await until(adopted, timeout=60, what="a new supervisor adopts the session")
    await suspend(alice)
    await resume(alice)
    assert await read_secret(alice, kernel_id) == word
    await end(alice)
    assert await leases(two_gpus) == 0


async def test_scheduler_killed_while_a_session_runs(two_gpus: Stage, alice: Researcher) -> None:
    kernel_id, word = await open_with_a_secret(alice)
    before = await workload(two_gpus, "alice")
    await two_gpus.kill("scheduler")
    assert await read_secret(alice, kernel_id) == word

    async def back() -> bool:
        try:
            return (await workload(two_gpus, "alice"))["lease"] == before["lease"] or True
        except (StoryError, LookupError):
            return False

    await until(back, timeout=60, what="the scheduler is back and knows the session")
    after = await workload(two_gpus, "alice")
    assert after["phase"] == "running"
    assert after["lease"]["id"] == before["lease"]["id"]  # type: ignore[index]
    await suspend(alice)
    await resume(alice)
    assert await read_secret(alice, kernel_id) == word
    await end(alice)


async def test_store_away_during_a_suspend_loses_nothing(
    two_gpus: Stage, alice: Researcher
) -> None:
    kernel_id, word = await open_with_a_secret(alice)
    await two_gpus.kill("store")
    await alice.act("suspend")

    async def settled() -> bool:
        return (await shown(alice)).get("phase") in {"running", "suspended"}

    await until_shown(alice, "suspending", timeout=20)
    await until(settled, timeout=120, what="the suspend ends one way or the other")
    if (await shown(alice))["phase"] == "suspended":
        await alice.until_stopped()
        await resume(alice)
    assert await read_secret(alice, kernel_id) == word
    await end(alice)


def criu_below(supervisor: psutil.Process) -> psutil.Process | None:
    """The CRIU that dumps for this supervisor, if there is one now."""
    for child in supervisor.children(recursive=True):
        try:
            line = child.cmdline()
        except psutil.Error:
            continue
        if "dump" in line and any(part.endswith("/criu") for part in line):
            return child
    return None


async def kill_criu_in_the_hold(stage: Stage, supervisor: psutil.Process) -> None:
    """As soon as it dumps for this supervisor, before anything is committed."""

    async def criu() -> psutil.Process | None:
        return criu_below(supervisor)

    process = await until(criu, timeout=30, what="CRIU runs", every=0.002)
    store = stage.hold("store")  # nothing can be committed from here on
    try:
        process.kill()
    finally:
        os.kill(store, signal.SIGCONT)


async def with_ballast(stage: Stage, user: Researcher, kernel_id: str) -> psutil.Process:
    """A session whose dump takes a moment; returns its supervisor."""
    async with user.kernel(kernel_id) as kernel:
        await kernel.run("import os; ballast = os.urandom(300_000_000)")
    return supervisor_of(stage, str((await workload(stage, user.name))["id"]))


async def test_criu_killed_in_the_hold_lets_the_session_go_on(
    two_gpus: Stage, alice: Researcher
) -> None:
    kernel_id, word = await open_with_a_secret(alice)
    supervisor = await with_ballast(two_gpus, alice, kernel_id)
    await alice.act("suspend")
    await kill_criu_in_the_hold(two_gpus, supervisor)
    await until_shown(alice, "running", timeout=90)
    assert await read_secret(alice, kernel_id) == word
    await suspend(alice)
    await resume(alice)
    assert await read_secret(alice, kernel_id) == word
    await end(alice)


async def test_a_session_that_outlives_a_stop_at_the_hub_is_shown_there_again(
    two_gpus: Stage, alice: Researcher
) -> None:
    kernel_id, word = await open_with_a_secret(alice)
    supervisor = await with_ballast(two_gpus, alice, kernel_id)
    stop = asyncio.create_task(
        alice.request("DELETE", f"{alice.api}/users/alice/server", expect=(202, 204))
    )
    await kill_criu_in_the_hold(two_gpus, supervisor)
    await stop

    async def shown_again() -> bool:
        rows = await alice.sessions()
        return [(r["phase"], r["is_connected"], r["actions"]) for r in rows] == [
            ("running", True, ["suspend", "stop"])
        ]

    await until(shown_again, timeout=60, what="the Hub has the session again, without a click")
    assert await read_secret(alice, kernel_id) == word
    await end(alice)


async def test_hub_and_reclaimer_down_during_a_suspend(two_gpus: Stage, alice: Researcher) -> None:
    kernel_id, word = await open_with_a_secret(alice)
    hub, reclaimer = two_gpus.hold("hub"), two_gpus.hold("reclaimer")
    try:
        await two_gpus.hubernate("suspend", "alice")

        async def suspended() -> bool:
            return (await workload(two_gpus, "alice"))["phase"] == "suspended"

        await until(suspended, timeout=60, what="suspended without Hub and reclaimer")
        assert await leases(two_gpus) == 0
    finally:
        os.kill(hub, signal.SIGCONT)
        os.kill(reclaimer, signal.SIGCONT)
    await alice.until_stopped()
    await resume(alice)
    assert await read_secret(alice, kernel_id) == word
    await end(alice)


async def test_hub_killed_during_a_suspend(two_gpus: Stage, alice: Researcher) -> None:
    kernel_id, word = await open_with_a_secret(alice)
    store = two_gpus.hold("store")
    try:
        await alice.act("suspend")
        await until_shown(alice, "suspending", timeout=20)
        await two_gpus.kill("hub")
    finally:
        os.kill(store, signal.SIGCONT)
    await hub_answers(two_gpus, alice)
    await until_shown(alice, "suspended", timeout=90)
    await alice.until_stopped()
    await resume(alice)
    assert await read_secret(alice, kernel_id) == word
    await end(alice)


async def test_hub_killed_in_the_middle_of_a_start_leaks_no_gpu(
    two_gpus: Stage, alice: Researcher
) -> None:
    await alice.request(
        "POST",
        f"{alice.api}/users/alice/server",
        json={"profile": "gpu-1"},
        expect=(201, 202),
    )

    async def leased() -> bool:
        return await leases(two_gpus) == 1

    await until(leased, timeout=20, what="the GPU is leased")
    await two_gpus.kill("hub")
    await hub_answers(two_gpus, alice)
    again = await log_in(two_gpus.url, "alice", two_gpus.password())
    # Either the scheduler has had the server started again by now, or this request does it.
    await again.request(
        "POST",
        f"{again.api}/users/alice/server",
        json={"profile": "gpu-1"},
        expect=(201, 202, 400),
    )
    await again.until_ready()
    assert await leases(two_gpus) == 1
    kernel_id = await again.new_kernel()
    async with again.kernel(kernel_id) as kernel:
        assert await kernel.run("print(2 + 2)") == "4"
    await end(again)
    assert await leases(two_gpus) == 0
    await again.http.aclose()
