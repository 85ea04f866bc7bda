"""GPU state into host memory and back: of all programs or of none, against a scripted driver."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from snapshot import proc
from snapshot.gpu import putting_back
from snapshot.gpu.driver import GpuError
from snapshot.gpu.freezing import Taking
from snapshot.gpu.thawing import BringingBack
from snapshot.model import Process
from tests.builders.cuda import CudaStub, GpuTree, Trees, build, expected_undo
from tests.builders.sandboxes import until


class DumpFailedError(Exception):
    """Stands for whatever fails after the GPU state was taken."""


async def freeze(
    tree: GpuTree, cuda_stub: CudaStub, *, fails: bool = False, seconds: float = 20
) -> None:
    """Take everything, as a freeze does; `fails`: the dump after it."""
    taking = Taking(tree.spec, tree.process, str(cuda_stub.folder), move_seconds=seconds)
    async with taking as gpu:
        assert await gpu.look() == ()
        await gpu.take()
        assert tree.holders() == 0
        if fails:
            raise DumpFailedError
        gpu.keep()


@pytest.mark.parametrize("count", [1, 2, 3])
async def test_all_programs_are_locked_before_the_first_is_taken(
    count: int, gpu_trees: Trees, cuda_stub: CudaStub
) -> None:
    await freeze(gpu_trees(count), cuda_stub)
    pids = range(1, count + 1)
    assert cuda_stub.moves() == [
        *(f"Lock {pid} 0" for pid in pids),
        *(f"Checkpoint {pid} 0" for pid in pids),
    ]
    assert cuda_stub.states() == {"checkpointed"}


FAILING_CALLS = [
    pytest.param(count, call, nth, id=f"{call} {nth} of {count}")
    for count in (1, 2, 3)
    for call in ("Lock", "Checkpoint")
    for nth in range(1, count + 1)
]


@pytest.mark.parametrize(("count", "call", "nth"), FAILING_CALLS)
async def test_a_failing_call_leaves_every_program_computing(
    count: int, call: str, nth: int, gpu_trees: Trees, cuda_stub: CudaStub
) -> None:
    started = gpu_trees(count)
    cuda_stub.script(f"{call} {nth} 304")
    with pytest.raises(GpuError, match="CUDA_ERROR_OPERATING_SYSTEM"):
        await freeze(started, cuda_stub)
    locked, checkpointed = (nth - 1, 0) if call == "Lock" else (count, nth - 1)
    done = [f"Lock {pid} 0" for pid in range(1, locked + 1)]
    done += [f"Checkpoint {pid} 0" for pid in range(1, checkpointed + 1)]
    undone = expected_undo(locked, checkpointed)
    assert cuda_stub.moves() == [*done, f"{call} {nth} 304", *undone]
    assert cuda_stub.states() <= {"running"}
    assert started.holders() == count
    assert not (started.spec.directory / putting_back.NOTE_FILE).exists()


@pytest.mark.parametrize("count", [1, 2, 3])
async def test_a_dump_that_fails_later_is_undone_in_reverse(
    count: int, gpu_trees: Trees, cuda_stub: CudaStub
) -> None:
    started = gpu_trees(count)
    with pytest.raises(DumpFailedError):
        await freeze(started, cuda_stub, fails=True)
    assert cuda_stub.moves()[2 * count :] == expected_undo(count, count)
    assert cuda_stub.states() == {"running"}
    assert started.holders() == count


@pytest.mark.parametrize("call", ["Restore", "Unlock"])
@pytest.mark.parametrize("nth", [1, 2, 3])
async def test_an_undo_that_fails_for_one_program_serves_the_others_and_names_it(
    call: str, nth: int, gpu_trees: Trees, cuda_stub: CudaStub
) -> None:
    started = gpu_trees(3)
    cuda_stub.script(f"{call} {nth} 2")
    with pytest.raises(GpuError, match="CUDA_ERROR_OUT_OF_MEMORY") as failed:
        await freeze(started, cuda_stub, fails=True)
    assert failed.value.message.count("python3") == 1
    assert "Restart" in failed.value.remedy
    lost = 4 - nth
    left = {path.name for path in cuda_stub.folder.glob("state-*") if path.read_text() != "0"}
    assert left == {f"state-{lost}"}


async def test_a_program_that_the_driver_breaks_is_named_with_its_state(
    gpu_trees: Trees, cuda_stub: CudaStub
) -> None:
    cuda_stub.script("Checkpoint 2 304 3")
    with pytest.raises(GpuError, match="its GPU state is failed"):
        await freeze(gpu_trees(2), cuda_stub)
    assert cuda_stub.moves()[-2:] == ["Restore 1 0", "Unlock 1 0"]


@pytest.mark.parametrize("call", ["Lock", "Checkpoint"])
async def test_a_call_that_never_returns_ends_with_its_helper(
    call: str, gpu_trees: Trees, cuda_stub: CudaStub
) -> None:
    started = gpu_trees(2)
    cuda_stub.script(f"{call} 2 hang")
    with pytest.raises(GpuError, match="did not answer within"):
        await freeze(started, cuda_stub, seconds=1)
    assert cuda_stub.states() == {"running"}
    assert started.holders() == 2


async def test_a_library_that_crashes_takes_only_the_helper_along(
    gpu_trees: Trees, cuda_stub: CudaStub
) -> None:
    started = gpu_trees(2)
    cuda_stub.script("Checkpoint 2 crash")
    with pytest.raises(GpuError, match="ended the helper"):
        await freeze(started, cuda_stub)
    assert cuda_stub.states() == {"running"}
    assert started.holders() == 2


async def test_a_freeze_cancelled_in_the_middle_of_a_call_is_undone(
    gpu_trees: Trees, cuda_stub: CudaStub
) -> None:
    started = gpu_trees(2)
    cuda_stub.script("Checkpoint 1 wait")
    freezing = asyncio.create_task(freeze(started, cuda_stub))
    await until(lambda: "Checkpoint 1 wait" in cuda_stub.moves(), "the driver is at work")
    freezing.cancel()
    cuda_stub.stop_waiting()
    with pytest.raises(asyncio.CancelledError):
        await freezing
    assert cuda_stub.states() == {"running"}
    assert started.holders() == 2


async def test_a_device_still_open_after_the_checkpoint_is_named_and_all_undone(
    gpu_trees: Trees, cuda_stub: CudaStub
) -> None:
    started = gpu_trees(1, "leaky")
    with pytest.raises(GpuError, match="still holds /dev/nvidiactl"):
        await freeze(started, cuda_stub)
    assert cuda_stub.states() == {"running"}


async def test_a_program_that_holds_a_gpu_without_cuda_is_named_before_anything_is_touched(
    gpu_trees: Trees, cuda_stub: CudaStub
) -> None:
    started = gpu_trees(2)
    cuda_stub.programs(1)
    async with Taking(started.spec, started.process, str(cuda_stub.folder)) as gpu:
        (blocker,) = await gpu.look()
    assert blocker.pid == started.pids[1]
    assert "/dev/nvidia0" in blocker.what
    assert "spawn" in blocker.remedy
    assert cuda_stub.moves() == []


TOO_MUCH = 2**60


async def test_gpu_memory_that_does_not_fit_into_host_memory_is_refused_in_bytes(
    gpu_trees: Trees, cuda_stub: CudaStub
) -> None:
    started = gpu_trees(2)
    cuda_stub.used((started.pids[0], TOO_MUCH), (started.pids[1], 5))
    async with Taking(started.spec, started.process, str(cuda_stub.folder)) as gpu:
        (blocker,) = await gpu.look()
    assert f"{TOO_MUCH + 5:,} bytes" in blocker.what
    assert cuda_stub.moves() == []


async def test_slices_of_a_gpu_are_not_taken(gpu_trees: Trees, cuda_stub: CudaStub) -> None:
    started = gpu_trees(1)
    cuda_stub.split()
    async with Taking(started.spec, started.process, str(cuda_stub.folder)) as gpu:
        (blocker,) = await gpu.look()
    assert "MIG" in blocker.what
    assert cuda_stub.moves() == []


async def test_a_driver_without_the_calls_is_a_reason_not_to_freeze(
    gpu_trees: Trees, tmp_path: Path
) -> None:
    started = gpu_trees(1)
    old = build(tmp_path / "old", old=True)
    async with Taking(started.spec, started.process, str(old.folder)) as gpu:
        (blocker,) = await gpu.look()
    assert "too old" in blocker.what


async def test_without_a_driver_nobody_can_look(gpu_trees: Trees, tmp_path: Path) -> None:
    started = gpu_trees(1)
    cuda_stub = build(tmp_path / "dead")
    (cuda_stub.folder / "gpus").unlink()
    async with Taking(started.spec, started.process, str(cuda_stub.folder)) as gpu:
        (blocker,) = await gpu.look()
    assert "Driver Not Loaded" in blocker.what


async def test_a_sandbox_without_a_real_gpu_loads_no_library(
    gpu_trees: Trees, cuda_stub: CudaStub, tmp_path: Path
) -> None:
    started = gpu_trees(1)
    virtual = tmp_path / "vgpu0"
    virtual.touch()
    disguised = tmp_path / "nvidia0"
    disguised.touch()
    for devices in ((), (str(virtual),), (str(disguised),)):
        spec = replace(started.spec, devices=devices)
        async with Taking(spec, started.process, str(cuda_stub.folder)) as gpu:
            assert not gpu.in_charge
            assert await gpu.look() == ()
            await gpu.take()
        bringing = BringingBack(None, spec, str(cuda_stub.folder))
        assert await bringing.look() == {}
        bringing.check()
        await bringing.bring_back(started.process)
    assert not cuda_stub.was_loaded


async def test_a_tree_that_uses_no_gpu_is_not_touched(
    gpu_trees: Trees, cuda_stub: CudaStub
) -> None:
    """Another tree computes on the same machine."""
    started = gpu_trees(1)
    cuda_stub.used((started.pids[0], 5))
    start = ("unshare", "--pid", "--fork", "--kill-child", "sleep", "60")
    idle = await asyncio.create_subprocess_exec(*start)
    try:
        await until(lambda: _first_of(idle.pid), "the idle program runs")
        async with Taking(started.spec, _first_of(idle.pid)[0], str(cuda_stub.folder)) as gpu:
            assert await gpu.look() == ()
            await gpu.take()
            assert gpu.record is None
    finally:
        idle.kill()
        await idle.wait()
    assert not cuda_stub.was_loaded


def _first_of(outer: int) -> tuple[Process, ...]:
    found = [proc.identify(pid) for pid in proc.children(outer)]
    return tuple(process for process in found if process and proc.members(process))


_DOOMED = """
import asyncio
from pathlib import Path
from snapshot.gpu.freezing import Taking
from snapshot.model import Identity, Process, SandboxSpec

async def main():
    spec = SandboxSpec(Path({folder!r}), Identity("a", 0, 0), 0, (), {{}}, "/", devices={devices!r})
    async with Taking(spec, Process({pid}, {started}), {libraries!r}) as gpu:
        assert await gpu.look() == ()
        await gpu.take()
        print("taken", flush=True)
        await asyncio.Event().wait()
asyncio.run(main())
"""


async def test_what_a_dead_supervisor_took_is_put_back_by_the_next(
    gpu_trees: Trees, cuda_stub: CudaStub
) -> None:
    started = gpu_trees(2)
    script = _DOOMED.format(
        folder=str(started.spec.directory),
        devices=started.spec.devices,
        pid=started.process.pid,
        started=started.process.started,
        libraries=str(cuda_stub.folder),
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    doomed = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", script), stdout=subprocess.PIPE, env=environment
    )
    assert doomed.stdout
    assert await doomed.stdout.readline() == b"taken\n"
    doomed.kill()
    await doomed.wait()
    assert cuda_stub.states() == {"checkpointed"}
    await putting_back.mend(started.spec, started.process, str(cuda_stub.folder))
    assert cuda_stub.states() == {"running"}
    assert started.holders() == 2
    cuda_stub.forget_calls()
    await putting_back.mend(started.spec, started.process, str(cuda_stub.folder))
    assert cuda_stub.moves() == []
