"""Program `python -m snapshot.launch`: builds a sandbox's small root and starts or restores in it.

Read one JSON object on standard input (see `snapshot.sandbox.LaunchOrder`). It runs in an
interpreter of its own because it changes namespaces, which a threaded supervisor must not do.

`start` prints the host PID of the sandbox's first process, `restore` replaces itself with CRIU.
The order of the steps in `_start` is what CRIU needs to dump and restore the tree later: one clean
mount namespace without inherited stacks, then user, PID, mount, network and IPC namespaces together.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import stat
import struct
import sys
from typing import Any

from snapshot import linux, seccomp

SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 0x1


def _prepare_host_side(order: dict[str, Any]) -> None:
    """Private mount namespace, the root as a mount point, and a /dev with the leased devices."""
    linux.unshare(linux.CLONE_NEWNS)
    linux.mount("none", "/", None, linux.MS_REC | linux.MS_PRIVATE)
    linux.bind(order["root"], order["root"], nosuid=False)
    dev = order["dev"]
    linux.mount("tmpfs", dev, "tmpfs", linux.MS_NOSUID, "mode=755,size=64k")
    for node in order["devices"]:
        path = os.path.join(dev, node["name"])
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(node["major"], node["minor"]))
        os.chmod(path, 0o666)
    for extra in order["device_files"]:
        target = os.path.join(dev, os.path.basename(extra))
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o666))
        linux.bind(extra, target)
    for link, target in order["dev_links"].items():
        os.symlink(target, os.path.join(dev, link))
    for folder in ("pts", "shm"):
        os.mkdir(os.path.join(dev, folder), 0o755)


def _mount_inside(order: dict[str, Any]) -> None:
    root, owner = order["root"], order["inner_root"]
    for entry in order["mounts"]:
        linux.bind(entry["source"], root + entry["target"], read_only=entry["read_only"])
    linux.mount("proc", f"{root}/proc", "proc", linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC)
    linux.mount(
        "devpts",
        f"{root}/dev/pts",
        "devpts",
        linux.MS_NOSUID | linux.MS_NOEXEC,
        f"newinstance,ptmxmode=0666,mode=0620,gid={order['tty_gid']}",
    )
    linux.mount(
        "tmpfs",
        f"{root}/dev/shm",
        "tmpfs",
        linux.MS_NOSUID | linux.MS_NODEV,
        f"mode=1777,uid={owner},gid={owner}",
    )


def _id_map(inner_root: int, ids: list[int]) -> str:
    lines = [f"0 {inner_root} 1", *(f"{i} {i} 1" for i in sorted(set(ids) - {0}))]
    return "\n".join(lines) + "\n"


def _write_maps(pid: int, order: dict[str, Any]) -> None:
    gids = [order["gid"], order["tty_gid"], *order["groups"]]
    for name, ids in (("uid_map", [order["uid"]]), ("gid_map", gids)):
        with open(f"/proc/{pid}/{name}", "w") as handle:
            handle.write(_id_map(order["inner_root"], ids))


def _raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        name = b"lo".ljust(16, b"\0")
        reply = fcntl.ioctl(sock, SIOCGIFFLAGS, name + bytes(24))
        flags = struct.unpack_from("<H", reply, 16)[0] | IFF_UP
        fcntl.ioctl(sock, SIOCSIFFLAGS, name + struct.pack("<H", flags) + bytes(22))


def _open_stdio(log: str) -> None:
    """Standard streams on files that live inside the sandbox, never on the host's terminal."""
    null = os.open("/dev/null", os.O_RDONLY)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(null, 0)
    os.dup2(out, 1)
    os.dup2(out, 2)


def _drop_privileges(order: dict[str, Any]) -> None:
    with open("/proc/sys/kernel/cap_last_cap") as handle:
        last = int(handle.read())
    for capability in range(last + 1):
        linux.prctl(linux.PR_CAPBSET_DROP, capability)
    os.setgroups(order["groups"])
    os.setgid(order["gid"])
    os.setuid(order["uid"])
    linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
    linux.install_seccomp(seccomp.program())


def _become_first_process(order: dict[str, Any]) -> None:
    linux.mount("proc", "/proc", "proc", linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC)
    _raise_loopback()
    os.setsid()
    for number in range(1, signal.NSIG):
        if number not in (signal.SIGKILL, signal.SIGSTOP, 32, 33):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    os.umask(0o022)
    _drop_privileges(order)
    os.chdir(order["cwd"])
    _open_stdio(order["log"])
    os.closerange(3, 65536)
    os.execve(order["argv"][0], order["argv"], order["env"])


def _enter_namespaces(order: dict[str, Any], to_parent: int, from_parent: int) -> None:
    linux.pivot_root(order["root"])
    linux.unshare(
        linux.CLONE_NEWUSER
        | linux.CLONE_NEWPID
        | linux.CLONE_NEWNS
        | linux.CLONE_NEWNET
        | linux.CLONE_NEWIPC
    )
    os.write(to_parent, b"u")
    if os.read(from_parent, 1) != b"m":
        os._exit(1)
    os.setgroups([])
    os.setgid(0)
    os.setuid(0)
    pid = os.fork()
    if pid == 0:
        try:
            _become_first_process(order)
        finally:
            os._exit(127)
    os.write(to_parent, struct.pack("<i", pid))
    os._exit(0)


def _start(order: dict[str, Any]) -> None:
    _prepare_host_side(order)
    _mount_inside(order)
    up_read, up_write = os.pipe()
    down_read, down_write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            _enter_namespaces(order, up_write, down_read)
        finally:
            os._exit(1)
    os.close(up_write)
    if os.read(up_read, 1) != b"u":
        raise SystemExit("the sandbox's namespaces could not be created")
    _write_maps(child, order)
    os.write(down_write, b"m")
    answer = os.read(up_read, 4)
    os.waitpid(child, 0)
    if len(answer) != 4:
        raise SystemExit("the sandbox's first process could not be started")
    print(struct.unpack("<i", answer)[0], flush=True)


def _restore(order: dict[str, Any]) -> None:
    """Build the same host side and hand over to CRIU, which mounts and starts the rest.

    CRIU clones external mounts with `open_tree`, which refuses a mount with children: each gets a
    private bind of its own (`staging`).
    """
    _prepare_host_side(order)
    for entry in order["mounts"]:
        linux.bind(entry["source"], entry["staging"], read_only=entry["read_only"])
    os.chdir(order["directory"])
    os.execv(order["argv"][0], order["argv"])


def main() -> None:
    """Entry point: `start` or `restore`, the order as JSON on standard input."""
    order = json.load(sys.stdin)
    {"start": _start, "restore": _restore}[sys.argv[1]](order)


if __name__ == "__main__":
    main()
