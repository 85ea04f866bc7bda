"""GPU state comes back to a restored tree, or the reason is told before anything is started."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from snapshot.gpu import putting_back
from snapshot.gpu.driver import GpuError
from snapshot.gpu.freezing import Taking
from snapshot.gpu.model import GpuRecord, SavedGpu
from snapshot.gpu.thawing import BringingBack
from tests.builders.cuda import MIB, MODEL, UUIDS, CudaStub, GpuTree, Trees, expected_undo


async def record_of(tree: GpuTree, cuda_stub: CudaStub) -> GpuRecord:
    """Frozen, and what the snapshot knows of it."""
    async with Taking(tree.spec, tree.process, str(cuda_stub.folder)) as gpu:
        assert await gpu.look() == ()
        await gpu.take()
        assert gpu.record
        gpu.keep()
        return gpu.record


async def thaw(
    tree: GpuTree, cuda_stub: CudaStub, saved: GpuRecord, *, seconds: float = 20
) -> None:
    """What a thaw does round CRIU's restore; the tree itself stands for the restored one."""
    bringing = BringingBack(saved, tree.spec, str(cuda_stub.folder), move_seconds=seconds)
    await bringing.look()
    bringing.check()
    await bringing.bring_back(tree.process)


@pytest.mark.parametrize("count", [1, 2, 3])
async def test_every_program_has_its_gpu_back_after_a_thaw(
    count: int, gpu_trees: Trees, cuda_stub: CudaStub
) -> None:
    started = gpu_trees(count)
    saved = await record_of(started, cuda_stub)
    cuda_stub.forget_calls()
    await thaw(started, cuda_stub, saved)
    assert cuda_stub.moves() == expected_undo(count, count)
    assert started.holders() == count
    assert cuda_stub.pairs() == []
    assert not (started.spec.directory / putting_back.NOTE_FILE).exists()


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("call", ["Restore", "Unlock", "GetState"])
async def test_a_failing_call_of_a_thaw_is_told(
    count: int, call: str, gpu_trees: Trees, cuda_stub: CudaStub
) -> None:
    started = gpu_trees(count)
    saved = await record_of(started, cuda_stub)
    cuda_stub.forget_calls()
    cuda_stub.script(f"{call} {count} 2")
    with pytest.raises(GpuError, match=r"did not come back.*CUDA_ERROR_OUT_OF_MEMORY"):
        await thaw(started, cuda_stub, saved)


async def test_a_restore_that_never_returns_is_told(gpu_trees: Trees, cuda_stub: CudaStub) -> None:
    started = gpu_trees(1)
    saved = await record_of(started, cuda_stub)
    cuda_stub.script("Restore 1 hang")
    with pytest.raises(GpuError, match="did not answer"):
        await thaw(started, cuda_stub, saved, seconds=1)


async def test_another_gpu_of_the_same_model_is_named_to_the_driver(
    gpu_trees: Trees, cuda_stub: CudaStub
) -> None:
    started = gpu_trees(1)
    saved = await record_of(started, cuda_stub)
    cuda_stub.other_gpu()
    await thaw(started, cuda_stub, saved)
    digits = [uuid.removeprefix("GPU-").replace("-", "") for uuid in UUIDS]
    assert cuda_stub.pairs() == ["".join(digits)]


SAVED = GpuRecord("580.65.06", (SavedGpu(UUIDS[0], MODEL, 100 * MIB),), (1,))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda cuda_stub: cuda_stub.driver("580.82.07"), r"driver 580\.65\.06.*has 580\.82\.07"),
        (
            lambda cuda_stub: cuda_stub.gpus(model="NVIDIA L4"),
            "computed on NVIDIA H200.*here are NVIDIA L4",
        ),
        (
            lambda cuda_stub: cuda_stub.gpus(free=99 * MIB),
            "needs 104,857,600 bytes.*103,809,024 bytes",
        ),
        (lambda cuda_stub: (cuda_stub.folder / "gpus").unlink(), "Driver Not Loaded"),
        (lambda cuda_stub: cuda_stub.gpus(0), "does not list GPU /dev/nvidia0"),
        (lambda cuda_stub: cuda_stub.split(), "MIG"),
    ],
    ids=["other driver", "other model", "too little free", "no driver", "GPU not listed", "slices"],
)
async def test_a_machine_that_does_not_fit_is_refused_before_the_restore(
    change: Callable[[CudaStub], None], reason: str, gpu_trees: Trees, cuda_stub: CudaStub
) -> None:
    started = gpu_trees(1)
    change(cuda_stub)
    with pytest.raises(GpuError, match=reason):
        await thaw(started, cuda_stub, SAVED)
    assert cuda_stub.moves() == []


@pytest.mark.parametrize("devices", [0, 2])
async def test_a_lease_with_another_number_of_gpus_is_refused(
    devices: int, gpu_trees: Trees, cuda_stub: CudaStub
) -> None:
    started = gpu_trees(1, gpus=2)
    cuda_stub.gpus(2)
    spec = replace(started.spec, devices=started.spec.devices[:devices])
    with pytest.raises(GpuError, match="computed on"):
        await thaw(replace(started, spec=spec), cuda_stub, SAVED)
    assert cuda_stub.moves() == []
