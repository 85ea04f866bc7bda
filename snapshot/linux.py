"""The few Linux calls that Python's standard library does not offer, through ctypes.

Every function raises `OSError` with the errno of the failed call. Nothing here knows what a
sandbox is; imports stay minimal because the launcher runs in a freshly started interpreter.
"""

from __future__ import annotations

import ctypes
import os
import struct
from typing import Final

CLONE_NEWNS: Final = 0x00020000
CLONE_NEWIPC: Final = 0x08000000
CLONE_NEWUSER: Final = 0x10000000
CLONE_NEWPID: Final = 0x20000000
CLONE_NEWNET: Final = 0x40000000

MS_RDONLY: Final = 0x1
MS_NOSUID: Final = 0x2
MS_NODEV: Final = 0x4
MS_NOEXEC: Final = 0x8
MS_REMOUNT: Final = 0x20
MS_BIND: Final = 0x1000
MS_REC: Final = 0x4000
MS_PRIVATE: Final = 0x40000
MNT_DETACH: Final = 0x2

PR_SET_PDEATHSIG: Final = 1
PR_SET_SECCOMP: Final = 22
PR_CAPBSET_DROP: Final = 24
PR_SET_CHILD_SUBREAPER: Final = 36
PR_SET_NO_NEW_PRIVS: Final = 38
SECCOMP_MODE_FILTER: Final = 2
SYS_PIVOT_ROOT: Final = 155
SYS_FSOPEN: Final = 430
SYS_FSCONFIG: Final = 431
SYS_FSMOUNT: Final = 432
SYS_OPENAT2: Final = 437
SYS_PIDFD_GETFD: Final = 438
RESOLVE_NO_XDEV: Final = 0x01
RESOLVE_NO_LINKS_BENEATH: Final = 0x02 | 0x04 | 0x08
FSOPEN_CLOEXEC, FSMOUNT_CLOEXEC = 1, 1
FSCONFIG_SET_STRING, FSCONFIG_CMD_CREATE = 1, 6
MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV = 0x2, 0x4

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> int:
    if result < 0:
        errno = ctypes.get_errno()
        raise OSError(errno, f"{what}: {os.strerror(errno)}")
    return result


def unshare(flags: int) -> None:
    """Leave the namespaces named by `flags` (CLONE_NEW*)."""
    _check(_libc.unshare(flags), "unshare")


def join_namespace(path: str, kind: int) -> None:
    """Enter the namespace behind `path` (/proc/PID/ns/...), which must be of `kind` (CLONE_NEW*)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        _check(_libc.setns(descriptor, kind), f"join {path}")
    finally:
        os.close(descriptor)


def mount(source: str, target: str, kind: str | None, flags: int = 0, data: str = "") -> None:
    """mount(2). `kind` is the filesystem type, or None for binds and propagation changes."""
    result = _libc.mount(
        source.encode(),
        target.encode(),
        kind.encode() if kind else None,
        ctypes.c_ulong(flags),
        data.encode() if data else None,
    )
    _check(result, f"mount {source} on {target}")


def bind(source: str, target: str, flags: int = 0) -> None:
    """Bind `source` onto `target` without the mounts below it. `flags`: MS_RDONLY, MS_NOSUID, ..."""
    mount(source, target, None, MS_BIND)
    if flags:
        mount("none", target, None, MS_BIND | MS_REMOUNT | flags)


def take_descriptor(pid: int, descriptor: int) -> int:
    """A duplicate of another process's descriptor (pidfd_getfd). Needs the right to trace it."""
    handle = os.pidfd_open(pid)
    try:
        return _check(_libc.syscall(SYS_PIDFD_GETFD, handle, descriptor, 0), "pidfd_getfd")
    finally:
        os.close(handle)


def private_tmpfs(percent_of_memory: int) -> int:
    """An empty memory file system that is mounted nowhere, as a descriptor.

    Its root is /proc/self/fd/N. It vanishes with the last descriptor and open file, even if we are
    killed, and no other process can name it.
    """
    context = _check(_libc.syscall(SYS_FSOPEN, b"tmpfs", FSOPEN_CLOEXEC), "fsopen tmpfs")
    try:
        for name, value in (
            (b"mode", b"0755"),
            (b"size", b"%d%%" % percent_of_memory),
            (b"huge", b"within_size"),
        ):
            result = _libc.syscall(SYS_FSCONFIG, context, FSCONFIG_SET_STRING, name, value, 0)
            _check(result, f"tmpfs {name.decode()}")
        created = _libc.syscall(SYS_FSCONFIG, context, FSCONFIG_CMD_CREATE, None, None, 0)
        _check(created, "create tmpfs")
        attributes = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV
        return _check(_libc.syscall(SYS_FSMOUNT, context, FSMOUNT_CLOEXEC, attributes), "fsmount")
    finally:
        os.close(context)


def open_beneath(folder: int, path: str, flags: int, *, same_mount: bool = False) -> int:
    """Open `path` below the open `folder`, refusing every symbolic link and way out (openat2), and
    with `same_mount` also what is mounted below it."""
    resolve = RESOLVE_NO_LINKS_BENEATH | (RESOLVE_NO_XDEV if same_mount else 0)
    how = struct.pack("<QQQ", flags | os.O_CLOEXEC, 0, resolve)
    result = _libc.syscall(SYS_OPENAT2, folder, os.fsencode(path), how, len(how))
    return _check(result, f"open {path}")


def pivot_root(new_root: str) -> None:
    """Make `new_root` (a mount point) the root and detach the old one."""
    os.chdir(new_root)
    _check(_libc.syscall(SYS_PIVOT_ROOT, b".", b"."), "pivot_root")
    _check(_libc.umount2(b".", MNT_DETACH), "umount old root")
    os.chdir("/")


def prctl(option: int, *arguments: int) -> None:
    """prctl(2) with integer arguments."""
    padded = [ctypes.c_ulong(a) for a in (*arguments, 0, 0, 0, 0)[:4]]
    _check(_libc.prctl(option, *padded), f"prctl {option}")


def install_seccomp(program: bytes) -> None:
    """Install a classic BPF `program` (8 bytes an instruction) for this process and its children.

    Needs `no_new_privs` or CAP_SYS_ADMIN. The program is copied by the kernel.
    """

    class Fprog(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]

    buffer = ctypes.create_string_buffer(program, len(program))
    fprog = Fprog(len(program) // 8, ctypes.addressof(buffer))
    _check(
        _libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(fprog), 0, 0),
        "install seccomp filter",
    )


def become_subreaper(*, wanted: bool = True) -> None:
    """Adopt orphaned descendants, so that their exit status can be waited for (or no longer)."""
    prctl(PR_SET_CHILD_SUBREAPER, int(wanted))
