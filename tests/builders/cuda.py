"""A scripted NVIDIA driver (a C library built here) and trees of programs that use its GPU.

`cuda_stub.c` says how it is scripted. The real library is called the same way: by a helper process
that finds `libcuda.so.1` in a folder.
"""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from snapshot import proc
from snapshot.gpu import devices
from snapshot.model import Identity, Process, SandboxSpec

MIB = 2**20
UUIDS = (
    "GPU-11111111-2222-3333-4444-555555555555",
    "GPU-66666666-7777-8888-9999-aaaaaaaaaaaa",
)
MODEL = "NVIDIA H200"
_SOURCE = Path(__file__).with_name("cuda_stub.c")
_LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1")
_STATES = {"0": "running", "1": "locked", "2": "checkpointed", "3": "failed"}
MOVES = ("Lock", "Checkpoint", "Restore", "Unlock")

# Releases its GPU and takes it back when the driver says so; its children do the same.
PROGRAM = """
import os, signal, sys, time
held = -1

def let_go(*_):
    os.close(held)

def take_back(*_):
    global held
    held = os.open("/dev/nvidia0", os.O_RDWR)

signal.signal(signal.SIGUSR1, let_go)
signal.signal(signal.SIGUSR2, take_back)
for _ in range(int(sys.argv[1]) - 1):
    if os.fork() == 0:
        break
kept = os.open("/dev/nvidiactl", os.O_RDWR) if "leaky" in sys.argv else -1
take_back()
turn = 0
while True:
    turn += 1
    try:
        os.fstat(held)
        print(f"turn {turn} holds True", flush=True)
    except OSError:
        print(f"turn {turn} holds False", flush=True)
    time.sleep(0.02)
"""


@dataclass(frozen=True, slots=True)
class CudaStub:
    """The scripted driver in one folder, which is what `libraries` of the code under test names."""

    folder: Path

    def programs(self, *inner: int) -> None:
        """Which programs have CUDA, by their PIDs in the sandbox."""
        self._write("contexts", "\n".join(map(str, inner)))

    def script(self, *lines: str) -> None:
        """What is to fail, as in `cuda_stub.c`; replaces what was scripted before."""
        self._write("script", "".join(f"{line}\n" for line in lines))

    def stop_waiting(self) -> None:
        """Calls scripted with `wait` go on."""
        self._write("go", "")

    def driver(self, version: str) -> None:
        self._write("driver", version)

    def gpus(self, count: int = 1, *, free: int = 900 * MIB, model: str = MODEL) -> None:
        """GPUs with 1000 MiB each."""
        lines = [f"{n} {UUIDS[n]} {1000 * MIB} {free} {model}\n" for n in range(count)]
        self._write("gpus", "".join(lines))

    def other_gpu(self) -> None:
        """One GPU, of another UUID than before."""
        self._write("gpus", f"0 {UUIDS[1]} {1000 * MIB} {900 * MIB} {MODEL}\n")

    def split(self) -> None:
        """GPUs are divided by MIG."""
        self._write("mig", "")

    def used(self, *uses: tuple[int, int]) -> None:
        """Bytes (-1: not told) that host processes hold on the first GPU."""
        self._write("used", "".join(f"{pid} 0 {size}\n" for pid, size in uses))

    @property
    def was_loaded(self) -> bool:
        return (self.folder / "loaded").exists()

    def moves(self) -> list[str]:
        """The calls that move state, as "NAME PID RESULT", in order."""
        calls = self._read("calls").splitlines()
        return [call for call in calls if call.split()[0] in MOVES]

    def states(self) -> set[str]:
        """The states that programs are in, those that were ever moved."""
        return {_STATES[path.read_text()] for path in self.folder.glob("state-*")}

    def pairs(self) -> list[str]:
        """UUID pairs given to Restore, as hex digits."""
        return self._read("pairs").split()

    def forget_calls(self) -> None:
        (self.folder / "calls").unlink(missing_ok=True)

    def _write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)

    def _read(self, name: str) -> str:
        path = self.folder / name
        return path.read_text() if path.exists() else ""


def expected_undo(locked: int, checkpointed: int) -> list[str]:
    """Everything that was done, backwards: all memory first, then the locks."""
    restores = [f"Restore {pid} 0" for pid in range(checkpointed, 0, -1)]
    return [*restores, *(f"Unlock {pid} 0" for pid in range(locked, 0, -1))]


def build(folder: Path, *, old: bool = False) -> CudaStub:
    """Compile the stub into `folder` (0.1 s). `old`: a driver without the checkpoint calls.

    Needs a C compiler, which set-up brings for tests."""
    folder.mkdir(parents=True)
    built = folder / _LIBRARIES[0]
    flags = ["-shared", "-fPIC", "-Wall", "-Wextra", "-Werror"]
    flags += ["-DOLD_DRIVER", "-Wno-unused-function", "-Wno-unused-const-variable"] if old else []
    subprocess.run(["gcc", *flags, "-o", str(built), str(_SOURCE), "-ldl"], check=True)
    shutil.copy(built, folder / _LIBRARIES[1])
    stub = CudaStub(folder)
    stub.driver("580.65.06")
    stub.gpus()
    return stub


def make_device(folder: Path, name: str) -> str:
    """A character device of that name which anybody may open."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(*_unsavable()))
    path.chmod(0o666)
    return str(path)


def _unsavable() -> tuple[int, int]:
    """Numbers of a device that CRIU refuses to save when it is open: that of user file systems, or,
    where this machine forbids that, of /dev/null, which it does save."""
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR))
    except OSError:
        return 1, 3
    return 10, 229


@dataclass(frozen=True, slots=True)
class GpuTree:
    """Programs in a PID namespace of their own, where they are 1, 2 and so on, that hold
    /dev/nvidia0. `pids` are those of the host."""

    spec: SandboxSpec
    process: Process
    output: Path
    pids: tuple[int, ...]

    def holders(self) -> int:
        """How many programs hold the GPU now."""
        members = proc.members(self.process)
        return sum("/dev/nvidia0" in devices.held_by(member.pid) for member in members)


@contextmanager
def gpu_tree(folder: Path, count: int = 1, *words: str, gpus: int = 1) -> Iterator[GpuTree]:
    """`count` programs, ended with the context. Needs root."""
    dev = folder / "dev"
    nodes = tuple(make_device(dev, f"nvidia{number}") for number in range(gpus))
    make_device(dev, "nvidiactl")
    output = folder / "output"
    enter = "unshare --pid --fork --kill-child"
    program = ("/usr/bin/python3", "-c", PROGRAM, str(count), *words)
    start = ("unshare", "--mount", "sh", "-c", f'mount --bind "$0" /dev && exec {enter} "$@"')
    with output.open("w") as handle:
        outer = subprocess.Popen([*start, str(dev), *program], stdout=handle, stderr=handle)
    try:
        first = _until_up(outer.pid, count, output)
        spec = SandboxSpec(
            directory=folder,
            identity=Identity("alice", 0, 0),
            inner_root=0,
            argv=(),
            environment={},
            folder="/",
            devices=nodes,
        )
        members = proc.members(first)
        yield GpuTree(spec, first, output, tuple(member.pid for member in members))
    finally:
        for pid in proc.children(outer.pid):
            os.kill(pid, signal.SIGKILL)
        outer.wait()


Trees = Callable[..., GpuTree]
"""Starts a tree: `trees(count, *words, gpus=1)`; it ends with the test."""


def _until_up(outer: int, count: int, output: Path) -> Process:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        for pid in proc.children(outer):
            first = proc.identify(pid)
            members = proc.members(first) if first else ()
            if first and sum(bool(devices.held_by(each.pid)) for each in members) == count:
                return first
    raise AssertionError(f"the programs did not start: {output.read_text()}")
