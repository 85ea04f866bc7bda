"""GPUs of this machine: the driver's, or virtual ones that are files and compute nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from scheduler_bridge.agent.inventory import ensure_device_files, virtual_node

DEFAULT_VIRTUAL = 2


@dataclass(frozen=True, slots=True)
class RealGpus:
    """What the driver reports. `problem` says why nothing can be read, where there is a driver."""

    models: tuple[str, ...] = ()
    problem: str = ""


def read_real_gpus() -> RealGpus:
    """Ask NVML. No driver at all is no problem: there is nothing to report."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        absent = {pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED}
        return RealGpus() if error.value in absent else RealGpus(problem=str(error))
    try:
        count = pynvml.nvmlDeviceGetCount()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
        return RealGpus(tuple(str(pynvml.nvmlDeviceGetName(handle)) for handle in handles))
    except pynvml.NVMLError as error:
        return RealGpus(problem=str(error))
    finally:
        pynvml.nvmlShutdown()


def write_virtual_gpus(folder: Path, count: int) -> tuple[Path, ...]:
    """Device files of as many virtual GPUs as asked, and no others. Kept ones keep their content."""
    gpus = virtual_node(count, folder).gpus
    ensure_device_files(gpus)
    wanted = [Path(gpu.device) for gpu in gpus]
    for path in set(folder.glob("vgpu*")) - set(wanted):
        path.unlink()
    return tuple(wanted)
