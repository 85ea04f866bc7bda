"""The life of a session under its supervisor, on machines that fail in one way each."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from scheduler_bridge.model.phases import Desired, Phase
from snapshot.model import Process
from spawner.supervisor import client
from spawner.supervisor.inside import IDENTITY_FILE, RESUME_FILE
from spawner.supervisor.program import AlreadySupervisedError, supervise
from spawner.supervisor.status import Outcome
from spawner.supervisor.wishes import Action, Wishes
from tests.builders.supervisor import Stage, stage, until
from tests.fakes.machine import (
    MachineThatCrashesAfterTheCommit,
    MachineThatLosesItsSupervisorAfterTheCommit,
    MachineWhoseStoreComesBackLater,
    MachineWhoseStoreIsDown,
    MachineWithATreeThatNobodyKnows,
    MachineWithDeafServer,
    MachineWithOpenGpuHandle,
    MachineWithoutNamespaces,
    WorkingMachine,
)

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="a supervisor gives files to users")


async def test_a_session_is_suspended_and_resumed_with_its_snapshot(tmp_path: Path) -> None:
    async with stage(tmp_path, WorkingMachine()) as s:
        await s.begin()
        workload = await s.reaches(Phase.RUNNING)
        assert s.status.host_port == s.machine.port
        assert workload.log_path.endswith("supervisor.log")

        await s.scheduler.desire(s.id, Desired.SUSPENDED, actor="reclaimer", reason="idle")
        assert await s.outcome() is Outcome.SUSPENDED
        assert s.status.outcome is Outcome.SUSPENDED
        assert s.status.snapshot == s.workload.snapshot.key  # type: ignore[union-attr]
        assert s.workload.phase is Phase.SUSPENDED
        assert s.workload.lease is None

        await s.scheduler.desire(s.id, Desired.RUNNING, actor="alice", reason="back")
        await s.begin("resume")
        await s.reaches(Phase.RUNNING)
        assert s.scheduler.moves[-2:] == ["filling", "running"]
        assert s.status.notes == ("history.sqlite grew",)
        left = json.loads((s.directory / "run" / RESUME_FILE).read_text())
        assert left["epoch"] == s.order.epoch  # type: ignore[union-attr]
        assert left["notes"] == ["history.sqlite grew"]
        told = json.loads((s.directory / "run" / IDENTITY_FILE).read_text())["environment"]
        assert told == {"JUPYTERHUB_API_TOKEN": "new", "HUBERNATE_WORKLOAD": "w"}


async def test_two_suspends_are_numbered_upwards(tmp_path: Path) -> None:
    async with stage(tmp_path, WorkingMachine()) as s:
        seen = []
        for mode in ("start", "resume"):
            await s.begin(mode)
            await s.reaches(Phase.RUNNING)
            await s.scheduler.desire(s.id, Desired.SUSPENDED, actor="r", reason="idle")
            await s.outcome()
            reference = s.workload.snapshot
            assert reference is not None
            seen.append((reference.epoch, reference.sequence))
            await s.scheduler.desire(s.id, Desired.RUNNING, actor="alice", reason="back")
        assert seen[0] < seen[1]


async def test_a_sandbox_that_does_not_start_is_a_failure_with_a_remedy(tmp_path: Path) -> None:
    async with stage(tmp_path, MachineWithoutNamespaces()) as s:
        await s.begin()
        assert await s.outcome() is Outcome.FAILED
        assert s.workload.phase is Phase.FAILED
        assert s.workload.last_error == "The namespaces could not be made."
        assert s.status.remedy == "Run as root."


async def test_a_server_that_never_answers_is_ended(tmp_path: Path) -> None:
    async with stage(tmp_path, MachineWithDeafServer()) as s:
        await s.begin(ready_seconds=0.2)
        assert await s.outcome() is Outcome.FAILED
        assert "did not answer within 0.2 s" in s.workload.last_error
        assert s.machine.is_empty(s.machine.only_tree().process)


async def test_a_tree_that_cannot_be_frozen_goes_on_and_says_why(tmp_path: Path) -> None:
    async with stage(tmp_path, MachineWithOpenGpuHandle()) as s:
        await s.begin()
        await s.reaches(Phase.RUNNING)
        await s.scheduler.desire(s.id, Desired.SUSPENDED, actor="reclaimer", reason="idle")
        await until(lambda: s.status.error)
        assert "InfiniBand" in s.status.error
        assert s.machine.is_alive(s.machine.only_tree().process)
        await until(lambda: "InfiniBand" in s.workload.last_error)
        assert s.workload.phase is Phase.RUNNING
        await until(lambda: s.workload.signals.get("freezable") is False)


async def test_a_failed_freeze_is_undone_and_asked_for_again_by_root(tmp_path: Path) -> None:
    async with stage(tmp_path, MachineWhoseStoreIsDown()) as s:
        await s.begin()
        await s.reaches(Phase.RUNNING)
        await s.scheduler.desire(s.id, Desired.SUSPENDED, actor="reclaimer", reason="idle")
        await until(lambda: s.status.error == "The store does not answer.")
        assert str(s.directory) in s.machine.connected
        assert s.machine.attempts == 1

        # The scheduler's wish rests for a while; root's is tried at once.
        s.machine.store_is_up = True
        await client.ask(s.directory, "suspend", actor="root", reason="now")
        assert await s.outcome() is Outcome.SUSPENDED
        assert s.machine.attempts == 2
        assert s.workload.phase is Phase.SUSPENDED


async def test_suspend_works_with_the_scheduler_away(tmp_path: Path) -> None:
    async with stage(tmp_path, WorkingMachine()) as s:
        await s.begin()
        await s.reaches(Phase.RUNNING)
        s.scheduler.is_away = True
        s.wishes.ask(Action.SUSPEND, reason="SIGTERM", actor="signal")
        await until(lambda: s.status.facts.get("ending") == "suspended")
        assert s.status.snapshot
        s.scheduler.is_away = False
        assert await s.outcome() is Outcome.SUSPENDED
        assert s.scheduler.moves == ["running", "suspending", "suspended"]
        assert s.workload.snapshot is not None


async def test_moves_wait_in_order_for_a_scheduler_that_is_away(tmp_path: Path) -> None:
    async with stage(tmp_path, WorkingMachine()) as s:
        await s.make_order()
        s.scheduler.is_away = True
        await s.begin()
        await until(lambda: s.status.phase == "running")
        assert s.workload.phase is Phase.STARTING
        s.scheduler.is_away = False
        await s.reaches(Phase.RUNNING)


async def test_a_supervisor_that_died_is_replaced_without_touching_the_tree(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path, WorkingMachine()) as s:
        await s.begin()
        await s.reaches(Phase.RUNNING)
        tree = s.machine.only_tree()
        await s.kill()
        await s.begin("adopt")
        await until(lambda: s.machine.mended)
        # Also its connection stays as it was.
        assert tree.log.count("connected") == 1
        assert s.machine.only_tree() is tree
        await s.scheduler.desire(s.id, Desired.SUSPENDED, actor="r", reason="idle")
        assert await s.outcome() is Outcome.SUSPENDED


@pytest.mark.parametrize(
    "make", [MachineThatLosesItsSupervisorAfterTheCommit, MachineWhoseStoreComesBackLater]
)
async def test_a_supervisor_that_died_after_the_commit_left_a_suspended_session(
    tmp_path: Path, make: type[MachineThatLosesItsSupervisorAfterTheCommit]
) -> None:
    machine = make()
    async with stage(tmp_path, machine) as s:
        await s.begin()
        await s.reaches(Phase.RUNNING)
        await s.scheduler.desire(s.id, Desired.SUSPENDED, actor="r", reason="idle")
        await machine.committed.wait()
        await s.kill()
        assert s.status.outcome is None
        await s.begin("adopt")
        assert await s.outcome() is Outcome.SUSPENDED
        assert s.workload.phase is Phase.SUSPENDED
        assert s.workload.snapshot is not None


async def test_a_tree_that_ended_unwatched_is_not_called_suspended(tmp_path: Path) -> None:
    async with stage(tmp_path, WorkingMachine()) as s:
        await s.begin()
        await s.reaches(Phase.RUNNING)
        await s.kill()
        s.machine.exit(3)
        await s.begin("adopt")
        assert await s.outcome() is Outcome.EXITED
        assert s.status.exit_code == 3
        assert s.workload.phase is Phase.STOPPED


async def test_a_tree_that_nobody_knows_keeps_no_session_from_coming(tmp_path: Path) -> None:
    async with stage(tmp_path, MachineWithATreeThatNobodyKnows()) as s:
        await s.begin()
        await s.reaches(Phase.RUNNING)
        await s.scheduler.desire(s.id, Desired.SUSPENDED, actor="r", reason="idle")
        assert await s.outcome() is Outcome.SUSPENDED
        await s.scheduler.desire(s.id, Desired.RUNNING, actor="alice", reason="back")
        await s.begin("resume")
        await s.reaches(Phase.RUNNING)


async def test_a_resume_that_fails_keeps_the_snapshot(tmp_path: Path) -> None:
    async with stage(tmp_path, WorkingMachine()) as s:
        await s.begin()
        await s.reaches(Phase.RUNNING)
        await s.scheduler.desire(s.id, Desired.SUSPENDED, actor="r", reason="idle")
        await s.outcome()
        kept = s.workload.snapshot
        s.machine.snapshots.clear()
        await s.scheduler.desire(s.id, Desired.RUNNING, actor="alice", reason="back")
        await s.begin("resume")
        assert await s.outcome() is Outcome.FAILED
        assert s.workload.phase is Phase.SUSPENDED
        assert s.workload.snapshot == kept
        assert "There is no snapshot" in s.workload.last_error
        assert s.status.remedy.startswith("Start fresh")


async def test_stop_ends_the_session_within_its_grace(tmp_path: Path) -> None:
    async with stage(tmp_path, WorkingMachine()) as s:
        await s.begin()
        await s.reaches(Phase.RUNNING)
        await s.scheduler.desire(s.id, Desired.STOPPED, actor="alice", reason="done")
        assert await s.outcome() is Outcome.STOPPED
        assert s.workload.phase is Phase.STOPPED
        assert "terminated with 2 s" in s.machine.only_tree().log


async def test_a_start_that_is_not_wanted_any_more_ends_at_once(tmp_path: Path) -> None:
    async with stage(tmp_path, MachineWithDeafServer()) as s:
        await s.begin(ready_seconds=3600.0)
        await until(lambda: s.status.sandbox)
        await client.ask(s.directory, "stop", actor="alice", reason="cancelled")
        assert await s.outcome() is Outcome.STOPPED
        assert s.workload.phase is Phase.STOPPED


async def test_a_resume_that_is_not_wanted_any_more_keeps_the_snapshot(tmp_path: Path) -> None:
    async with stage(tmp_path, WorkingMachine()) as s:
        await s.begin()
        await s.reaches(Phase.RUNNING)
        await s.scheduler.desire(s.id, Desired.SUSPENDED, actor="r", reason="idle")
        await s.outcome()
        snapshots = s.machine.snapshots
        s.machine = MachineWithDeafServer()
        s.machine.snapshots = snapshots
        await s.scheduler.desire(s.id, Desired.RUNNING, actor="alice", reason="back")
        await s.begin("resume", ready_seconds=3600.0)
        await until(lambda: s.status.phase == "filling")
        await client.ask(s.directory, "stop", actor="alice", reason="cancelled")
        assert await s.outcome() is Outcome.STOPPED
        assert s.workload.phase is Phase.SUSPENDED
        assert s.workload.snapshot is not None


async def test_who_watches_hears_the_outcome(tmp_path: Path) -> None:
    async with stage(tmp_path, WorkingMachine()) as s:
        await s.begin()
        await s.reaches(Phase.RUNNING)
        seen = []
        async for status in client.watch(s.directory):
            if not seen:
                s.wishes.ask(Action.SUSPEND, reason="now", actor="root")
            seen.append(status)
        assert seen[-1].outcome is Outcome.SUSPENDED
        assert await s.outcome() is Outcome.SUSPENDED


async def test_a_commit_counts_even_if_the_suspend_fails_after_it(tmp_path: Path) -> None:
    async with stage(tmp_path, MachineThatCrashesAfterTheCommit()) as s:
        await s.begin()
        await s.reaches(Phase.RUNNING)
        await s.scheduler.desire(s.id, Desired.SUSPENDED, actor="r", reason="idle")
        assert await s.outcome() is Outcome.SUSPENDED
        assert s.workload.snapshot is not None


async def test_a_server_that_ends_by_itself_has_exited(tmp_path: Path) -> None:
    async with stage(tmp_path, WorkingMachine()) as s:
        await s.begin()
        await s.reaches(Phase.RUNNING)
        s.machine.exit(0)
        assert await s.outcome() is Outcome.EXITED
        assert s.workload.phase is Phase.STOPPED
        assert s.workload.exit_code == 0


async def test_detach_leaves_the_tree_alive_for_the_next_supervisor(tmp_path: Path) -> None:
    async with stage(tmp_path, WorkingMachine()) as s:
        await s.begin()
        await s.reaches(Phase.RUNNING)
        await client.ask(s.directory, "detach")
        assert await s.outcome() is None
        assert s.status.outcome is None
        assert s.machine.is_alive(s.machine.only_tree().process)
        assert s.workload.phase is Phase.RUNNING


def told_when_it_goes_on(s: Stage) -> list[bool]:
    """Grows with each time that the tree goes on: whether it knew then that time had passed."""
    told, go_on = [], s.machine.go_on

    def look(halted: tuple[Process, ...]) -> None:
        told.append((s.directory / "run" / RESUME_FILE).exists())
        go_on(halted)

    s.machine.go_on = look
    return told


async def test_a_holder_that_cannot_renew_stops_its_tree_until_it_can(tmp_path: Path) -> None:
    async with stage(tmp_path, WorkingMachine()) as s:
        await s.begin(fence_seconds=0.3)
        await s.reaches(Phase.RUNNING)
        tree = s.machine.only_tree()
        s.scheduler.is_away = True
        await until(lambda: tree.halted)
        assert s.status.facts["halted"]
        told = told_when_it_goes_on(s)
        s.scheduler.is_away = False
        await until(lambda: not tree.halted)
        assert told == [True]
        left = json.loads((s.directory / "run" / RESUME_FILE).read_text())
        assert left["seconds"] > 0


async def test_a_tree_halted_by_a_supervisor_that_died_goes_on(tmp_path: Path) -> None:
    async with stage(tmp_path, WorkingMachine()) as s:
        await s.begin(fence_seconds=0.3)
        await s.reaches(Phase.RUNNING)
        tree = s.machine.only_tree()
        s.scheduler.is_away = True
        await until(lambda: tree.halted)
        await s.kill()
        told = told_when_it_goes_on(s)
        s.scheduler.is_away = False
        await s.begin("adopt")
        await until(lambda: not tree.halted)
        assert told[0]


async def test_a_halted_tree_is_suspended_as_a_running_one(tmp_path: Path) -> None:
    async with stage(tmp_path, WorkingMachine()) as s:
        await s.begin(fence_seconds=0.3)
        await s.reaches(Phase.RUNNING)
        s.scheduler.is_away = True
        await until(lambda: s.machine.only_tree().halted)
        s.wishes.ask(Action.SUSPEND, reason="SIGTERM", actor="signal")
        # The fake's freeze refuses a halted tree.
        await until(lambda: s.machine.snapshots)
        s.scheduler.is_away = False
        assert await s.outcome() is Outcome.SUSPENDED


async def test_who_lost_the_lease_keeps_the_memory_and_leaves(tmp_path: Path) -> None:
    async with stage(tmp_path, WorkingMachine()) as s:
        await s.begin()
        await s.reaches(Phase.RUNNING)
        await s.scheduler.take(s.id)
        assert await s.outcome() is Outcome.SUSPENDED
        assert s.status.facts["scheduler_told"] is False
        assert s.machine.snapshots


async def test_who_lost_the_lease_and_cannot_be_frozen_ends(tmp_path: Path) -> None:
    async with stage(tmp_path, MachineWithOpenGpuHandle()) as s:
        await s.begin()
        await s.reaches(Phase.RUNNING)
        await s.scheduler.take(s.id)
        assert await s.outcome() is Outcome.STOPPED
        assert s.machine.is_empty(s.machine.only_tree().process)


async def test_signals_from_inside_reach_the_scheduler_and_a_flood_does_no_harm(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path, WorkingMachine()) as s:
        await s.begin()
        await s.reaches(Phase.RUNNING)
        assert "kernels" not in s.workload.signals
        inner = str(s.directory / "run" / "inner.sock")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            for junk in (b"", b"{", b"[1]", b'{"kernels": 5}', b"x" * 40_000):
                sock.sendto(junk, inner)
            report = {"kernels": [{"id": "k", "state": "busy", "since": 5.0}], "new": "field"}
            sock.sendto(json.dumps(report).encode(), inner)
        await until(lambda: s.workload.signals.get("kernels"))
        assert s.workload.signals["kernels"][0]["state"] == "busy"
        assert s.workload.signals["cpu_seconds"] == 1.5
        assert "last_input" not in s.workload.signals


async def test_a_hold_from_inside_delays_others_but_not_root(tmp_path: Path) -> None:
    async with stage(tmp_path, WorkingMachine()) as s:
        await s.begin()
        await s.reaches(Phase.RUNNING)
        inner = str(s.directory / "run" / "inner.sock")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.sendto(json.dumps({"hold": {"seconds": 3600}}).encode(), inner)
        held = await until(lambda: s.workload.signals.get("hold_until"))
        assert held - s.workload.signals["sampled_at"] <= 60
        await s.scheduler.desire(s.id, Desired.SUSPENDED, actor="r", reason="idle")
        await until(lambda: s.workload.desired is Desired.SUSPENDED)
        assert s.workload.phase is Phase.RUNNING
        await client.ask(s.directory, "suspend")
        assert await s.outcome() is Outcome.SUSPENDED


async def test_the_inner_socket_belongs_to_the_user_and_is_made_anew(tmp_path: Path) -> None:
    async with stage(tmp_path, WorkingMachine()) as s:
        await s.begin()
        await s.reaches(Phase.RUNNING)
        inner = s.directory / "run" / "inner.sock"
        assert inner.stat().st_uid == 210_000
        await s.kill()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            with pytest.raises(ConnectionRefusedError):
                sock.sendto(b"{}", str(inner))
            await s.begin("adopt")
            await until(lambda: s.machine.mended)
            sock.sendto(b'{"connections": 3}', str(inner))
        await until(lambda: s.workload.signals.get("connections") == 3)


async def test_one_folder_has_one_supervisor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spawner.supervisor.program.LOCK_SECONDS", 0.2)
    async with stage(tmp_path, WorkingMachine()) as s:
        await s.begin()
        await s.reaches(Phase.RUNNING)
        assert s.order is not None
        with pytest.raises(AlreadySupervisedError, match="Another supervisor is at work"):
            await supervise(s.order, s.machine, s.scheduler, Wishes())
        assert s.machine.is_alive(s.machine.only_tree().process)
