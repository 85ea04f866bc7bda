"""GPU state round the real CRIU: the order of things, and what undoes them.

Each test runs against the scripted driver, and, where this machine has an NVIDIA GPU whose driver
can do it, a second time against the real one with a program that really computes. What needs a
failing driver has only the first.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hub_config.gpus import read_real_gpus
from snapshot import proc, sandbox
from snapshot.freezer import (
    CannotFreezeError,
    CannotThawError,
    FreezeFailedError,
    LocalFreezer,
)
from snapshot.gpu import devices, putting_back
from snapshot.model import SnapshotKey, Stored, Thawed
from snapshot.ports import Repository
from spawner.local_order import existing_control_devices
from tests.builders.cuda import MODEL, PROGRAM, CudaStub, build, make_device
from tests.builders.sandboxes import Box, until
from tests.fakes.repositories import StoreDiesAtTheCommit

pytestmark = [pytest.mark.criu, pytest.mark.usefixtures("working_criu")]
PYTHON = "/usr/bin/python3"

# Fills GPU memory with a pattern and reads it back for ever.
REAL_PROGRAM = """
import ctypes, os, time
cuda = ctypes.CDLL("libcuda.so.1")
def call(name, *arguments):
    code = getattr(cuda, name)(*arguments)
    assert code == 0, (name, code)
size = 64 * 2**20
context, memory = ctypes.c_void_p(), ctypes.c_uint64()
call("cuInit", 0)
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
call("cuCtxSetCurrent", context)
call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(size))
pattern = os.urandom(size)
call("cuMemcpyHtoD_v2", memory, pattern, ctypes.c_size_t(size))
back = ctypes.create_string_buffer(size)
turn = 0
while True:
    call("cuMemcpyDtoH_v2", back, memory, ctypes.c_size_t(size))
    assert back.raw[:size] == pattern
    turn += 1
    print(f"turn {turn} holds True", flush=True)
    time.sleep(0.02)
"""


@dataclass
class GpuBox:
    """A sandbox with a GPU. `stub` None: the GPU and its driver are real."""

    box: Box
    devices: tuple[str, ...]
    stub: CudaStub | None
    steps: list[str] = field(default_factory=list)
    disconnects: int = 0

    async def start(self, count: int = 1) -> None:
        """Programs that compute."""
        if self.stub is None:
            await self.box.start(PYTHON, "-c", REAL_PROGRAM, devices=self.devices)
        else:
            program = (PYTHON, "-c", PROGRAM, str(count))
            await self.box.start(*program, devices=self.devices)
        await until(lambda: len(self.holders()) == count, "the programs hold the GPU")
        if self.stub is not None:
            self.stub.programs(*(devices.inner_pid(pid) for pid in self.holders()))
        await self.goes_on()

    def holders(self) -> list[int]:
        """Host PIDs of those that hold the GPU now."""
        return [m.pid for m in proc.members(self.box.process) if devices.held_by(m.pid)]

    async def goes_on(self) -> None:
        """Somebody computes from here on."""
        seen = len(self.box.output())
        text = "holds True"
        await until(
            lambda: self.box.output()[seen:].count(text) > 2,
            f"{text} in {self.box.output()[-500:]}",
        )

    async def freeze(self, repository: Repository | None = None) -> Stored:
        self.box.sequence += 1
        key = SnapshotKey("alice", "box", 1, self.box.sequence)
        return await self._freezer(repository).freeze(
            self.box.spec,
            self.box.process,
            key,
            {},
            disconnect=self._disconnect,
            on_step=lambda name, seconds: self.steps.append(name),
        )

    async def thaw(self, stored: Stored) -> Thawed:
        thawed = await self._freezer().thaw(
            self.box.spec,
            stored.manifest,
            on_step=lambda name, seconds: self.steps.append(name),
        )
        self.box.started.append(thawed.process)
        return thawed

    def _freezer(self, repository: Repository | None = None) -> LocalFreezer:
        libraries = str(self.stub.folder) if self.stub else ""
        return LocalFreezer(
            self.box.tools, repository or self.box.repository, gpu_libraries=libraries
        )

    async def _disconnect(self) -> None:
        self.disconnects += 1


@pytest.fixture
def scripted(box: Box, passable: Path) -> tuple[GpuBox, CudaStub]:
    """A sandbox whose GPU is scripted."""
    stub = build(passable / "libraries")
    device = make_device(passable / "nodes", "nvidia0")
    return GpuBox(box, (device,), stub), stub


@pytest.fixture(params=["scripted", "real"])
def computing(
    request: pytest.FixtureRequest, box: Box, make_scripted: Callable[[], GpuBox]
) -> GpuBox:
    """The same sandbox twice: with the scripted driver, and with the machine's own."""
    if request.param == "scripted":
        return make_scripted()
    real = read_real_gpus()
    if not real.models:
        pytest.skip(f"no NVIDIA GPU here: {real.problem or 'there is no driver'}")
    if not devices.driver_saves_memory():
        pytest.skip("the NVIDIA driver here is older than 570 and cannot save GPU memory")
    found = (str(min(Path("/dev").glob("nvidia[0-9]*"))), *existing_control_devices())
    return GpuBox(box, found, None)


@pytest.fixture
def make_scripted(request: pytest.FixtureRequest) -> Callable[[], GpuBox]:
    def make() -> GpuBox:
        made: tuple[GpuBox, CudaStub] = request.getfixturevalue("scripted")
        return made[0]

    return make


async def test_gpu_state_leaves_before_the_dump_and_is_back_after_the_restore(
    computing: GpuBox,
) -> None:
    await computing.start()
    for _ in range(2):
        computing.steps.clear()
        stored = await computing.freeze()
        assert computing.steps == ["inspect", "gpu", "disconnect", "dump", "store", "end"]
        assert stored.constraints["gpu_count"] == "1"
        assert stored.constraints["gpu_models"]
        assert int(stored.constraints["gpu_bytes"]) > 0
        computing.steps.clear()
        await computing.thaw(stored)
        assert computing.steps[-2:] == ["restore", "gpu"]
        await computing.goes_on()
        assert len(computing.holders()) == 1
    assert "Traceback" not in computing.box.output()


async def test_a_store_that_dies_gives_the_programs_their_gpu_back(computing: GpuBox) -> None:
    await computing.start()
    process = computing.box.process
    with pytest.raises(FreezeFailedError, match="store does not answer"):
        await computing.freeze(StoreDiesAtTheCommit(computing.box.repository))
    assert sandbox.is_alive(process)
    await computing.goes_on()
    await computing.thaw(await computing.freeze())
    await computing.goes_on()
    assert "Traceback" not in computing.box.output()


async def test_the_driver_is_called_in_order_round_dump_and_thaw(
    scripted: tuple[GpuBox, CudaStub],
) -> None:
    computing, stub = scripted
    await computing.start(2)
    one, two = (devices.inner_pid(pid) for pid in computing.holders())
    stored = await computing.freeze()
    assert stored.constraints["gpu_models"] == MODEL
    assert stored.constraints["gpu_driver"] == "580.65.06"
    assert stub.moves() == [
        f"Lock {one} 0",
        f"Lock {two} 0",
        f"Checkpoint {one} 0",
        f"Checkpoint {two} 0",
    ]
    stub.forget_calls()
    await computing.thaw(stored)
    assert stub.moves() == [
        f"Restore {two} 0",
        f"Restore {one} 0",
        f"Unlock {two} 0",
        f"Unlock {one} 0",
    ]
    assert len(computing.holders()) == 2
    await computing.goes_on()


@pytest.mark.parametrize("call", ["Lock", "Checkpoint"])
@pytest.mark.parametrize("nth", [1, 2])
async def test_a_driver_that_fails_leaves_the_tree_going_on(
    call: str, nth: int, scripted: tuple[GpuBox, CudaStub]
) -> None:
    computing, stub = scripted
    await computing.start(2)
    stub.script(f"{call} {nth} 304")
    with pytest.raises(FreezeFailedError, match="CUDA_ERROR_OPERATING_SYSTEM"):
        await computing.freeze()
    assert stub.states() <= {"running"}
    assert len(computing.holders()) == 2
    assert computing.disconnects == 0
    assert not (computing.box.spec.directory / "dump.log").exists()
    await computing.goes_on()


async def test_a_program_that_only_holds_the_device_is_named_first(
    scripted: tuple[GpuBox, CudaStub],
) -> None:
    computing, stub = scripted
    await computing.start()
    stub.programs()
    with pytest.raises(CannotFreezeError, match="/dev/nvidia0"):
        await computing.freeze()
    assert stub.moves() == []
    assert computing.disconnects == 0


@pytest.mark.parametrize("call", ["Restore", "Unlock"])
async def test_gpu_state_that_does_not_come_back_leaves_no_tree_and_the_snapshot(
    call: str, scripted: tuple[GpuBox, CudaStub]
) -> None:
    computing, stub = scripted
    await computing.start()
    stored = await computing.freeze()
    (state,) = stub.folder.glob("state-*")
    before = set(proc.all_pids())
    stub.script(f"{call} 1 2")
    with pytest.raises(CannotThawError, match="CUDA_ERROR_OUT_OF_MEMORY"):
        await computing.thaw(stored)
    assert [pid for pid in proc.all_pids() if pid not in before and _is_ours(pid)] == []
    stub.script()
    state.write_text("2")  # the snapshot has it as it was saved
    await computing.thaw(stored)
    await computing.goes_on()


def _is_ours(pid: int) -> bool:
    found = proc.stat(pid)
    return found is not None and found.parent == os.getpid() and found.state not in "ZX"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda stub: stub.driver("580.82.07"), r"580\.65\.06.*580\.82\.07"),
        (lambda stub: stub.gpus(model="NVIDIA L4"), "NVIDIA H200.*NVIDIA L4"),
        (lambda stub: stub.gpus(free=1), r"bytes of memory on GPU.*1 bytes are free"),
    ],
    ids=["another driver", "another model", "no memory"],
)
async def test_where_the_gpu_does_not_fit_criu_is_not_started(
    change: Callable[[CudaStub], None], reason: str, scripted: tuple[GpuBox, CudaStub]
) -> None:
    computing, stub = scripted
    await computing.start()
    stored = await computing.freeze()
    stub.forget_calls()
    change(stub)
    with pytest.raises(CannotThawError) as refused:
        await computing.thaw(stored)
    assert re.search(reason, refused.value.message)
    assert stub.moves() == []
    assert not (computing.box.spec.directory / "restore.log").exists()
    stub.driver("580.65.06")
    stub.gpus()
    await computing.thaw(stored)
    await computing.goes_on()


async def test_a_supervisor_that_dies_in_the_hold_leaves_gpu_state_to_the_next(
    scripted: tuple[GpuBox, CudaStub], passable: Path
) -> None:
    computing, stub = scripted
    await computing.start(2)
    box = computing.box
    script = _DOOMED.format(
        folder=str(box.folder),
        device=computing.devices[0],
        libraries=str(stub.folder),
        pid=box.process.pid,
        start=box.process.started,
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    doomed = await asyncio.create_subprocess_exec(sys.executable, "-c", script, env=environment)
    await until(lambda: (box.folder / "held").exists(), "the tree is held")
    assert stub.states() == {"checkpointed"}
    doomed.kill()
    await doomed.wait()
    freezer = LocalFreezer(box.tools, box.repository, gpu_libraries=str(stub.folder))
    await freezer.mend(box.spec, box.process)
    assert stub.states() == {"running"}
    assert len(computing.holders()) == 2
    await computing.goes_on()


_DOOMED = """
import asyncio
from dataclasses import replace
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
    box.spec = replace(box.spec, devices=({device!r},))
    box.started.append(Process({pid}, {start}))
    freezer = LocalFreezer(box.tools, Tells(box.repository), gpu_libraries={libraries!r})
    await box.freeze(freezer)
asyncio.run(main())
"""


async def test_a_finished_suspend_and_resume_leave_no_note(
    scripted: tuple[GpuBox, CudaStub],
) -> None:
    computing, _ = scripted
    note = computing.box.spec.directory / putting_back.NOTE_FILE
    await computing.start()
    stored = await computing.freeze()
    assert not note.exists()
    await computing.thaw(stored)
    assert not note.exists()
