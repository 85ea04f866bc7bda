"""Virtual GPUs: files that stand for devices, so that everything but the computing is real."""

from __future__ import annotations

import hashlib
import json
import os
import socket
from pathlib import Path
from typing import Final

from scheduler_bridge.model.workload import Gpu, Node

VIRTUAL_MODEL: Final = "Virtual GPU"
_MACHINE_ID: Final = Path("/etc/machine-id")
MAX_VIRTUAL_GPUS: Final = 1024


def host_mark() -> str:
    """Eight hex digits that stay the same on this host."""
    try:
        identity = _MACHINE_ID.read_text().strip()
    except OSError:
        identity = ""
    return hashlib.sha256((identity or socket.gethostname()).encode()).hexdigest()[:8]


def virtual_gpus(count: int, folder: Path, *, node: str, mark: str) -> tuple[Gpu, ...]:
    """`count` virtual GPUs whose device files are `folder/vgpuN`. Touches no file."""
    return tuple(
        Gpu(
            uuid=f"VGPU-{mark}-{index}",
            node=node,
            index=index,
            model=VIRTUAL_MODEL,
            device=str(folder / f"vgpu{index}"),
            virtual=True,
        )
        for index in range(count)
    )


def ensure_device_files(gpus: tuple[Gpu, ...]) -> None:
    """Create the files that are missing; each says in one JSON line what it stands for."""
    for gpu in gpus:
        path = Path(gpu.device)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:
            continue
        with os.fdopen(descriptor, "w") as handle:
            # whatever the umask is: the sandbox decides who may see it, the file lets anybody
            os.fchmod(handle.fileno(), 0o666)
            json.dump({"uuid": gpu.uuid, "index": gpu.index, "virtual": True}, handle)
            handle.write("\n")


def virtual_node(count: int, folder: Path, *, name: str = "") -> Node:
    """This machine with `count` virtual GPUs."""
    node = name or socket.gethostname()
    return Node(node, virtual_gpus(count, folder, node=node, mark=host_mark()))
