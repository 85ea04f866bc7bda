"""The groups with which CRIU opens a tree's files again (pure).

CRIU opens them as the root of the tree's user namespace, after it has given up all groups. That root
may do what it likes with files whose owner and group the namespace knows, but a folder that a group
shares belongs to somebody else: it can be entered only as a member of the group. CRIU has no option
for it, so a shared library of one function is loaded before the C library: asked for no groups,
`setgroups` takes those of the session. Programs of the tree get their own groups back afterwards as
ever, and they are these.

The library is written here byte by byte, because machines that run sessions have no compiler.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from snapshot import images

MACHINE: Final = "x86_64"

_GROUP_MAP, _FIRST, _OUTER = 2, 1, 2  # of the image

_SETGROUPS = 116
_PAGE = 0x1000
_READ, _WRITE, _EXECUTE = 4, 2, 1
_PT_LOAD, _PT_DYNAMIC, _PT_GNU_STACK = 1, 2, 0x6474E551
_DT_NULL, _DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_STRSZ, _DT_SYMENT = 0, 4, 5, 6, 10, 11
_GLOBAL_FUNCTION = 0x12
_HEADER, _SEGMENT, _SYMBOL = 64, 56, 24
_NAMES = b"\0setgroups\0"
_ANY_SECTION = 1


def known(user_namespace: bytes) -> frozenset[int]:
    """The group ids of a tree, from its image of the user namespace (`userns-N.img`), which maps
    each one by itself. Raises `images.ImageError`."""
    found: set[int] = set()
    for record in images.split(user_namespace)[1]:
        for number, _, value in images.decode(record):
            if number == _GROUP_MAP and isinstance(value, bytes):
                extent = {n: v for n, _, v in images.decode(value) if isinstance(v, int)}
                found.add(extent.get(_FIRST, 0))
    return frozenset(found)


def owned_by(user_namespace: bytes, inner_root: int) -> bytes:
    """The same image with its root mapped to that host id, which each sandbox has of its own.
    Raises `images.ImageError`."""
    magic, records = images.split(user_namespace)
    return images.join(magic, (_change_maps(record, inner_root) for record in records))


def _change_maps(record: bytes, inner_root: int) -> bytes:
    return images.encode(
        (number, wire, _change_extent(value, inner_root) if isinstance(value, bytes) else value)
        for number, wire, value in images.decode(record)
    )


def _change_extent(extent: bytes, inner_root: int) -> bytes:
    """Of the extents, only the namespace root's begins with id 0."""
    fields = tuple(images.decode(extent))
    if any(number == _FIRST and value for number, _, value in fields):
        return extent
    return images.encode((n, w, inner_root if n == _OUTER else v) for n, w, v in fields)


def library(groups: Sequence[int]) -> bytes:
    """The shared library (ELF, x86-64) for these group ids."""
    symbols = _HEADER + 4 * _SEGMENT
    table = symbols + 2 * _SYMBOL  # of hashes
    names = table + 5 * 4
    code = (names + len(_NAMES) + 15) & ~15
    text = _code(groups)
    symbol = struct.pack("<IBBHQQ", 1, _GLOBAL_FUNCTION, 0, _ANY_SECTION, code, len(text))
    hashes = struct.pack("<5I", 1, 2, 1, 0, 0)  # one bucket, which begins with symbol 1
    first = bytes(_SYMBOL) + symbol + hashes + _NAMES
    dynamic = _dynamic(symbols, table, names)
    segments = _segments(code + len(text), len(dynamic))
    body = (_header() + segments + first).ljust(code, b"\0") + text
    if len(body) > _PAGE:
        raise ValueError(f"{len(groups)} groups are too many")
    return body.ljust(_PAGE, b"\0") + dynamic


def _header() -> bytes:
    identity = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    shared_object, x86_64, version = 3, 62, 1
    kind = struct.pack("<HHI", shared_object, x86_64, version)
    places = struct.pack("<QQQI", 0, _HEADER, 0, 0)
    return identity + kind + places + struct.pack("<6H", _HEADER, _SEGMENT, 4, 0, 0, 0)


def _segments(size: int, dynamic: int) -> bytes:
    """Code and tables, data that the loader writes to, and a stack that holds no code."""
    rows = (
        (_PT_LOAD, _READ | _EXECUTE, 0, size),
        (_PT_LOAD, _READ | _WRITE, _PAGE, dynamic),
        (_PT_DYNAMIC, _READ | _WRITE, _PAGE, dynamic),
        (_PT_GNU_STACK, _READ | _WRITE, 0, 0),
    )
    return b"".join(
        struct.pack("<IIQQQQQQ", kind, flags, place, place, place, length, length, _PAGE)
        for kind, flags, place, length in rows
    )


def _dynamic(symbols: int, hashes: int, names: int) -> bytes:
    rows = (
        (_DT_HASH, hashes),
        (_DT_SYMTAB, symbols),
        (_DT_SYMENT, _SYMBOL),
        (_DT_STRTAB, names),
        (_DT_STRSZ, len(_NAMES)),
        (_DT_NULL, 0),
    )
    return b"".join(struct.pack("<QQ", tag, value) for tag, value in rows)


def _code(groups: Sequence[int]) -> bytes:
    """setgroups(n, list): as asked for n > 0; else these groups, or none if they are unknown in the
    caller's user namespace. The ids follow the code."""
    number = struct.pack("<I", _SETGROUPS)
    call = b"\xb8" + number + b"\x0f\x05"  # mov eax, number; syscall
    plain = call + b"\x48\x85\xc0\x74\x07\x48\xc7\xc0\xff\xff\xff\xff\xc3"  # 0, or -1 for an error
    none = b"\x31\xff"  # xor edi, edi
    tail = b"\x48\x85\xc0\x75\x01\xc3"  # test rax, rax; jnz over; ret
    ours = b"\xbf" + struct.pack("<I", len(groups))  # mov edi, count
    after_lea = call + tail + none + plain
    ours += b"\x48\x8d\x35" + struct.pack("<i", len(after_lea)) + call + tail + none
    start = b"\xf3\x0f\x1e\xfa\x48\x85\xff\x75" + bytes([len(ours)])  # test rdi, rdi; jnz plain
    return start + ours + plain + struct.pack(f"<{len(groups)}I", *groups)
