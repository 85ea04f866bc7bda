"""GPUs of the driver and virtual ones."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scheduler_bridge.agent.inventory import ensure_device_files, host_mark, virtual_node
from scheduler_bridge.agent.nvml import driver_version, known_text, nvml_node, read_inventory
from scheduler_bridge.model.workload import Gpu


def test_virtual_gpus_are_marked_and_have_device_files(tmp_path: Path) -> None:
    node = virtual_node(2, tmp_path / "vgpu", name="here")
    ensure_device_files(node.gpus)
    ensure_device_files(node.gpus)
    assert [gpu.uuid for gpu in node.gpus] == [f"VGPU-{host_mark()}-{n}" for n in range(2)]
    assert all(gpu.virtual and gpu.node == "here" for gpu in node.gpus)
    path = tmp_path / "vgpu" / "vgpu1"
    assert node.gpus[1].device == str(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666
    assert json.loads(path.read_text())["uuid"] == node.gpus[1].uuid


def test_the_same_host_gives_the_same_names(tmp_path: Path) -> None:
    assert virtual_node(1, tmp_path) == virtual_node(1, tmp_path)


class DriverError(Exception):
    """Stands for NVMLError."""


class Driver:
    """A driver with two good GPUs, as pynvml shows it."""

    NVMLError: type[Exception] = DriverError

    def __init__(self) -> None:
        self.shut_down = 0

    def nvmlInit(self) -> None:
        pass

    def nvmlShutdown(self) -> None:
        self.shut_down += 1

    def nvmlSystemGetDriverVersion(self) -> Any:
        return b"580.65.06"

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:
        return index

    def nvmlDeviceGetUUID(self, handle: Any) -> Any:
        return f"GPU-{handle}"

    def nvmlDeviceGetName(self, handle: Any) -> Any:
        return b"NVIDIA H200"

    def nvmlDeviceGetMinorNumber(self, handle: Any) -> int:
        return 1 - int(handle)

    def nvmlDeviceGetMemoryInfo(self, handle: Any) -> Any:
        return SimpleNamespace(total=141 * 2**30)


class NoDriver(Driver):
    def nvmlInit(self) -> None:
        raise DriverError("Driver Not Loaded")


class DriverThatCannotCount(Driver):
    def nvmlDeviceGetCount(self) -> int:
        raise DriverError("Unknown Error")


class DriverWithoutVersion(Driver):
    def nvmlSystemGetDriverVersion(self) -> Any:
        raise DriverError("Unknown Error")


class FirstGpuIsLost(Driver):
    def nvmlDeviceGetUUID(self, handle: Any) -> Any:
        if handle == 0:
            raise DriverError("GPU is lost")
        return super().nvmlDeviceGetUUID(handle)


class FirstGpuHasNoUuid(Driver):
    def nvmlDeviceGetUUID(self, handle: Any) -> Any:
        return "[N/A]" if handle == 0 else super().nvmlDeviceGetUUID(handle)


class DriverThatTellsLittle(Driver):
    def nvmlDeviceGetName(self, handle: Any) -> Any:
        return ""

    def nvmlDeviceGetMemoryInfo(self, handle: Any) -> Any:
        raise DriverError("Not Supported")


class DriverThatDoesNotLetGo(Driver):
    def nvmlShutdown(self) -> None:
        raise DriverError("Uninitialized")


def test_gpus_are_listed_with_the_device_file_that_opens_them() -> None:
    driver = Driver()
    found = read_inventory(node="here", nvml=driver)
    assert found.gpus == (
        Gpu("GPU-0", "here", 0, "NVIDIA H200", "/dev/nvidia1", False, 141 * 2**30),
        Gpu("GPU-1", "here", 1, "NVIDIA H200", "/dev/nvidia0", False, 141 * 2**30),
    )
    assert (found.problems, found.driver, driver.shut_down) == ((), True, 1)


@pytest.mark.parametrize(
    ("driver", "uuids", "problem"),
    [
        (NoDriver(), [], "No NVIDIA driver answers"),
        (DriverThatCannotCount(), [], "does not list"),
        (FirstGpuIsLost(), ["GPU-1"], "GPU 0 does not answer: GPU is lost"),
        (FirstGpuHasNoUuid(), ["GPU-1"], "GPU 0 cannot be leased"),
    ],
)
def test_failures_are_states(driver: Driver, uuids: list[str], problem: str) -> None:
    found = read_inventory(node="here", nvml=driver)
    assert [gpu.uuid for gpu in found.gpus] == uuids
    assert problem in found.problems[0]


@pytest.mark.parametrize(
    ("driver", "version"),
    [(Driver(), "580.65.06"), (NoDriver(), ""), (DriverWithoutVersion(), "")],
)
def test_the_drivers_version(driver: Driver, version: str) -> None:
    assert driver_version(nvml=driver) == version


def test_what_the_driver_does_not_tell_is_unknown() -> None:
    found = read_inventory(node="here", nvml=DriverThatTellsLittle())
    assert [(gpu.model, gpu.memory_bytes) for gpu in found.gpus] == [("unknown GPU", None)] * 2


def test_a_driver_that_does_not_let_go_is_no_failure() -> None:
    assert len(read_inventory(node="here", nvml=DriverThatDoesNotLetGo()).gpus) == 2


@pytest.mark.parametrize("value", ["", " ", "N/A", "[Not Supported]", b"n/a", None, 3])
def test_blank_and_not_available_are_unknown(value: object) -> None:
    assert known_text(value) is None


def test_the_real_library_gives_a_node_on_any_machine() -> None:
    node, problems = nvml_node(name="here")
    assert node.name == "here"
    assert node.gpus or problems
