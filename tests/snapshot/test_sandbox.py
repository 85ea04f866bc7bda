"""A sandbox's life: start, signals, exit status, halt, the proof that it is empty."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from snapshot import plan, proc, programs, sandbox, skeleton
from snapshot.model import Bind, Identity
from tests.builders.sandboxes import Box, make_box, until

PYTHON = "/usr/bin/python3"
HOST = plan.HostFacts(frozenset(), (("bin", "usr/bin"),))


async def test_the_exit_status_is_known_without_anybody_waiting(box: Box) -> None:
    process = await box.start("/bin/sh", "-c", "exit 7")
    assert await programs.wait_until_ended(process, 10)
    assert sandbox.exit_code(box.spec) == 7
    assert sandbox.is_empty(process)


async def test_a_new_start_forgets_the_earlier_exit_status(box: Box) -> None:
    process = await box.start("/bin/sh", "-c", "exit 7")
    await programs.wait_until_ended(process, 10)
    await box.start("/bin/sleep", "1000")
    assert sandbox.exit_code(box.spec) is None


async def test_an_exit_file_that_is_a_link_is_not_followed(box: Box, tmp_path: Path) -> None:
    process = await box.start("/bin/sh", "-c", "exit 0")
    await programs.wait_until_ended(process, 10)
    (tmp_path / "secret").write_text("42")
    exit_file = box.spec.directory / "run" / plan.EXIT_FILE
    exit_file.unlink()
    exit_file.symlink_to(tmp_path / "secret")
    assert sandbox.exit_code(box.spec) is None


async def test_sigterm_reaches_the_program_itself_and_nothing_else(box: Box) -> None:
    program = (
        "import signal, subprocess, sys, time\n"
        "child = subprocess.Popen(['sleep', '1000'])\n"
        "def stop(*_):\n"
        "    print('child', child.poll(), flush=True); sys.exit(3)\n"
        "signal.signal(signal.SIGTERM, stop)\n"
        "print('ready', flush=True)\n"
        "while True: time.sleep(1)\n"
    )
    process = await box.start(PYTHON, "-c", program)
    await box.says("ready")
    assert await sandbox.terminate(process, 10) is True
    assert "child None" in box.output()
    assert sandbox.exit_code(box.spec) == 3


async def test_a_program_that_ignores_sigterm_is_killed_after_its_grace(box: Box) -> None:
    program = "import signal, time; signal.signal(15, signal.SIG_IGN); print('on', flush=True)\n"
    process = await box.start(PYTHON, "-c", program + "while True: time.sleep(1)")
    await box.says("on")
    assert await sandbox.terminate(process, 0.2) is False
    assert sandbox.is_empty(process)
    assert await sandbox.terminate(process, 1) is True


async def test_what_nobody_knows_is_ended_before_something_else_begins(box: Box) -> None:
    """Its supervisor was killed before it could write down that there is a tree."""
    lost = await box.start("/bin/sh", "-c", "sleep 1000 & sleep 1001 & echo up; wait")
    await box.says("up")
    members = proc.members(lost)
    assert await sandbox.clear(box.spec) == len(members)
    assert all(map(proc.has_ended, members))
    assert await sandbox.clear(box.spec) == 0


async def test_halt_stops_everything_and_go_on_leaves_stopped_ones_stopped(box: Box) -> None:
    process = await box.start("/bin/sh", "-c", "sleep 1000 & sleep 1001 & echo up; wait")
    await box.says("up")
    sleepers = [p for p in proc.members(process) if proc.command(p.pid).startswith("sleep 100")]
    by_user = sleepers[0]
    programs.send_signal(by_user, signal.SIGSTOP)
    await until(lambda: _state(by_user.pid) == "T", "the user's job is stopped")

    halted = sandbox.halt(process)
    await until(lambda: {_state(p.pid) for p in proc.members(process)} == {"T"}, "all stopped")
    sandbox.go_on(halted)

    await until(lambda: _state(process.pid) != "T", "the tree goes on")
    assert _state(by_user.pid) == "T"
    assert by_user not in halted


def _state(pid: int) -> str:
    found = proc.stat(pid)
    return found.state if found else ""


async def test_a_later_process_with_the_same_pid_is_not_taken_for_the_sandbox() -> None:
    own = proc.identify(os.getpid())
    assert own is not None
    assert proc.has_ended(replace(own, started=own.started - 1))
    assert not proc.has_ended(own)


@pytest.mark.parametrize(
    ("argv", "folder", "says"),
    [(("/nowhere/at/all",), "/home/alice", None), (("/bin/true",), "/home/nobody", "/home/nobody")],
)
async def test_what_cannot_start_says_so(
    box: Box, argv: tuple[str, ...], folder: str, says: str | None
) -> None:
    box.spec = replace(box.spec, folder=folder)
    if says is None:
        # The recording shell starts, and tells the missing program the way shells do.
        process = await box.start(*argv)
        await programs.wait_until_ended(process, 10)
        assert sandbox.exit_code(box.spec) == 127
        return
    with pytest.raises(sandbox.SandboxError, match=says):
        await box.start(*argv)


async def test_files_put_inside_do_not_follow_links_of_the_user(box: Box, tmp_path: Path) -> None:
    await box.start("/bin/sleep", "1000")
    victim = tmp_path / "victim"
    victim.write_text("safe")
    run = box.spec.directory / "run"
    (run / "resume.json").symlink_to(victim)
    sandbox.put_inside(box.spec, "resume.json", b"{}")
    assert victim.read_text() == "safe"
    written = run / "resume.json"
    assert written.read_bytes() == b"{}" and not written.is_symlink()
    assert written.stat().st_uid == box.spec.identity.uid


@pytest.mark.parametrize("target", ["/", "/usr", "/dev", "/tmp", "/etc", "relative", "/run/../usr"])
def test_a_bind_may_not_hide_a_part_of_the_sandbox(tmp_path: Path, target: str) -> None:
    spec = replace(make_box(tmp_path / "b").spec, binds=(Bind("/srv", target),))
    with pytest.raises(ValueError, match="taken"):
        plan.mounts(spec, HOST)


def test_mount_keys_never_collide(tmp_path: Path) -> None:
    binds = (Bind("/a", "/data/x_y"), Bind("/b", "/data/x/y"), Bind("/c", "/data/x__y"))
    spec = replace(make_box(tmp_path / "b").spec, binds=binds)
    mounts = plan.mounts(spec, HOST)
    assert len({mount.key for mount in mounts}) == len(mounts)


def test_accounts_inside_are_the_systems_and_the_own() -> None:
    lines = ["root:x:0:0:root:/root:/bin/sh", "bob:x:1001:1001::/home/bob:/bin/sh"]
    text = plan.passwd(Identity("alice", 210_001, 210_001), lines)
    assert text.splitlines() == [lines[0], "alice:x:210001:210001::/home/alice:/bin/bash"]


def test_a_mount_point_behind_a_users_link_is_refused(tmp_path: Path) -> None:
    box = make_box(tmp_path / "b")
    (box.home / "data").symlink_to("/etc")
    spec = replace(box.spec, binds=(*box.spec.binds, Bind("/srv", "/home/alice/data")))
    host = skeleton.look_at_host(spec)
    with pytest.raises(FileNotFoundError, match="create"):
        skeleton.build(spec, host, plan.mounts(spec, host))
