"""Program `python -m snapshot.launch`: builds a sandbox's small root and starts or restores in it.

Read one JSON object on standard input (see `snapshot.plan.LaunchOrder`). It runs in an
interpreter of its own because it changes namespaces, which a threaded supervisor must not do.

`start` prints the host PID of the sandbox's first process, `restore` replaces itself with CRIU,
`network` with a program that looks at a sandbox's network.
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
from collections.abc import Callable
from pathlib import Path
from typing import Any

from snapshot import cgroups, linux, seccomp

SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 0x1
MAX_DESCRIPTOR = 1 << 20


def _prepare_host_side(order: dict[str, Any]) -> None:
    """The limits of the sandbox, a private mount namespace, the root as a mount point, and a /dev
    with the leased devices."""
    cgroups.join(Path(order["directory"]))
    linux.unshare(linux.CLONE_NEWNS)
    linux.mount("none", "/", None, linux.MS_REC | linux.MS_PRIVATE)
    linux.bind(order["root"], order["root"])
    dev = order["dev"]
    linux.mount("tmpfs", dev, "tmpfs", linux.MS_NOSUID, "mode=755,size=64k")
    for node in order["devices"]:
        path = os.path.join(dev, node["name"])
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(node["major"], node["minor"]))
        os.chmod(path, 0o666)
    for link, target in order["dev_links"].items():
        os.symlink(target, os.path.join(dev, link))
    for folder in ("pts", "shm"):
        os.mkdir(os.path.join(dev, folder), 0o755)


def _flags(entry: dict[str, Any]) -> int:
    """Device nodes work only in the sandbox's own /dev."""
    flags = linux.MS_NOSUID | (linux.MS_RDONLY if entry["read_only"] else 0)
    return flags if entry["target"] == "/dev" else flags | linux.MS_NODEV


def _mount_inside(order: dict[str, Any]) -> None:
    root, owner = order["root"], order["inner_root"]
    for entry in order["mounts"]:
        linux.bind(entry["source"], root + entry["target"], _flags(entry))
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


def _close_all_but(kept: int) -> None:
    os.closerange(3, kept)
    os.closerange(kept + 1, MAX_DESCRIPTOR)


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


class _Pipes:
    """How the launcher and its two generations of children talk.

    `progress` carries "u" (namespaces made), then the first process's PID; `release` answers that
    the id maps are written; `problem` carries an error's text, and its end once the program runs.
    """

    def __init__(self) -> None:
        self.progress, self.to_progress = os.pipe()
        self.release, self.to_release = os.pipe()
        self.problem, self.to_problem = os.pipe()


def _report_failure(pipes: _Pipes, step: Callable[[], None]) -> None:
    """Run a child's step that should not return, and tell the launcher if it failed."""
    try:
        step()
    except OSError as error:
        os.write(pipes.to_problem, str(error).encode())
    finally:
        os._exit(127)


def _run_first_process(order: dict[str, Any], pipes: _Pipes) -> None:
    """Execute the program. `to_problem` closes itself in that moment."""
    _become_first_process(order)
    _close_all_but(pipes.to_problem)
    os.execve(order["argv"][0], order["argv"], order["env"])


def _enter_namespaces(order: dict[str, Any], pipes: _Pipes) -> None:
    linux.pivot_root(order["root"])
    linux.unshare(
        linux.CLONE_NEWUSER
        | linux.CLONE_NEWPID
        | linux.CLONE_NEWNS
        | linux.CLONE_NEWNET
        | linux.CLONE_NEWIPC
    )
    os.write(pipes.to_progress, b"u")
    if os.read(pipes.release, 1) != b"m":
        return
    os.setgroups([])
    os.setgid(0)
    os.setuid(0)
    pid = os.fork()
    if pid == 0:
        _report_failure(pipes, lambda: _run_first_process(order, pipes))
    os.write(pipes.to_progress, struct.pack("<i", pid))


def _start(order: dict[str, Any]) -> None:
    _prepare_host_side(order)
    _mount_inside(order)
    pipes = _Pipes()
    child = os.fork()
    if child == 0:
        _report_failure(pipes, lambda: _enter_namespaces(order, pipes))
    os.close(pipes.to_progress)
    os.close(pipes.to_problem)
    if os.read(pipes.progress, 1) == b"u":
        _write_maps(child, order)
        os.write(pipes.to_release, b"m")
    answer = os.read(pipes.progress, 4)
    os.waitpid(child, 0)
    problem = os.read(pipes.problem, 4096)
    if problem or len(answer) != 4:
        raise SystemExit(problem.decode() or "the sandbox's first process could not be started")
    print(struct.unpack("<i", answer)[0], flush=True)


def _restore(order: dict[str, Any]) -> None:
    """Build the same host side and hand over to CRIU, which mounts and starts the rest.

    CRIU clones external mounts with `open_tree`, which refuses a mount with children: each gets a
    private bind of its own (`staging`).
    """
    _prepare_host_side(order)
    for entry in order["mounts"]:
        linux.bind(entry["source"], entry["staging"], _flags(entry))
    os.chdir(order["directory"])
    os.execv(order["argv"][0], order["argv"])


def _run_in_network(order: dict[str, Any]) -> None:
    """Replace this program with `argv`, in the network namespace of process `pid`."""
    linux.join_namespace(f"/proc/{order['pid']}/ns/net", linux.CLONE_NEWNET)
    os.execv(order["argv"][0], order["argv"])


MODES = {"start": _start, "restore": _restore, "network": _run_in_network}


def main() -> None:
    """Entry point: a mode as the only argument, its order as JSON on standard input."""
    MODES[sys.argv[1]](json.load(sys.stdin))


if __name__ == "__main__":
    main()
