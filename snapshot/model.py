"""Values of the snapshot engine (pure)."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Identity:
    """The account a sandbox runs as: the same ids inside and outside."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    home: str = ""


@dataclass(frozen=True, slots=True)
class Bind:
    """A host path made visible inside. Non-recursive; both may be files or both folders."""

    source: str
    target: str
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class NetworkSpec:
    """`host_port` on the host's loopback reaches `inner_port`; only `reachable_ports` of the host's
    loopback are reachable from inside. `host_port` 0: nothing leads in (jobs)."""

    host_port: int = 0
    inner_port: int = 8888
    reachable_ports: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """Everything needed to build a sandbox, on any machine.

    `directory` is the sandbox's own folder on the host (skeleton root, /tmp, logs, records).
    `inner_root` is the unprivileged host id that the namespace's root maps to, distinct per sandbox.
    `devices` are host paths (character devices, or files for virtual GPUs) to show under /dev with
    their own base names; everything else under /dev is the minimal set. `image` is the digest of
    the container image whose files it shows, empty on a machine that shows its own. `layer` are
    folders inside whose content travels with a snapshot, because the disk below does not stay.
    """

    directory: Path
    identity: Identity
    inner_root: int
    argv: tuple[str, ...]
    environment: dict[str, str]
    folder: str
    binds: tuple[Bind, ...] = ()
    devices: tuple[str, ...] = ()
    network: NetworkSpec = NetworkSpec()
    image: str = ""
    layer: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Process:
    """A host process that cannot be confused with a later one of the same PID.

    `started` is field 22 of /proc/PID/stat (clock ticks since boot)."""

    pid: int
    started: int


@dataclass(frozen=True, slots=True)
class Blocker:
    """One thing that keeps a tree from being frozen, in words a researcher understands."""

    pid: int
    command: str
    what: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class SnapshotKey:
    """Where a snapshot belongs. Higher (epoch, sequence) is newer."""

    owner: str
    session: str
    epoch: int
    sequence: int


@dataclass(frozen=True, slots=True)
class Stored:
    """A committed snapshot: its manifest's key in the store, and sizes in bytes.

    `memory_bytes` is what was present in memory, `stored_bytes` what this snapshot added to the
    store after zero pages, deduplication and compression."""

    manifest: str
    key: SnapshotKey
    memory_bytes: int
    stored_bytes: int
    created_at: float
    constraints: dict[str, str] = field(default_factory=dict)
    timings: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a filling is: pages yet to come of `total` (0: not known yet), and why none come."""

    remaining: int = 0
    total: int = 0
    trouble: str = ""


class Filling(Protocol):
    """The memory of a tree that runs while the rest of it arrives."""

    @property
    def progress(self) -> Progress: ...

    def keep(self) -> None:
        """The caller has written down which tree it is. Until then the tree ends with the caller, so
        that there is none that nobody knows; from now on it is completed also without it."""
        ...

    async def until_filled(self) -> None:
        """Return once everything is in place. Raises `FillingLostError`: the tree must be ended.
        Cancelling stops only the waiting."""
        ...

    def close(self) -> None:
        """Let go, once everything is in place or the tree is gone. May be repeated."""
        ...


@dataclass(frozen=True, slots=True)
class Thawed:
    """A restored tree: its first process, and what was found changed in the world meanwhile.

    With `filling`, memory is still to come: the tree must not be frozen, and the snapshot stays the
    current one. The caller closes it."""

    process: Process
    notes: tuple[str, ...] = ()
    timings: dict[str, float] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    filling: Filling | None = None


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """Where snapshots go. `kind` is `s3` or `directory`; secrets are read from files, never here."""

    kind: str
    location: str
    bucket: str = ""
    region: str = "us-east-1"
    credentials_file: str = ""
    keys_directory: str = ""
    cache_directory: str = ""
    cache_bytes: int = 20 * 2**30


@dataclass(frozen=True, slots=True)
class Tools:
    """Argument-vector prefixes and paths of the programs in the private prefix."""

    criu: tuple[str, ...]
    pasta: tuple[str, ...]
    init: tuple[str, ...]
    socket_statistics: tuple[str, ...] = ()
