"""What this machine shows of a session, from files and /proc alone."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from scheduler_bridge.model.phases import Kind, Phase
from scheduler_bridge.model.workload import (
    Grant,
    Lease,
    LeaseId,
    SnapshotRef,
    Workload,
    WorkloadId,
    WorkloadSpec,
)
from snapshot import proc
from snapshot.model import Process, StoreSettings, Tools
from spawner.hosting import Launch, LaunchFailed, NotReachable, Seen
from spawner.local import SINGLEUSER_ARGUMENTS, LocalHost, observe_folder, wait_for_end
from spawner.local_order import ORDER_FILE
from spawner.profiles_model import Profile
from spawner.site import LocalSite
from spawner.supervisor.order import write_order
from spawner.supervisor.status import STATUS_FILE, Outcome, Status, write_status

GONE = Process(2**22 - 1, 1)


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    program = subprocess.Popen(["sleep", "120"])
    yield program
    program.kill()
    program.wait(timeout=5)


def living(program: subprocess.Popen[bytes]) -> Process:
    found = proc.identify(program.pid)
    assert found is not None
    return found


def test_nothing_there_is_nothing_seen(tmp_path: Path) -> None:
    assert observe_folder(tmp_path) == Seen()
    assert observe_folder(tmp_path / "none") == Seen()
    assert Seen().exit_code == 0, "the Hub's word for unknown"


def test_half_a_status_is_nothing_known(tmp_path: Path) -> None:
    (tmp_path / STATUS_FILE).write_text('{"workload_id": ')
    assert observe_folder(tmp_path) == Seen()


@pytest.mark.parametrize(
    ("supervisor", "sandbox", "live", "ready"),
    [(True, True, True, True), (False, True, True, False), (False, False, False, False)],
)
def test_who_lives(
    tmp_path: Path,
    sleeper: subprocess.Popen[bytes],
    supervisor: bool,
    sandbox: bool,
    live: bool,
    ready: bool,
) -> None:
    me = living(sleeper)
    write_status(
        tmp_path,
        Status("w", "running", me if supervisor else GONE, me if sandbox else GONE, host_port=1),
    )
    seen = observe_folder(tmp_path)
    assert (seen.supervisor_alive, seen.sandbox_alive) == (supervisor, sandbox)
    assert (seen.is_live, seen.is_ready, seen.is_suspended) == (live, ready, False)


def test_a_pid_given_to_somebody_else_is_not_the_session(
    tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    other = Process(sleeper.pid, living(sleeper).started - 1)
    write_status(tmp_path, Status("w", "running", other, other, host_port=1))
    assert not observe_folder(tmp_path).is_live


def test_what_an_earlier_supervisor_left_is_not_the_word_of_the_new_one(
    tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    write_status(tmp_path, Status("w", "suspended", GONE, GONE, outcome=Outcome.SUSPENDED))
    seen = observe_folder(tmp_path, living(sleeper))
    assert seen.supervisor_alive and seen.outcome is None and not seen.is_ready
    write_status(tmp_path, Status("w", "running", living(sleeper), GONE, host_port=1))
    assert observe_folder(tmp_path, living(sleeper)).is_ready


def test_an_outcome_is_the_end_although_its_writer_is_still_leaving(
    tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    write_status(
        tmp_path, Status("w", "suspended", living(sleeper), GONE, outcome=Outcome.SUSPENDED)
    )
    seen = observe_folder(tmp_path, living(sleeper))
    assert seen.is_suspended and not seen.is_live


@pytest.mark.parametrize(
    ("outcome", "code", "told"),
    [
        (Outcome.SUSPENDED, None, 0),
        (Outcome.STOPPED, 143, 0),
        (Outcome.EXITED, 3, 3),
        (Outcome.EXITED, None, 0),
        (Outcome.FAILED, None, 1),
        (None, None, 1),
    ],
)
def test_the_exit_code_that_the_hub_hears(
    outcome: Outcome | None, code: int | None, told: int
) -> None:
    assert Seen(Status("w", "x", outcome=outcome, exit_code=code)).exit_code == told


async def test_the_end_of_a_process_that_is_nobodys_child(
    sleeper: subprocess.Popen[bytes],
) -> None:
    waiting = asyncio.create_task(wait_for_end(living(sleeper)))
    await asyncio.sleep(0)
    assert not waiting.done()
    sleeper.kill()
    await asyncio.wait_for(waiting, 5)
    await asyncio.wait_for(wait_for_end(GONE), 5)


async def test_a_wait_that_is_given_up_does_not_deafen_the_next(
    sleeper: subprocess.Popen[bytes],
) -> None:
    """The next wait gets the same descriptor number; a reader left behind would swallow its event."""
    for _ in range(3):
        given_up = asyncio.create_task(wait_for_end(living(sleeper)))
        await asyncio.sleep(0)
        given_up.cancel()
        await asyncio.gather(given_up, return_exceptions=True)
    waiting = asyncio.create_task(wait_for_end(living(sleeper)))
    await asyncio.sleep(0)
    sleeper.kill()
    await asyncio.wait_for(waiting, 5)


def site(tmp_path: Path, **changes: object) -> LocalSite:
    (tmp_path / "homes").mkdir(exist_ok=True)
    return LocalSite(
        python=sys.executable,
        environment_directory="/venv",
        run_directory=str(tmp_path / "run"),
        homes_directory=str(tmp_path / "homes"),
        users_file=str(tmp_path / "users.json"),
        scheduler_url="http://127.0.0.1:1",
        tools=Tools((), (), ()),
        store=StoreSettings("directory", str(tmp_path / "store")),
        **changes,  # type: ignore[arg-type]
    )


def launch(user: str = "ada", mode: str = "start") -> Launch:
    spec = WorkloadSpec(Kind.SESSION, user, user)
    lease = Lease(LeaseId("l"), WorkloadId("w"), 1, "here", (), 0.0, 0.0)
    workload = Workload(
        WorkloadId("w"), "k", spec, Phase.STARTING, 0, 0, 1, snapshot=SnapshotRef("m", 1, 1)
    )
    return Launch(
        mode, workload, Grant(lease, "secret"), ("x",), {"JUPYTERHUB_API_TOKEN": "t"}, "/user/ada/"
    )


def test_a_resume_names_its_snapshot_and_a_start_none(tmp_path: Path) -> None:
    host = LocalHost(site(tmp_path))
    assert host._order(launch(mode="resume")).snapshot == "m"
    fresh = host._order(launch())
    assert fresh.snapshot == "" and fresh.ready_path == "/user/ada/api"


async def test_a_user_who_cannot_have_a_sandbox_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(LaunchFailed, match="system account"):
        await LocalHost(site(tmp_path)).launch(launch("root"))


async def test_nobody_in_the_folder_cannot_be_asked(tmp_path: Path) -> None:
    host = LocalHost(site(tmp_path))
    with pytest.raises(NotReachable):
        await host.ask("w", "suspend", actor="a", reason="r")
    await asyncio.wait_for(host.wait_end("w"), 5)
    assert host.remembered_token("w") == ""


def test_why_it_cannot_be_frozen(tmp_path: Path) -> None:
    assert LocalHost(site(tmp_path)).why_not_freezable("w") == ""
    told = site(tmp_path, freezable=False, not_freezable_because="There is no CRIU.")
    assert LocalHost(told).why_not_freezable("w") == "There is no CRIU."


def test_a_size_that_is_never_suspended_says_so_to_supervisor_and_hub(tmp_path: Path) -> None:
    reason = Profile("big", "Big", "", never_suspends=True).why_not_freezable
    assert Profile("small", "Small", "").why_not_freezable == ""
    host = LocalHost(site(tmp_path))
    order = host._order(replace(launch(), not_freezable_because=reason))
    assert order.not_freezable_because == reason
    assert "Big are never suspended" in reason
    assert host._order(launch()).not_freezable_because == ""
    folder = Path(order.directory)
    folder.mkdir(parents=True, exist_ok=True)
    write_order(order, folder / ORDER_FILE)
    assert host.why_not_freezable(order.workload_id) == reason


def test_the_server_inside_is_never_ended_by_a_clock_and_uses_no_tcp_to_kernels() -> None:
    assert "--KernelManager.transport=ipc" in SINGLEUSER_ARGUMENTS
    for off in ("cull_idle_timeout=0", "cull_inactive_timeout=0", "no_activity_timeout=0"):
        assert any(argument.endswith(off) for argument in SINGLEUSER_ARGUMENTS)
