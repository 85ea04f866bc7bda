"""CUDA's checkpoint calls (driver API 12.8 and newer), through ctypes. Used only in the helper.

Layouts and names are those of the CUDA driver API's public reference, section "CUDA Checkpointing".
All argument structures are 64 bytes long, and reserved parts are zero.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Final

LIBRARY: Final = "libcuda.so.1"
_PAIR_BYTES: Final = 16


class LockArguments(ctypes.Structure):
    """CUcheckpointLockArgs. `timeout_ms` 0 waits for ever."""

    _fields_ = (
        ("timeout_ms", ctypes.c_uint),
        ("reserved0", ctypes.c_uint),
        ("reserved1", ctypes.c_uint64 * 7),
    )


class GpuPair(ctypes.Structure):
    """CUcheckpointGpuPair: two UUIDs."""

    _fields_ = (("old", ctypes.c_ubyte * _PAIR_BYTES), ("new", ctypes.c_ubyte * _PAIR_BYTES))


class RestoreArguments(ctypes.Structure):
    """CUcheckpointRestoreArgs. Older drivers know no pairs, and newer ones find NULL in what is
    reserved here for them."""

    _fields_ = (
        ("pairs", ctypes.POINTER(GpuPair)),
        ("count", ctypes.c_uint),
        ("reserved", ctypes.c_char * (52 - ctypes.sizeof(ctypes.c_void_p))),
        ("reserved1", ctypes.c_uint64),
    )


class NoArguments(ctypes.Structure):
    """CUcheckpointCheckpointArgs and CUcheckpointUnlockArgs."""

    _fields_ = (("reserved", ctypes.c_uint64 * 8),)


class Cuda:
    """The library. Each call returns (CUresult, value); 0 is success.

    Raises `OSError` if there is no such library, `AttributeError` if it lacks the calls.
    """

    def __init__(self) -> None:
        library = ctypes.CDLL(LIBRARY)
        self._initialise = library.cuInit
        self._describe = library.cuGetErrorName
        self._state = library.cuCheckpointProcessGetState
        self._thread = library.cuCheckpointProcessGetRestoreThreadId
        self._lock = library.cuCheckpointProcessLock
        self._checkpoint = library.cuCheckpointProcessCheckpoint
        self._restore = library.cuCheckpointProcessRestore
        self._unlock = library.cuCheckpointProcessUnlock

    def initialise(self) -> int:
        """cuInit: a restore needs it wherever the driver's persistence mode is off. No context is
        made, no GPU memory used."""
        return int(self._initialise(0))

    def error_name(self, code: int) -> str:
        """As CUDA's headers call it."""
        text = ctypes.c_char_p()
        if self._describe(code, ctypes.byref(text)) != 0 or not text.value:
            return f"CUDA error {code}"
        return text.value.decode(errors="replace")

    def state(self, pid: int) -> tuple[int, int]:
        """CUprocessState of a process."""
        value = ctypes.c_int()
        return int(self._state(pid, ctypes.byref(value))), value.value

    def thread(self, pid: int) -> tuple[int, int]:
        """The thread that restores in a process; fails where there is no CUDA in it."""
        value = ctypes.c_int()
        return int(self._thread(pid, ctypes.byref(value))), value.value

    def lock(self, pid: int, timeout_ms: int) -> tuple[int, int]:
        """Let running work finish and hold back all further calls."""
        return int(self._lock(pid, ctypes.byref(LockArguments(timeout_ms=timeout_ms)))), 0

    def checkpoint(self, pid: int) -> tuple[int, int]:
        """Move a locked process's GPU memory to its host memory, and release its GPUs."""
        return int(self._checkpoint(pid, ctypes.byref(NoArguments()))), 0

    def restore(self, pid: int, pairs: Sequence[tuple[str, str]]) -> tuple[int, int]:
        """Bring it back, locked; onto other GPUs if `pairs` of UUIDs (GPU-…) say so."""
        return int(self._restore(pid, ctypes.byref(_restore_arguments(pairs)))), 0

    def unlock(self, pid: int) -> tuple[int, int]:
        """Let a locked process's calls go on."""
        return int(self._unlock(pid, ctypes.byref(NoArguments()))), 0


def _restore_arguments(pairs: Sequence[tuple[str, str]]) -> RestoreArguments:
    if not pairs:
        return RestoreArguments()
    array = (GpuPair * len(pairs))(*(GpuPair(_uuid(old), _uuid(new)) for old, new in pairs))
    return RestoreArguments(pairs=array, count=len(pairs))


def _uuid(text: str) -> ctypes.Array[ctypes.c_ubyte]:
    digits = text.removeprefix("GPU-").replace("-", "")
    return (ctypes.c_ubyte * _PAIR_BYTES)(*bytes.fromhex(digits))
