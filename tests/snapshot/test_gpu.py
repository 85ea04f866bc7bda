"""GPU state into host memory and back: of all programs or of none, against a scripted driver."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from snapshot import proc
from snapshot.gpu import putting_back
from snapshot.gpu.driver import GpuError
from snapshot.gpu.freezing import Taking
from snapshot.gpu.model import GpuRecord, SavedGpu
from snapshot.gpu.thawing import BringingBack
from snapshot.model import Process
from tests.builders.cuda import MIB, MODEL, UUIDS, CudaStub, GpuTree, build, gpu_tree
from tests.builders.sandboxes import until

Trees = Callable[..., GpuTree]


@pytest.fixture
def stub(tmp_path: Path) -> CudaStub:
    made = build(tmp_path / "libraries")
    made.programs(1, 2, 3)
    return made


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Trees]:
    """Starts a tree of as many programs."""
    if os.geteuid() != 0:
        pytest.skip("a tree with devices of its own needs root")
    open_trees = []

    def start(count: int, *words: str, gpus: int = 1) -> GpuTree:
        context = gpu_tree(tmp_path / "tree", count, *words, gpus=gpus)
        made = context.__enter__()
        open_trees.append(context)
        return made

    yield start
    for context in open_trees:
        context.__exit__(None, None, None)


class DumpFailedError(Exception):
    """Stands for whatever fails after the GPU state was taken."""


async def freeze(
    tree: GpuTree, stub: CudaStub, *, fails: bool = False, seconds: float = 20
) -> None:
    """Take everything, as a freeze does; `fails`: the dump after it."""
    taking = Taking(tree.spec, tree.process, str(stub.folder), move_seconds=seconds)
    async with taking as gpu:
        assert await gpu.look() == ()
        await gpu.take()
        assert tree.holders() == 0
        if fails:
            raise DumpFailedError
        gpu.keep()


def expected_undo(locked: int, checkpointed: int) -> list[str]:
    """Everything that was done, backwards: all memory first, then the locks."""
    restores = [f"Restore {pid} 0" for pid in range(checkpointed, 0, -1)]
    return [*restores, *(f"Unlock {pid} 0" for pid in range(locked, 0, -1))]


@pytest.mark.parametrize("count", [1, 2, 3])
async def test_all_programs_are_locked_before_the_first_is_taken(
    count: int, tree: Trees, stub: CudaStub
) -> None:
    await freeze(tree(count), stub)
    pids = range(1, count + 1)
    assert stub.moves() == [
        *(f"Lock {pid} 0" for pid in pids),
        *(f"Checkpoint {pid} 0" for pid in pids),
    ]
    assert stub.states() == {"checkpointed"}


FAILING_CALLS = [
    pytest.param(count, call, nth, id=f"{call} {nth} of {count}")
    for count in (1, 2, 3)
    for call in ("Lock", "Checkpoint")
    for nth in range(1, count + 1)
]


@pytest.mark.parametrize(("count", "call", "nth"), FAILING_CALLS)
async def test_a_failing_call_leaves_every_program_computing(
    count: int, call: str, nth: int, tree: Trees, stub: CudaStub
) -> None:
    started = tree(count)
    stub.script(f"{call} {nth} 304")
    with pytest.raises(GpuError, match="CUDA_ERROR_OPERATING_SYSTEM"):
        await freeze(started, stub)
    locked, checkpointed = (nth - 1, 0) if call == "Lock" else (count, nth - 1)
    done = [f"Lock {pid} 0" for pid in range(1, locked + 1)]
    done += [f"Checkpoint {pid} 0" for pid in range(1, checkpointed + 1)]
    undone = expected_undo(locked, checkpointed)
    assert stub.moves() == [*done, f"{call} {nth} 304", *undone]
    assert stub.states() <= {"running"}
    assert started.holders() == count
    assert not (started.spec.directory / putting_back.NOTE_FILE).exists()


@pytest.mark.parametrize("count", [1, 2, 3])
async def test_a_dump_that_fails_later_is_undone_in_reverse(
    count: int, tree: Trees, stub: CudaStub
) -> None:
    started = tree(count)
    with pytest.raises(DumpFailedError):
        await freeze(started, stub, fails=True)
    assert stub.moves()[2 * count :] == expected_undo(count, count)
    assert stub.states() == {"running"}
    assert started.holders() == count


@pytest.mark.parametrize("call", ["Restore", "Unlock"])
@pytest.mark.parametrize("nth", [1, 2, 3])
async def test_an_undo_that_fails_for_one_program_serves_the_others_and_names_it(
    call: str, nth: int, tree: Trees, stub: CudaStub
) -> None:
    started = tree(3)
    stub.script(f"{call} {nth} 2")
    with pytest.raises(GpuError, match="CUDA_ERROR_OUT_OF_MEMORY") as failed:
        await freeze(started, stub, fails=True)
    assert failed.value.message.count("python3") == 1
    assert "Restart" in failed.value.remedy
    lost = 4 - nth
    left = {path.name for path in stub.folder.glob("state-*") if path.read_text() != "0"}
    assert left == {f"state-{lost}"}


async def test_a_program_that_the_driver_breaks_is_named_with_its_state(
    tree: Trees, stub: CudaStub
) -> None:
    stub.script("Checkpoint 2 304 3")
    with pytest.raises(GpuError, match="its GPU state is failed"):
        await freeze(tree(2), stub)
    assert stub.moves()[-2:] == ["Restore 1 0", "Unlock 1 0"]


@pytest.mark.parametrize("call", ["Lock", "Checkpoint"])
async def test_a_call_that_never_returns_ends_with_its_helper(
    call: str, tree: Trees, stub: CudaStub
) -> None:
    started = tree(2)
    stub.script(f"{call} 2 hang")
    with pytest.raises(GpuError, match="did not answer within"):
        await freeze(started, stub, seconds=1)
    assert stub.states() == {"running"}
    assert started.holders() == 2


async def test_a_library_that_crashes_takes_only_the_helper_along(
    tree: Trees, stub: CudaStub
) -> None:
    started = tree(2)
    stub.script("Checkpoint 2 crash")
    with pytest.raises(GpuError, match="ended the helper"):
        await freeze(started, stub)
    assert stub.states() == {"running"}
    assert started.holders() == 2


async def test_a_freeze_cancelled_in_the_middle_of_a_call_is_undone(
    tree: Trees, stub: CudaStub
) -> None:
    started = tree(2)
    stub.script("Checkpoint 1 wait")
    freezing = asyncio.create_task(freeze(started, stub))
    await until(lambda: "Checkpoint 1 wait" in stub.moves(), "the driver is at work")
    freezing.cancel()
    stub.stop_waiting()
    with pytest.raises(asyncio.CancelledError):
        await freezing
    assert stub.states() == {"running"}
    assert started.holders() == 2


async def test_a_device_still_open_after_the_checkpoint_is_named_and_all_undone(
    tree: Trees, stub: CudaStub
) -> None:
    started = tree(1, "leaky")
    with pytest.raises(GpuError, match="still holds /dev/nvidiactl"):
        await freeze(started, stub)
    assert stub.states() == {"running"}


async def test_a_program_that_holds_a_gpu_without_cuda_is_named_before_anything_is_touched(
    tree: Trees, stub: CudaStub
) -> None:
    started = tree(2)
    stub.programs(1)
    async with Taking(started.spec, started.process, str(stub.folder)) as gpu:
        (blocker,) = await gpu.look()
    assert blocker.pid == started.pids[1]
    assert "/dev/nvidia0" in blocker.what
    assert "spawn" in blocker.remedy
    assert stub.moves() == []


TOO_MUCH = 2**60


async def test_gpu_memory_that_does_not_fit_into_host_memory_is_refused_in_bytes(
    tree: Trees, stub: CudaStub
) -> None:
    started = tree(2)
    stub.used((started.pids[0], TOO_MUCH), (started.pids[1], 5))
    async with Taking(started.spec, started.process, str(stub.folder)) as gpu:
        (blocker,) = await gpu.look()
    assert f"{TOO_MUCH + 5:,} bytes" in blocker.what
    assert stub.moves() == []


async def test_slices_of_a_gpu_are_not_taken(tree: Trees, stub: CudaStub) -> None:
    started = tree(1)
    stub.split()
    async with Taking(started.spec, started.process, str(stub.folder)) as gpu:
        (blocker,) = await gpu.look()
    assert "MIG" in blocker.what
    assert stub.moves() == []


async def test_a_driver_without_the_calls_is_a_reason_not_to_freeze(
    tree: Trees, tmp_path: Path
) -> None:
    started = tree(1)
    old = build(tmp_path / "old", old=True)
    async with Taking(started.spec, started.process, str(old.folder)) as gpu:
        (blocker,) = await gpu.look()
    assert "too old" in blocker.what


async def test_without_a_driver_nobody_can_look(tree: Trees, tmp_path: Path) -> None:
    started = tree(1)
    stub = build(tmp_path / "dead")
    (stub.folder / "gpus").unlink()
    async with Taking(started.spec, started.process, str(stub.folder)) as gpu:
        (blocker,) = await gpu.look()
    assert "Driver Not Loaded" in blocker.what


async def test_a_sandbox_without_a_real_gpu_loads_no_library(
    tree: Trees, stub: CudaStub, tmp_path: Path
) -> None:
    started = tree(1)
    virtual = tmp_path / "vgpu0"
    virtual.touch()
    disguised = tmp_path / "nvidia0"
    disguised.touch()
    for devices in ((), (str(virtual),), (str(disguised),)):
        spec = replace(started.spec, devices=devices)
        async with Taking(spec, started.process, str(stub.folder)) as gpu:
            assert not gpu.in_charge
            assert await gpu.look() == ()
            await gpu.take()
        bringing = BringingBack(None, spec, str(stub.folder))
        assert await bringing.look() == {}
        bringing.check()
        await bringing.bring_back(started.process)
    assert not stub.was_loaded


async def test_a_tree_that_uses_no_gpu_is_not_touched(tree: Trees, stub: CudaStub) -> None:
    """Another tree computes on the same machine."""
    started = tree(1)
    stub.used((started.pids[0], 5))
    start = ("unshare", "--pid", "--fork", "--kill-child", "sleep", "60")
    idle = await asyncio.create_subprocess_exec(*start)
    try:
        await until(lambda: _first_of(idle.pid), "the idle program runs")
        async with Taking(started.spec, _first_of(idle.pid)[0], str(stub.folder)) as gpu:
            assert await gpu.look() == ()
            await gpu.take()
            assert gpu.record is None
    finally:
        idle.kill()
        await idle.wait()
    assert not stub.was_loaded


def _first_of(outer: int) -> tuple[Process, ...]:
    found = [proc.identify(pid) for pid in proc.children(outer)]
    return tuple(process for process in found if process and proc.members(process))


async def record_of(tree: GpuTree, stub: CudaStub) -> GpuRecord:
    """Frozen, and what the snapshot knows of it."""
    async with Taking(tree.spec, tree.process, str(stub.folder)) as gpu:
        assert await gpu.look() == ()
        await gpu.take()
        assert gpu.record
        gpu.keep()
        return gpu.record


async def thaw(tree: GpuTree, stub: CudaStub, saved: GpuRecord, *, seconds: float = 20) -> None:
    """What a thaw does round CRIU's restore; the tree itself stands for the restored one."""
    bringing = BringingBack(saved, tree.spec, str(stub.folder), move_seconds=seconds)
    await bringing.look()
    bringing.check()
    await bringing.bring_back(tree.process)


@pytest.mark.parametrize("count", [1, 2, 3])
async def test_every_program_has_its_gpu_back_after_a_thaw(
    count: int, tree: Trees, stub: CudaStub
) -> None:
    started = tree(count)
    saved = await record_of(started, stub)
    stub.forget_calls()
    await thaw(started, stub, saved)
    assert stub.moves() == expected_undo(count, count)
    assert started.holders() == count
    assert stub.pairs() == []
    assert not (started.spec.directory / putting_back.NOTE_FILE).exists()


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("call", ["Restore", "Unlock", "GetState"])
async def test_a_failing_call_of_a_thaw_is_told(
    count: int, call: str, tree: Trees, stub: CudaStub
) -> None:
    started = tree(count)
    saved = await record_of(started, stub)
    stub.forget_calls()
    stub.script(f"{call} {count} 2")
    with pytest.raises(GpuError, match=r"did not come back.*CUDA_ERROR_OUT_OF_MEMORY"):
        await thaw(started, stub, saved)


async def test_a_restore_that_never_returns_is_told(tree: Trees, stub: CudaStub) -> None:
    started = tree(1)
    saved = await record_of(started, stub)
    stub.script("Restore 1 hang")
    with pytest.raises(GpuError, match="did not answer"):
        await thaw(started, stub, saved, seconds=1)


async def test_another_gpu_of_the_same_model_is_named_to_the_driver(
    tree: Trees, stub: CudaStub
) -> None:
    started = tree(1)
    saved = await record_of(started, stub)
    stub.other_gpu()
    await thaw(started, stub, saved)
    digits = [uuid.removeprefix("GPU-").replace("-", "") for uuid in UUIDS]
    assert stub.pairs() == ["".join(digits)]


SAVED = GpuRecord("580.65.06", (SavedGpu(UUIDS[0], MODEL, 100 * MIB),), (1,))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda stub: stub.driver("580.82.07"), r"driver 580\.65\.06.*has 580\.82\.07"),
        (lambda stub: stub.gpus(model="NVIDIA L4"), "computed on NVIDIA H200.*here are NVIDIA L4"),
        (lambda stub: stub.gpus(free=99 * MIB), "needs 104,857,600 bytes.*103,809,024 bytes"),
        (lambda stub: (stub.folder / "gpus").unlink(), "Driver Not Loaded"),
        (lambda stub: stub.gpus(0), "does not list GPU /dev/nvidia0"),
        (lambda stub: stub.split(), "MIG"),
    ],
    ids=["other driver", "other model", "too little free", "no driver", "GPU not listed", "slices"],
)
async def test_a_machine_that_does_not_fit_is_refused_before_the_restore(
    change: Callable[[CudaStub], None], reason: str, tree: Trees, stub: CudaStub
) -> None:
    started = tree(1)
    change(stub)
    with pytest.raises(GpuError, match=reason):
        await thaw(started, stub, SAVED)
    assert stub.moves() == []


@pytest.mark.parametrize("devices", [0, 2])
async def test_a_lease_with_another_number_of_gpus_is_refused(
    devices: int, tree: Trees, stub: CudaStub
) -> None:
    started = tree(1, gpus=2)
    stub.gpus(2)
    spec = replace(started.spec, devices=started.spec.devices[:devices])
    with pytest.raises(GpuError, match="computed on"):
        await thaw(replace(started, spec=spec), stub, SAVED)
    assert stub.moves() == []


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
    tree: Trees, stub: CudaStub
) -> None:
    started = tree(2)
    script = _DOOMED.format(
        folder=str(started.spec.directory),
        devices=started.spec.devices,
        pid=started.process.pid,
        started=started.process.started,
        libraries=str(stub.folder),
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    doomed = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", script), stdout=subprocess.PIPE, env=environment
    )
    assert doomed.stdout
    assert await doomed.stdout.readline() == b"taken\n"
    doomed.kill()
    await doomed.wait()
    assert stub.states() == {"checkpointed"}
    await putting_back.mend(started.spec, started.process, str(stub.folder))
    assert stub.states() == {"running"}
    assert started.holders() == 2
    stub.forget_calls()
    await putting_back.mend(started.spec, started.process, str(stub.folder))
    assert stub.moves() == []
