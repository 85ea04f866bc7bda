"""A fork exists whole or not at all; and what of a session's own folders it gets."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from scheduler_bridge.errors import Conflict
from scheduler_bridge.inprocess import InProcessScheduler
from scheduler_bridge.model.phases import Desired, Phase
from scheduler_bridge.model.workload import SnapshotRef, Workload
from snapshot.model import Identity
from spawner.forking import fork
from spawner.hosting import HostError
from spawner.local_forking import ForkFailedError, copy_folders
from tests.builders.scheduler import session, snapshot
from tests.fakes.process_host import ProcessHost

NOBODY = Identity("nobody", 65534, 65534, (), "/home/nobody")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")


async def suspended(plugin: InProcessScheduler) -> Workload:
    workload = await plugin.submit(session(server="run"), key="k")
    grant = await plugin.take(workload.id)
    for phase in (Phase.RUNNING, Phase.SUSPENDING, Phase.SUSPENDED):
        shot = snapshot() if phase is Phase.SUSPENDED else None
        await plugin.desire(workload.id, Desired.SUSPENDED, actor="a", reason="r")
        workload = await plugin.move(
            grant.lease.id, grant.credential, phase, cause="test", snapshot=shot
        )
    return workload


class HostWhoseSessionIsResumedMeanwhile(ProcessHost):
    """Copies for so long that the session is somebody else's by then."""

    async def fork(self, workload: Workload, new_id: str) -> SnapshotRef:
        copied = await super().fork(workload, new_id)
        await self._plugin.desire(workload.id, Desired.RUNNING, actor="a", reason="clicked")
        return copied


async def test_the_fork_is_registered_under_what_was_laid_out(tmp_path: Path) -> None:
    plugin = InProcessScheduler()
    host = ProcessHost(tmp_path, plugin)
    source = await suspended(plugin)
    made = await fork(plugin, host, source, key="new", server="second")
    assert (made.phase, made.spec.name) == (Phase.SUSPENDED, "alice.second")
    assert made.snapshot is not None and made.snapshot.key == f"copy-for-{made.id}"
    assert host.forgotten == []


async def test_a_session_that_was_resumed_meanwhile_leaves_no_fork(tmp_path: Path) -> None:
    plugin = InProcessScheduler()
    host = HostWhoseSessionIsResumedMeanwhile(tmp_path, plugin)
    source = await suspended(plugin)
    with pytest.raises(Conflict, match="Only a suspended"):
        await fork(plugin, host, source, key="new", server="second")
    assert await plugin.find("new") is None
    (laid_out,) = os.listdir(tmp_path)
    assert host.forgotten == [laid_out]


async def test_what_could_not_be_copied_is_not_registered(tmp_path: Path) -> None:
    plugin = InProcessScheduler()
    host = ProcessHost(tmp_path, plugin)
    host.fork_error = "the disk is full"
    source = await suspended(plugin)
    with pytest.raises(HostError, match="disk is full"):
        await fork(plugin, host, source, key="new", server="second")
    assert await plugin.find("new") is None
    assert os.listdir(tmp_path) == []


def laid_out(folder: Path, identity: Identity) -> Path:
    """A suspended session's folder as a supervisor leaves it."""
    source = folder / "source"
    (source / "tmp").mkdir(parents=True)
    (source / "run").mkdir()
    (source / "pins" / "1-1").mkdir(parents=True)
    (source / "tmp" / "draft").write_text("text")
    os.utime(source / "tmp" / "draft", ns=(1, 123_456_789))
    (source / "tmp" / "link").symlink_to("/etc/shadow")
    for name in ("output.log", "identity.json", "resume.json", "gpus.json", "exit"):
        (source / "run" / name).write_text(name)
    with socket.socket(socket.AF_UNIX) as sock:
        here = os.getcwd()
        os.chdir(source / "tmp")  # its name would be too long
        try:
            sock.bind("socket")
        finally:
            os.chdir(here)
    for path in (source / "tmp", source / "run", *(source / "tmp").iterdir()):
        os.chown(path, identity.uid, identity.gid, follow_symlinks=False)
    for path in (source / "run").iterdir():
        os.chown(path, identity.uid, identity.gid)
    (source / "tmp").chmod(0o1777)
    (source / "run").chmod(0o700)
    (source / "pins" / "1-1" / "7").write_text("pinned")
    for parent in (folder, *folder.parents):
        if parent.owner() == "root" and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o011)
    return source


@needs_root
def test_the_fork_gets_tmp_run_and_pins_but_not_who_the_other_was(tmp_path: Path) -> None:
    source = laid_out(tmp_path, NOBODY)
    target = tmp_path / "target"
    copy_folders(source, target, NOBODY)
    draft = target / "tmp" / "draft"
    assert draft.read_text() == "text"
    found = draft.stat()
    assert (found.st_mtime_ns, found.st_uid) == (123_456_789, NOBODY.uid)
    assert not draft.samefile(source / "tmp" / "draft")
    assert os.readlink(target / "tmp" / "link") == "/etc/shadow"
    assert (target / "tmp" / "socket").is_socket()
    assert [path.name for path in (target / "run").iterdir()] == ["output.log"]
    assert (target / "pins" / "1-1" / "7").samefile(source / "pins" / "1-1" / "7")
    modes = [(target / name).stat().st_mode & 0o7777 for name in (".", "tmp", "run", "pins")]
    assert modes == [0o711, 0o1700, 0o700, 0o755]


@needs_root
def test_nothing_is_read_that_the_user_may_not_read_and_nothing_is_left(tmp_path: Path) -> None:
    source = laid_out(tmp_path, NOBODY)
    secret = source / "tmp" / "secret"
    secret.write_text("of root")
    secret.chmod(0o600)
    with pytest.raises(ForkFailedError, match="secret"):
        copy_folders(source, tmp_path / "target", NOBODY)
    assert not (tmp_path / "target").exists()


@needs_root
def test_what_exists_is_not_overwritten(tmp_path: Path) -> None:
    source = laid_out(tmp_path, NOBODY)
    target = tmp_path / "target"
    copy_folders(source, target, NOBODY)
    with pytest.raises(ForkFailedError):
        copy_folders(source, target, NOBODY)
    assert (target / "tmp" / "draft").read_text() == "text"
