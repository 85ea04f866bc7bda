"""Freeze and thaw through the real CRIU: what survives, what undoes, what the world may change."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import re
import signal
import sqlite3
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from snapshot import host_facts, network, proc, programs, sandbox
from snapshot.dump import CRIU_FILE
from snapshot.filling import marker
from snapshot.freezer import (
    CannotFreezeError,
    CannotThawError,
    FreezeFailedError,
    LocalFreezer,
    SnapshotRefusedError,
)
from snapshot.model import Process
from tests.builders.sandboxes import Box, until
from tests.fakes.repositories import CommitWaits, StoreDiesAtTheCommit, StoreDiesWhilePagesCome
from tests.snapshot.programs import BUSY_CONNECTION, COUNT, EVERYTHING, HISTORY, LIBRARY

pytestmark = [pytest.mark.criu, pytest.mark.usefixtures("working_criu")]
PYTHON = "/usr/bin/python3"


def last_turn(box: Box) -> int:
    return max((int(n) for n in re.findall(r"turn (\d+)", box.output())), default=0)


async def goes_on(box: Box) -> None:
    """The program makes progress from here."""
    reached = last_turn(box)
    await until(lambda: last_turn(box) > reached + 1, f"progress after:\n{box.output()[-800:]}")


async def test_everything_a_tree_holds_survives_several_cycles(box: Box) -> None:
    await box.start(PYTHON, "-c", EVERYTHING)
    await box.connect()
    await goes_on(box)
    for _ in range(3):
        old = box.process
        stored = await box.freeze()
        assert sandbox.is_empty(old)
        frozen_at = last_turn(box)
        await box.thaw(stored)
        await box.connect()
        await goes_on(box)
        assert f"turn {frozen_at + 1} " in box.output()
    pids = set(re.findall(r"pid (\d+) child (\d+)", box.output()))
    assert len(pids) == 1
    assert "Traceback" not in box.output()
    turns = [int(n) for n in re.findall(r"turn (\d+) ", box.output())]
    assert turns == list(range(1, len(turns) + 1))
    written = (box.home / "half").read_text()
    assert written.startswith("first half 1 2 3 ")


@pytest.mark.parametrize("failing", [StoreDiesWhilePagesCome, StoreDiesAtTheCommit])
async def test_a_store_that_dies_leaves_the_tree_running(
    box: Box, failing: type[StoreDiesAtTheCommit]
) -> None:
    process = await box.start(PYTHON, "-c", EVERYTHING)
    await goes_on(box)
    with pytest.raises(FreezeFailedError, match="store does not answer"):
        await box.freeze(LocalFreezer(box.tools, failing(box.repository)))
    assert sandbox.is_alive(process)
    await goes_on(box)
    assert "Traceback" not in box.output()
    assert os.listdir(box.spec.directory / "pins") == []

    stored = await box.freeze()
    await box.thaw(stored)
    await goes_on(box)


async def test_a_cancelled_freeze_leaves_the_tree_running(box: Box) -> None:
    process = await box.start(PYTHON, "-c", EVERYTHING)
    await goes_on(box)
    waiting = CommitWaits(box.repository)
    freezing = asyncio.create_task(box.freeze(LocalFreezer(box.tools, waiting)))
    await until(waiting.reached.is_set, "the tree is held")
    freezing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await freezing
    assert waiting.given_up
    assert sandbox.is_alive(process)
    await goes_on(box)


CRIU_THAT_LEAVES_A_CHILD = """
import os, signal, sys
out, into = os.pipe()
if os.fork():
    os.read(out, 1)
    os.kill(os.getpid(), signal.SIGKILL)
with open(sys.argv[1], "w") as told:
    told.write(str(os.getpid()))
os.write(into, b"!")
os.kill(os.getpid(), signal.SIGSTOP)
"""


async def test_what_a_killed_criu_had_forked_keeps_nobody_waiting(box: Box) -> None:
    """It holds the socket that pages come over. CRIU forks children that stop themselves."""
    await box.start(PYTHON, "-c", COUNT)
    await goes_on(box)
    told = box.folder / "child"
    criu = (PYTHON, "-c", CRIU_THAT_LEAVES_A_CHILD, str(told))
    with pytest.raises(FreezeFailedError, match=r"CRIU was killed\."):
        await box.freeze(LocalFreezer(replace(box.tools, criu=criu), box.repository))
    assert told.exists()
    assert proc.identify(int(told.read_text())) is None
    await goes_on(box)


@pytest.mark.parametrize("program", [EVERYTHING, BUSY_CONNECTION])
async def test_criu_killed_in_the_hold_leaves_the_tree_and_its_connections_alive(
    box: Box, program: str
) -> None:
    process = await box.start(PYTHON, "-c", program)
    await goes_on(box)
    waiting = CommitWaits(box.repository)
    freezing = asyncio.create_task(box.freeze(LocalFreezer(box.tools, waiting)))
    await until(waiting.reached.is_set, "the tree is held")
    programs.send_signal(_criu_of(box), signal.SIGKILL)
    with pytest.raises(FreezeFailedError):
        await freezing
    assert sandbox.is_alive(process)
    await goes_on(box)
    assert "Traceback" not in box.output()


def _criu_of(box: Box) -> Process:
    return Process(**json.loads((box.spec.directory / CRIU_FILE).read_text()))


async def test_a_supervisor_that_dies_in_the_hold_is_a_veto(box: Box, tmp_path: Path) -> None:
    """The freeze runs in a process of its own, which is killed while CRIU holds the tree."""
    process = await box.start(PYTHON, "-c", EVERYTHING)
    await goes_on(box)
    script = tmp_path / "supervisor.py"
    script.write_text(
        _DOOMED.format(folder=str(box.folder), pid=process.pid, start=process.started)
    )
    checkout = str(Path(__file__).parents[2])
    doomed = await asyncio.create_subprocess_exec(
        sys.executable, str(script), env={**os.environ, "PYTHONPATH": checkout}
    )
    await until(lambda: (box.folder / "held").exists(), "the tree is held")
    doomed.kill()
    await doomed.wait()
    await box.freezer.mend(box.spec, process)
    assert sandbox.is_alive(process)
    await goes_on(box)
    assert "Traceback" not in box.output()
    assert not (box.spec.directory / CRIU_FILE).exists()


_DOOMED = """
import asyncio
from pathlib import Path
from snapshot.freezer import LocalFreezer
from snapshot.model import Process
from tests.fakes.repositories import CommitWaits
from tests.builders import sandboxes

folder = Path({folder!r})
class Tells(CommitWaits):
    def commit(self, extra):
        (folder / "held").touch()
        return super().commit(extra)

async def main():
    box = sandboxes.existing_box(folder)
    box.started.append(Process({pid}, {start}))
    await box.freeze(LocalFreezer(box.tools, Tells(box.repository)))
asyncio.run(main())
"""


async def test_a_database_that_grew_meanwhile_is_met_as_it_is_now(box: Box) -> None:
    await box.start(PYTHON, "-c", HISTORY)
    await box.says("rows 0 check ok")
    stored = await box.freeze()
    with sqlite3.connect(box.home / "history.sqlite") as other:
        other.executemany("insert into h values (?)", [("x" * 1000,) for _ in range(50)])
    other.close()
    thawed = await box.thaw(stored)
    await box.says("rows 50 check ok")
    assert any("history.sqlite changed meanwhile" in note for note in thawed.notes)


def _install_library(path: Path, answer: int) -> None:
    """Replace a library the way installers do: a new file, renamed over the old one.

    A zlib whose version begins with `answer`, and of another length; no compiler is needed.
    """
    source = sorted(Path("/usr/lib/x86_64-linux-gnu").glob("libz.so.1*"))[0]
    library = ctypes.CDLL(str(source))
    library.zlibVersion.restype = ctypes.c_char_p
    version = library.zlibVersion()
    wanted = re.compile(b"(?<!_)" + re.escape(version) + b"\0")
    changed = wanted.sub(b"%d" % answer + version[1:] + b"\0", source.read_bytes())
    new = path.with_suffix(".new")
    new.write_bytes(changed + bytes(50_000 * answer))
    new.chmod(0o755)
    new.replace(path)


async def test_a_library_replaced_meanwhile_stays_the_one_that_was_loaded(box: Box) -> None:
    _install_library(box.home / "lib.so", 1)
    await box.start(PYTHON, "-c", LIBRARY)
    await box.says("answer 1")
    for cycle in range(2):
        stored = await box.freeze()
        _install_library(box.home / "lib.so", 2 + cycle)
        seen = len(box.output())
        await box.thaw(stored)
        assert "answer 1" in await box.says("answer", after=seen)


async def test_an_open_file_deleted_meanwhile_is_still_there(box: Box) -> None:
    await box.start(PYTHON, "-c", EVERYTHING)
    await goes_on(box)
    for _ in range(2):
        stored = await box.freeze()
        (box.home / "half").unlink(missing_ok=True)
        await box.thaw(stored)
        await goes_on(box)
    assert "Traceback" not in box.output()


async def test_only_the_newest_freeze_keeps_files(box: Box) -> None:
    await box.start(PYTHON, "-c", COUNT)
    await goes_on(box)
    await box.thaw(await box.freeze())
    await box.freeze()
    assert os.listdir(box.spec.directory / "pins") == ["1-2"]


async def test_a_tampered_snapshot_never_reaches_criu(box: Box) -> None:
    await box.start(PYTHON, "-c", COUNT)
    await goes_on(box)
    stored = await box.freeze()
    manifest = box.folder / "store" / stored.manifest
    data = bytearray(manifest.read_bytes())
    data[len(data) // 2] ^= 1
    manifest.write_bytes(data)
    with pytest.raises(SnapshotRefusedError) as refused:
        await box.thaw(stored)
    assert "fresh" in refused.value.remedy
    assert not (box.spec.directory / "restore.log").exists()


async def test_a_machine_that_does_not_fit_is_refused_before_criu(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Frozen as if on a processor that has an instruction more than this one."""
    await box.start(PYTHON, "-c", COUNT)
    await goes_on(box)
    machine = host_facts.machine()
    richer = machine | {"cpu_flags": f"{machine['cpu_flags']} avx4096"}
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(host_facts, "machine", lambda: richer)
        stored = await box.freeze()
    assert stored.constraints == richer | {"criu": await host_facts.criu_version(box.tools)}
    with pytest.raises(CannotThawError, match="lacks: avx4096"):
        await box.thaw(stored)
    assert not (box.spec.directory / "restore.log").exists()
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(host_facts, "machine", lambda: richer)
        await box.thaw(stored)
    await goes_on(box)


async def test_a_failed_thaw_leaves_nothing_and_can_be_tried_again(box: Box) -> None:
    await box.start(PYTHON, "-c", COUNT)
    await goes_on(box)
    stored = await box.freeze()
    before = set(proc.all_pids())
    output = box.spec.directory / "run/output.log"
    identity = box.spec.identity
    output.chmod(0o600)
    os.chown(output, 0, 0)  # an account that the tree does not know: CRIU cannot open it
    with pytest.raises(CannotThawError, match="CRIU"):
        await box.thaw(stored)
    assert [p for p in proc.all_pids() if p not in before and _is_below_us(p)] == []
    os.chown(output, identity.uid, identity.gid)
    await box.thaw(stored)
    await goes_on(box)


def _is_below_us(pid: int) -> bool:
    found = proc.stat(pid)
    return found is not None and found.parent == os.getpid() and found.state not in "ZX"


async def test_a_traced_program_is_named_before_anything_is_touched(box: Box) -> None:
    program = (
        "import ctypes,time; print(ctypes.CDLL(None).ptrace(0,0,0,0), flush=True); time.sleep(999)"
    )
    process = await box.start(PYTHON, "-c", program)
    await box.says("0")
    link = await box.connect()
    with pytest.raises(CannotFreezeError) as refused:
        await box.freeze()
    assert "traced" in refused.value.blockers[0].what
    assert sandbox.is_alive(process)
    assert network.find(box.spec) == link


async def test_what_an_earlier_tree_lacked_is_nothing_to_the_next(box: Box) -> None:
    """Everybody who could have said that its memory is complete was killed with it."""
    await box.start(PYTHON, "-c", COUNT)
    await goes_on(box)
    stored = await box.freeze()
    marker.put(box.spec.directory)
    eager = LocalFreezer(box.tools, box.repository)
    thawed = await eager.thaw(box.spec, stored.manifest, on_step=lambda name, seconds: None)
    box.started.append(thawed.process)
    await goes_on(box)
    await box.freeze()
    marker.put(box.spec.directory)
    await box.start(PYTHON, "-c", COUNT)
    await goes_on(box)
    await box.freeze()


SHARED = """
import hashlib, os, time
with open("/dev/shm/large", "wb") as file:
    file.write(os.urandom(40_000_000))
before = hashlib.sha256(open("/dev/shm/large", "rb").read()).hexdigest()
turn = 0
while True:
    turn += 1
    assert hashlib.sha256(open("/dev/shm/large", "rb").read()).hexdigest() == before
    print(f"turn {turn}", flush=True)
    time.sleep(0.05)
"""


async def test_large_shared_memory_files_come_back_whole(box: Box) -> None:
    await box.start(PYTHON, "-c", SHARED)
    await goes_on(box)
    await box.thaw(await box.freeze())
    await goes_on(box)
    assert "Traceback" not in box.output()


DEVICE = """
import glob, time
held = open("/dev/vgpu0")
while True:
    held.seek(0)
    print(f"held {held.read()} seen {glob.glob('/dev/vgpu*')}", flush=True)
    time.sleep(0.05)
"""


async def test_a_tree_comes_back_with_the_devices_of_its_new_lease(
    box: Box, passable: Path
) -> None:
    for number in (0, 1):
        device = passable / f"vgpu{number}"
        device.write_text(f"identity-{number}")
        device.chmod(0o666)
    await box.start(PYTHON, "-c", DEVICE, devices=(str(passable / "vgpu0"),))
    await box.says("held identity-0 seen ['/dev/vgpu0']")
    stored = await box.freeze()
    box.spec = replace(box.spec, devices=(str(passable / "vgpu1"),))
    seen = len(box.output())
    await box.thaw(stored)
    said = await box.says("held", after=seen)
    assert "held identity-1 seen ['/dev/vgpu1']" in said
    assert "identity-0" not in said


async def test_a_folder_that_other_accounts_cannot_pass_is_named_first(
    box: Box, passable: Path
) -> None:
    process = await box.start(PYTHON, "-c", COUNT)
    await goes_on(box)
    os.chmod(passable, 0o700)
    with pytest.raises(CannotFreezeError, match="chmod o"):
        await box.freeze()
    assert sandbox.is_alive(process)
    os.chmod(passable, 0o711)
    await box.thaw(await box.freeze())
    await goes_on(box)
