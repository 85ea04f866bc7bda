"""What the driver tells about GPUs, their memory and who computes on them. Used only in the helper."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from snapshot.gpu.model import UNTOLD


def survey(minors: Iterable[int]) -> dict[str, Any]:
    """The fields of `model.Survey`, the devices in the order of `minors`.

    Raises `pynvml.NVMLError`, and `LookupError` for a GPU that the driver does not list.
    """
    import pynvml

    pynvml.nvmlInit()
    try:
        handles = dict(_handles(pynvml))
        wanted = [(minor, handles[minor]) for minor in minors]
        return {
            "driver": str(pynvml.nvmlSystemGetDriverVersion()),
            "devices": [_device(pynvml, minor, handle) for minor, handle in wanted],
            "uses": [use for minor, handle in wanted for use in _uses(pynvml, minor, handle)],
        }
    finally:
        pynvml.nvmlShutdown()


def _handles(nvml: Any) -> Iterator[tuple[int, Any]]:
    for index in range(nvml.nvmlDeviceGetCount()):
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        yield nvml.nvmlDeviceGetMinorNumber(handle), handle


def _device(nvml: Any, minor: int, handle: Any) -> dict[str, Any]:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    return {
        "minor": minor,
        "uuid": str(nvml.nvmlDeviceGetUUID(handle)),
        "model": str(nvml.nvmlDeviceGetName(handle)),
        "total_bytes": memory.total,
        "free_bytes": memory.free,
        "is_split": _is_split(nvml, handle),
    }


def _is_split(nvml: Any, handle: Any) -> bool:
    try:
        current, _ = nvml.nvmlDeviceGetMigMode(handle)
    except nvml.NVMLError:
        return False  # a GPU or driver that knows no MIG
    return bool(current == nvml.NVML_DEVICE_MIG_ENABLE)


def _uses(nvml: Any, minor: int, handle: Any) -> Iterator[dict[str, Any]]:
    try:
        running = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    except nvml.NVMLError:
        # Not told is not "nobody".
        yield {"pid": UNTOLD, "minor": minor, "used_bytes": None}
        return
    for process in running:
        yield {"pid": process.pid, "minor": minor, "used_bytes": process.usedGpuMemory}
