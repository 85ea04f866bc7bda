"""What a snapshot says about the tree in it, beside its memory and images (pure).

Kept as `extra` in the manifest. A field may be added with a default; none changes its meaning.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter

from snapshot.gpu.model import GpuRecord
from snapshot.layer import LayerRecord
from snapshot.pins import Pin
from snapshot.plan import Mount


@dataclass(frozen=True, slots=True)
class TreeRecord:
    """`pins` are the files held on to at this freeze, in the folder `pin_folder`. `closed` are the
    far ends of connections to outside that the freeze closed. `constraints` tell which machines
    can thaw it; `timings` are seconds per step; `gpu` is there if programs had GPU state,
    `layers` say which folders' files travel in the snapshot."""

    criu: str
    inner_root: int
    mounts: tuple[Mount, ...]
    pin_folder: str
    pins: tuple[Pin, ...] = ()
    devices: tuple[str, ...] = ()
    closed: tuple[str, ...] = ()
    constraints: dict[str, str] = field(default_factory=dict)
    timings: dict[str, float] = field(default_factory=dict)
    gpu: GpuRecord | None = None
    layers: tuple[LayerRecord, ...] = ()


_ADAPTER = TypeAdapter(TreeRecord)


def to_extra(record: TreeRecord) -> dict[str, Any]:
    """As JSON values."""
    values: dict[str, Any] = _ADAPTER.dump_python(record, mode="json")
    return values


def from_extra(extra: dict[str, Any]) -> TreeRecord:
    """Raises `pydantic.ValidationError` for what is no record."""
    return _ADAPTER.validate_python(extra)


def copy_name(pin: Pin) -> str:
    """Under which name the snapshot keeps a copied file."""
    return f"pinned-{pin.id}"
