"""What a snapshot knows of GPUs, and which machine it fits (pure).

The rules, with their reasons:

- **The same driver version.** A restored program has the old `libcuda` in its memory, and that
  library talks only to the kernel module of its own version.
- **The same models, as many, in the same order.** The driver puts each GPU's state back on one GPU.
- **Other GPUs of that model** only from driver 580 on; before, the very same ones (by UUID).
- **Enough free memory on each.** A process whose restore runs out of it never recovers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

OLDEST_DRIVER = 570
"""The first major version with the checkpoint calls."""

FIRST_TO_MOVE = 580
"""The first major version that restores onto another GPU of the same model."""


UNTOLD = 0
"""Stands for a PID where the driver does not list who uses a GPU."""


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU as the driver sees it now. `minor` is the number in /dev/nvidiaN; `is_split`: it is
    divided into MIG slices."""

    minor: int
    uuid: str
    model: str
    total_bytes: int
    free_bytes: int
    is_split: bool = False


@dataclass(frozen=True, slots=True)
class Use:
    """GPU memory that a process (host PID) holds on one GPU; `used_bytes` None: not told."""

    pid: int
    minor: int
    used_bytes: int | None


@dataclass(frozen=True, slots=True)
class Survey:
    """The driver's answer about a sandbox's GPUs, in the order of its lease."""

    driver: str
    devices: tuple[Device, ...]
    uses: tuple[Use, ...] = ()


@dataclass(frozen=True, slots=True)
class SavedGpu:
    """A GPU that a frozen tree computed on, and how much of its memory the tree held."""

    uuid: str
    model: str
    used_bytes: int


@dataclass(frozen=True, slots=True)
class GpuRecord:
    """GPU state in a snapshot. `pids` are the programs' PIDs inside the sandbox, in the order in
    which their state was taken; `gpus` in the order of the lease."""

    driver: str
    gpus: tuple[SavedGpu, ...]
    pids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why not, and what can be done."""

    message: str
    remedy: str = ""


def major(version: str) -> int:
    """580 for 580.65.06; 0 for what is no version."""
    head = version.split(".")[0].strip()
    return int(head) if head.isdigit() else 0


def record(survey: Survey, processes: Sequence[tuple[int, int]]) -> GpuRecord:
    """The record of processes given as (host PID, inner PID)."""
    hosts = {host for host, _ in processes}
    gpus = tuple(
        SavedGpu(device.uuid, device.model, used_bytes(survey, device, hosts))
        for device in survey.devices
    )
    return GpuRecord(survey.driver, gpus, tuple(inner for _, inner in processes))


def used_bytes(survey: Survey, device: Device, pids: set[int]) -> int:
    """What these processes hold on a GPU. Where the driver does not tell it by process, all that is
    in use there: too much is only refused, too little would run out in the middle."""
    own = [use for use in survey.uses if use.pid in pids]
    here = [use for use in survey.uses if use.minor == device.minor and use.pid in {*pids, UNTOLD}]
    if not own or any(use.used_bytes is None for use in here):
        return device.total_bytes - device.free_bytes
    return sum(use.used_bytes or 0 for use in here)


def host_memory_refusal(needed: int, available: int) -> Refusal | None:
    """Why GPU memory of `needed` bytes cannot wait in host memory."""
    if needed <= available:
        return None
    return Refusal(
        f"Its programs hold {needed:,} bytes of GPU memory, which would have to wait in this "
        f"machine's memory, and only {available:,} bytes of that are available.",
        "Free GPU memory (torch.cuda.empty_cache(), del) or end other programs on this machine.",
    )


def split_refusal(survey: Survey) -> Refusal | None:
    """MIG: the driver saves a slice's memory and then cannot bring it back ("out of memory"), which
    would be too late to find out."""
    if not any(device.is_split for device in survey.devices):
        return None
    return Refusal(
        "The NVIDIA driver does not bring back the memory of MIG slices.",
        "Save what matters to a file and end the programs that use the GPU.",
    )


def why_not_here(saved: GpuRecord, survey: Survey) -> Refusal | None:
    """Why this machine, with these GPUs, cannot take the state back."""
    if saved.driver != survey.driver:
        return Refusal(
            f"The session's programs use NVIDIA driver {saved.driver}, and this machine has "
            f"{survey.driver or 'none'}.",
            "It can come back where that driver still is.",
        )
    if refusal := split_refusal(survey):
        return refusal
    models, here = [g.model for g in saved.gpus], [d.model for d in survey.devices]
    if models != here:
        return Refusal(
            f"The session computed on {_list(models)}, in this order; here are {_list(here)}.",
            "It needs the same GPUs, as many and in the same order.",
        )
    if pairs(saved, survey) and major(survey.driver) < FIRST_TO_MOVE:
        return Refusal(
            f"Driver {survey.driver} brings GPU memory back only onto the GPU that it came from "
            f"({_list([g.uuid for g in saved.gpus])}).",
            f"From driver {FIRST_TO_MOVE} on, any GPU of the same model will do.",
        )
    for gpu, device in zip(saved.gpus, survey.devices, strict=True):
        if device.free_bytes < gpu.used_bytes:
            return Refusal(
                f"The session needs {gpu.used_bytes:,} bytes of memory on GPU {device.uuid}, and "
                f"{device.free_bytes:,} bytes are free.",
                "Another program may still hold it: see nvidia-smi.",
            )
    return None


def pairs(saved: GpuRecord, survey: Survey) -> tuple[tuple[str, str], ...]:
    """Old and new UUID of every GPU if any differs, else nothing: the driver wants all or none."""
    both = tuple((g.uuid, d.uuid) for g, d in zip(saved.gpus, survey.devices, strict=True))
    return both if any(old != new for old, new in both) else ()


def constraints(saved: GpuRecord | None) -> dict[str, str]:
    """What whoever places the session must know, beforehand; lists are in the order of the GPUs.

    `gpu_count`, `gpu_models` (separated by `; `), `gpu_driver` (equal), `gpu_bytes` (to be free on
    each, separated by `,`), and, where the driver cannot move between GPUs, `gpu_uuids`.
    Nothing if no program used a GPU: then any will do.
    """
    if saved is None:
        return {}
    found = {
        "gpu_count": str(len(saved.gpus)),
        "gpu_models": _models(saved.gpus),
        "gpu_driver": saved.driver,
        "gpu_bytes": ",".join(str(gpu.used_bytes) for gpu in saved.gpus),
    }
    if major(saved.driver) < FIRST_TO_MOVE:
        found["gpu_uuids"] = ",".join(gpu.uuid for gpu in saved.gpus)
    return found


def facts(survey: Survey) -> dict[str, str]:
    """Driver and GPUs of a lease in the same form."""
    return {"gpu_driver": survey.driver, "gpu_models": _models(survey.devices)}


def _models(gpus: Sequence[SavedGpu] | Sequence[Device]) -> str:
    return "; ".join(gpu.model for gpu in gpus)


def _list(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"
