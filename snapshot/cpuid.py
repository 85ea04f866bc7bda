"""The processor's register save area, asked of the processor itself (x86-64).

/proc/cpuinfo does not show where each register state lies. The sizes and places differ between
vendors and with what a hypervisor hides, and a frozen program's registers are in that format.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

# cpuid(edi leaf, esi subleaf, rdx out[4]): rbx is the caller's, so it is kept.
_CODE: Final = bytes.fromhex("53 89f8 89f1 4989d0 0fa2 418900 41895804 41894808 4189500c 5b c3")
_SYS_ARCH_PRCTL, _ARCH_GET_XCOMP_SUPP = 158, 0x1021
_LEAF_XSAVE: Final = 0xD
_FIRST_EXTENDED, _LAST_EXTENDED = 2, 62


@dataclass(frozen=True, slots=True)
class SaveArea:
    """`size` in bytes of all states in use; `states` are (number, offset, bytes)."""

    size: int
    states: tuple[tuple[int, int, int], ...]


def save_area() -> SaveArea | None:
    """This processor's; None where there is none or the kernel forbids us to ask."""
    if platform.machine() != "x86_64":
        return None
    try:
        memory = mmap.mmap(
            -1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
        )
    except OSError:
        return None
    memory.write(_CODE)
    function = _FUNCTION.from_buffer(memory)
    return _read(_KIND(ctypes.addressof(function)))


_FUNCTION = ctypes.c_char * len(_CODE)
_KIND = ctypes.CFUNCTYPE(None, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_void_p)


def _read(code: Callable[[int, int, ctypes.Array[ctypes.c_uint32]], None]) -> SaveArea | None:
    def ask(leaf: int, subleaf: int) -> tuple[int, int, int, int]:
        answer = (ctypes.c_uint32 * 4)()
        code(leaf, subleaf, answer)
        return (answer[0], answer[1], answer[2], answer[3])

    if ask(0, 0)[0] < _LEAF_XSAVE:
        return None
    low, size, _, high = ask(_LEAF_XSAVE, 0)
    supported = (low | high << 32) & _used_by_kernel()
    numbers = [n for n in range(_FIRST_EXTENDED, _LAST_EXTENDED + 1) if supported >> n & 1]
    found = [(n, *ask(_LEAF_XSAVE, n)) for n in numbers]
    return SaveArea(size, tuple((n, offset, length) for n, length, offset, *_ in found))


def _used_by_kernel() -> int:
    """The states that this kernel lets programs use; all before Linux 5.16, which does not tell."""
    mask = ctypes.c_uint64()
    libc = ctypes.CDLL(None)
    failed = libc.syscall(_SYS_ARCH_PRCTL, _ARCH_GET_XCOMP_SUPP, ctypes.byref(mask))
    return 2**64 - 1 if failed else mask.value
