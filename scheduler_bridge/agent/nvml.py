"""GPUs that the NVIDIA driver knows. Every failure is a state, never an exception."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Any, Final, Protocol

from scheduler_bridge.model.workload import Gpu, Node

_UNKNOWN: Final = frozenset({"", "n/a", "[n/a]", "not supported", "[not supported]", "unknown"})


class Nvml(Protocol):
    """The part of pynvml that is used."""

    NVMLError: type[Exception]

    def nvmlInit(self) -> None: ...  # noqa: N802
    def nvmlShutdown(self) -> None: ...  # noqa: N802
    def nvmlSystemGetDriverVersion(self) -> Any: ...  # noqa: N802
    def nvmlDeviceGetCount(self) -> int: ...  # noqa: N802
    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any: ...  # noqa: N802
    def nvmlDeviceGetUUID(self, handle: Any) -> Any: ...  # noqa: N802
    def nvmlDeviceGetName(self, handle: Any) -> Any: ...  # noqa: N802
    def nvmlDeviceGetMinorNumber(self, handle: Any) -> int: ...  # noqa: N802
    def nvmlDeviceGetMemoryInfo(self, handle: Any) -> Any: ...  # noqa: N802


@dataclass(frozen=True, slots=True)
class Inventory:
    """What the driver told. `problems` are sentences for an operator; a GPU without a UUID or a
    device file cannot be leased and is only named there."""

    gpus: tuple[Gpu, ...] = ()
    problems: tuple[str, ...] = ()
    driver: bool = False


def read_inventory(*, node: str, nvml: Nvml | None = None) -> Inventory:
    """Ask the driver once. No driver: no GPUs."""
    library = nvml or _load()
    if library is None:
        return Inventory(problems=("pynvml is not installed.",))
    try:
        library.nvmlInit()
    except library.NVMLError as error:
        return Inventory(problems=(f"No NVIDIA driver answers: {error}.",))
    try:
        return _read(library, node)
    except library.NVMLError as error:
        return Inventory(problems=(f"The driver does not list its GPUs: {error}.",), driver=True)
    finally:
        _shut_down(library)


def driver_version(*, nvml: Nvml | None = None) -> str:
    """The driver's version now; empty if none answers."""
    library = nvml or _load()
    if library is None:
        return ""
    try:
        library.nvmlInit()
    except library.NVMLError:
        return ""
    try:
        return known_text(library.nvmlSystemGetDriverVersion()) or ""
    except library.NVMLError:
        return ""
    finally:
        _shut_down(library)


def _load() -> Nvml | None:
    try:
        import pynvml
    except ImportError:
        return None
    library: Nvml = pynvml
    return library


def _shut_down(library: Nvml) -> None:
    try:
        library.nvmlShutdown()
    except library.NVMLError:
        return


def _read(library: Nvml, node: str) -> Inventory:
    gpus, problems = [], []
    for index in range(library.nvmlDeviceGetCount()):
        try:
            gpus.append(_gpu(library, node, index))
        except library.NVMLError as error:
            problems.append(f"GPU {index} does not answer: {error}.")
        except ValueError as error:
            problems.append(f"GPU {index} cannot be leased: {error}.")
    return Inventory(tuple(gpus), tuple(problems), driver=True)


def _gpu(library: Nvml, node: str, index: int) -> Gpu:
    handle = library.nvmlDeviceGetHandleByIndex(index)
    uuid = known_text(library.nvmlDeviceGetUUID(handle))
    if uuid is None:
        raise ValueError("its UUID is unknown")
    return Gpu(
        uuid=uuid,
        node=node,
        index=index,
        model=known_text(_optional(library, library.nvmlDeviceGetName, handle)) or "unknown GPU",
        # the driver's index follows the PCI bus, the device file's number is the minor
        device=f"/dev/nvidia{library.nvmlDeviceGetMinorNumber(handle)}",
        memory_bytes=_memory(_optional(library, library.nvmlDeviceGetMemoryInfo, handle)),
    )


def _optional(library: Nvml, call: Any, handle: Any) -> Any:
    """The answer, or None where this GPU or driver has none."""
    try:
        return call(handle)
    except library.NVMLError:
        return None


def known_text(value: Any) -> str | None:
    """Text of the driver; blank and N/A are unknown, never a value."""
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    if not isinstance(value, str) or value.strip().lower() in _UNKNOWN:
        return None
    return value.strip()


def _memory(info: Any) -> int | None:
    total = getattr(info, "total", None)
    return total if isinstance(total, int) and total > 0 else None


def nvml_node(*, name: str = "") -> tuple[Node, tuple[str, ...]]:
    """This machine with the GPUs that its driver knows, and what is wrong with others."""
    node = name or socket.gethostname()
    inventory = read_inventory(node=node)
    return Node(node, inventory.gpus), inventory.problems
