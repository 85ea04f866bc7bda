"""What a snapshot demands of GPUs, and how much memory is reckoned with."""

from __future__ import annotations

import ctypes

import pytest

from snapshot.gpu import cuda, devices, model
from snapshot.gpu.host_memory import room_in_group
from snapshot.gpu.model import Device, GpuRecord, SavedGpu, Survey, Use

NEW, OLD = "580.65.06", "570.86.10"


def device(minor: int, *, uuid: str = "", free: int = 900, name: str = "H200") -> Device:
    return Device(minor, uuid or f"GPU-{minor}", name, 1000, free)


def saved(driver: str = NEW, *gpus: tuple[str, str, int]) -> GpuRecord:
    found = gpus or (("GPU-0", "H200", 100), ("GPU-1", "H200", 50))
    return GpuRecord(driver, tuple(SavedGpu(*gpu) for gpu in found), (2,))


def survey(driver: str = NEW, *found: Device) -> Survey:
    return Survey(driver, found or (device(0), device(1)))


@pytest.mark.parametrize(
    ("record", "here", "expected"),
    [
        (saved(), survey(), ""),
        (saved(), survey(NEW, device(4, uuid="GPU-x"), device(5, uuid="GPU-y")), ""),
        (saved(OLD), survey(OLD), ""),
        (saved(OLD), survey(OLD, device(0), device(1, uuid="GPU-x")), "only onto the GPU"),
        (saved(), survey("580.82.07"), "driver 580.65.06, and this machine has 580.82.07"),
        (saved(), survey(NEW, device(0)), "H200, H200, in this order; here are H200."),
        (saved(), survey(NEW, device(0), device(1, name="L4")), "here are H200, L4"),
        (saved(), survey(NEW, device(0), device(1, free=49)), "needs 50 bytes"),
        (
            saved(NEW, ("GPU-0", "H200", 1), ("GPU-1", "L4", 1)),
            survey(NEW, device(1, name="L4"), device(0)),
            "here are L4, H200",
        ),
    ],
    ids=[
        "the same GPUs",
        "others of the model",
        "the same ones, older driver",
        "others, older driver",
        "another driver",
        "fewer",
        "another model",
        "too little free",
        "another order",
    ],
)
def test_a_machine_fits_or_says_why_not(record: GpuRecord, here: Survey, expected: str) -> None:
    refusal = model.why_not_here(record, here)
    assert (refusal is None) == (not expected)
    assert expected in (refusal.message if refusal else "")


def test_moved_gpus_are_all_named_even_if_one_stayed() -> None:
    here = survey(NEW, device(0), device(7, uuid="GPU-x"))
    assert model.pairs(saved(), here) == (("GPU-0", "GPU-0"), ("GPU-1", "GPU-x"))
    assert model.pairs(saved(), survey()) == ()


def test_what_places_a_session_is_told_what_it_needs() -> None:
    assert model.constraints(None) == {}
    wanted = {
        "gpu_count": "2",
        "gpu_models": "H200; H200",
        "gpu_driver": NEW,
        "gpu_bytes": "100,50",
    }
    assert model.constraints(saved()) == wanted
    bound = {"gpu_driver": OLD, "gpu_uuids": "GPU-0,GPU-1"}
    assert model.constraints(saved(OLD)) == wanted | bound


@pytest.mark.parametrize(
    ("uses", "expected"),
    [
        ([Use(7, 0, 30), Use(8, 0, 12), Use(9, 0, 500)], 42),
        ([Use(7, 1, 30)], 0),
        ([Use(7, 0, None)], 100),
        ([Use(7, 0, 30), Use(8, 0, None)], 100),
        ([Use(9, 0, 500)], 100),
        ([], 100),
        ([Use(model.UNTOLD, 0, None), Use(7, 1, 30)], 100),
    ],
    ids=[
        "ours of several",
        "ours on another GPU",
        "not told",
        "one not told",
        "ours not listed",
        "nobody listed",
        "this GPU not told",
    ],
)
def test_memory_of_unknown_owners_counts_as_ours(uses: list[Use], expected: int) -> None:
    here = Survey(NEW, (device(0), device(1)), tuple(uses))
    assert model.used_bytes(here, here.devices[0], {7, 8}) == expected


def test_host_memory_must_hold_all_of_it() -> None:
    assert model.host_memory_refusal(10, 10) is None
    refusal = model.host_memory_refusal(11_000, 10)
    assert refusal
    assert "11,000 bytes" in refusal.message
    assert "only 10 bytes" in refusal.message


@pytest.mark.parametrize(
    ("limit", "current", "cached", "expected"),
    [("1000\n", "900\n", 0, 100), ("1000", "900", 300, 400), ("500", "900", 0, 0)],
)
def test_a_control_group_leaves_room_where_files_give_way(
    limit: str, current: str, cached: int, expected: int
) -> None:
    statistics = f"anon 5\ninactive_file {cached}\nactive_file 0\n"
    assert room_in_group(limit, current, statistics) == expected


def test_a_control_group_without_a_limit_limits_nothing() -> None:
    assert room_in_group("max\n", "900\n", "") is None
    assert room_in_group("", "", "") is None


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/dev/nvidia0", True),
        ("/dev/nvidiactl", True),
        ("/dev/nvidia-uvm", True),
        ("/dev/null", False),
        ("/home/alice/dev/nvidia0", False),
    ],
)
def test_the_drivers_devices_are_known_by_name(path: str, expected: bool) -> None:
    assert devices.is_drivers(path) is expected


def test_versions_that_are_none_are_older_than_all() -> None:
    assert [model.major(text) for text in ("580.65.06", "", "x.1")] == [580, 0, 0]


def test_arguments_of_calls_are_laid_out_as_published() -> None:
    blocks = (cuda.LockArguments, cuda.NoArguments, cuda.RestoreArguments)
    assert [ctypes.sizeof(block) for block in blocks] == [64, 64, 64]
    assert ctypes.sizeof(cuda.GpuPair) == 32
    assert (cuda.LockArguments.timeout_ms.offset, cuda.LockArguments.timeout_ms.size) == (0, 4)
    assert (cuda.RestoreArguments.pairs.offset, cuda.RestoreArguments.count.offset) == (0, 8)
    assert cuda.RestoreArguments.count.size == 4
