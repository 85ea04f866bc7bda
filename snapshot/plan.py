"""What a sandbox consists of, as values (pure): mounts, devices, accounts, the launcher's order.

The root is a small folder of our own. Everything of the host that is seen inside is a bind mount
with a name (`Mount.key`), because CRIU must be told of each by name at dump and at restore.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from snapshot.model import Identity, SandboxSpec

INNER_RUN = "/run/hubernate"
INNER_LOG = f"{INNER_RUN}/output.log"
INNER_TMP = "/tmp"  # noqa: S108 - the sandbox's own
TMP = "tmp"  # below the directory: the sandbox's /tmp
TMP_MODE = 0o1700  # nobody else is inside, and on the host nobody else may plant files in it
EXIT_FILE = "exit"
INIT_FOLDER = "/.init"
HOST_ETC = "/.host/etc"
DEVICE_FOLDER = "/.devices"
PIN_FOLDER = "/.pins"
TTY_GID = 5

# Secrets of the host's accounts; the rest of /etc is configuration that programs need.
HIDDEN_IN_ETC = frozenset({"shadow", "shadow-", "gshadow", "gshadow-", "sudoers", "sudoers.d"})
OWN_IN_ETC = frozenset({"passwd", "passwd-", "group", "group-", "hosts", "resolv.conf", "mtab"})

USR_LINKS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
OPTIONAL_FOLDERS = ("/opt", "/srv")

BASE_DEVICES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9)}
DEVICE_LINKS = {
    "ptmx": "pts/ptmx",
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
}

# Tells the exit status to whoever asks later, even if no supervisor was there to wait for it. The
# handlers do nothing, so that a stray signal leaves this shell waiting; a started program gets
# the default actions back, which it would not if the signals were ignored here.
RECORD_EXIT = f'trap : HUP INT TERM; "$@"; code=$?; echo $code >{INNER_RUN}/{EXIT_FILE}; exit $code'


@dataclass(frozen=True, slots=True)
class Mount:
    """A host path seen inside. `staging` is where a private copy of the bind waits for CRIU."""

    source: str
    target: str
    read_only: bool
    key: str
    staging: str


@dataclass(frozen=True, slots=True)
class CharacterDevice:
    """A device node below the sandbox's /dev."""

    name: str
    major: int
    minor: int


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What the plan must know of the machine: which optional folders exist, and whether the
    top-level folders of USR_LINKS are links (merged /usr) or folders of their own."""

    folders: frozenset[str]
    links: tuple[tuple[str, str], ...]
    separate: tuple[str, ...] = ()
    devices: tuple[CharacterDevice, ...] = ()
    device_files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LaunchOrder:
    """What `python -m snapshot.launch` is told, as JSON on its standard input.

    `directory`, `root`, `dev`, and the sources and stagings of mounts are host paths; `log`, `cwd`
    and `argv` of a start are paths inside. `argv` of a restore is CRIU's.
    """

    directory: str
    root: str
    dev: str
    devices: tuple[CharacterDevice, ...]
    dev_links: dict[str, str]
    mounts: tuple[Mount, ...]
    inner_root: int
    uid: int
    gid: int
    groups: tuple[int, ...]
    argv: tuple[str, ...]
    tty_gid: int = TTY_GID
    cwd: str = "/"
    log: str = INNER_LOG
    env: dict[str, str] = field(default_factory=dict)


def home_of(identity: Identity) -> str:
    """Where the account's home is seen inside."""
    return identity.home or f"/home/{identity.name}"


def key_of(target: str) -> str:
    """A mount's name towards CRIU: unique per target, without characters that CRIU splits at."""
    return target.strip("/").replace("_", "__").replace("/", "_").replace(":", "_c") or "root"


def _mount(spec: SandboxSpec, source: str, target: str, *, read_only: bool) -> Mount:
    key = key_of(target)
    return Mount(source, target, read_only, key, f"{spec.directory}/ext/{key}")


def mounts(spec: SandboxSpec, host: HostFacts) -> tuple[Mount, ...]:
    """Every bind of a sandbox, outer targets before inner ones.

    Raises `ValueError` if two binds have the same target or one would hide a part of the sandbox.
    """
    own = spec.directory
    planned = [
        _mount(spec, "/usr", "/usr", read_only=True),
        _mount(spec, "/etc", HOST_ETC, read_only=True),
        _mount(spec, "/sys", "/sys", read_only=True),
        _mount(spec, f"{own}/dev", "/dev", read_only=False),
        _mount(spec, f"{own}/devices", DEVICE_FOLDER, read_only=False),
        _mount(spec, f"{own}/pins", PIN_FOLDER, read_only=False),
        _mount(spec, f"{own}/{TMP}", INNER_TMP, read_only=False),
        _mount(spec, f"{own}/run", INNER_RUN, read_only=False),
    ]
    planned += [_mount(spec, f"/{name}", f"/{name}", read_only=True) for name in host.separate]
    wanted = {posixpath.normpath(bind.target) for bind in spec.binds}
    for folder in OPTIONAL_FOLDERS:
        if folder in host.folders and folder not in wanted:
            planned.append(_mount(spec, folder, folder, read_only=True))
    reserved = {mount.target for mount in planned} | {"/", "/proc", "/etc", "/run", INIT_FOLDER}
    for bind in spec.binds:
        target = posixpath.normpath(bind.target)
        if target in reserved or not target.startswith("/"):
            raise ValueError(f"{bind.source} cannot be shown at {bind.target}: that place is taken")
        reserved.add(target)
        planned.append(_mount(spec, bind.source, target, read_only=bind.read_only))
    return tuple(sorted(planned, key=lambda mount: (mount.target.count("/"), mount.target)))


def environment(spec: SandboxSpec) -> dict[str, str]:
    """The spec's variables over the few that every program expects."""
    name = spec.identity.name
    basis = {
        "HOME": home_of(spec.identity),
        "USER": name,
        "LOGNAME": name,
        "SHELL": "/bin/bash",
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "TMPDIR": INNER_TMP,
    }
    return basis | spec.environment


def command(spec: SandboxSpec, init: Sequence[str]) -> tuple[str, ...]:
    """The first process's argument vector: init, then the shell that records the exit status."""
    first = (f"{INIT_FOLDER}/{posixpath.basename(init[0])}", *init[1:], "--") if init else ()
    return (*first, "/bin/sh", "-c", *command_marks(), *spec.argv)


def command_marks() -> tuple[str, str]:
    """The two arguments (third and fourth) by which the shell of `command` is recognised."""
    return (RECORD_EXIT, "hubernate")


def launch_order(
    spec: SandboxSpec, host: HostFacts, binds: Sequence[Mount], argv: Sequence[str]
) -> LaunchOrder:
    """The launcher's order for a start or a restore with these mounts."""
    base = tuple(CharacterDevice(name, *numbers) for name, numbers in BASE_DEVICES.items())
    tty = CharacterDevice("tty", 5, 0)
    links = {posixpath.basename(path): inner_device(path) for path in host.device_files}
    return LaunchOrder(
        directory=str(spec.directory),
        root=f"{spec.directory}/root",
        dev=f"{spec.directory}/dev",
        devices=(*base, tty, *host.devices),
        dev_links=DEVICE_LINKS | links,
        mounts=tuple(binds),
        inner_root=spec.inner_root,
        uid=spec.identity.uid,
        gid=spec.identity.gid,
        groups=spec.identity.groups,
        argv=tuple(argv),
        cwd=spec.folder or home_of(spec.identity),
        env=environment(spec),
    )


def inner_device(path: str) -> str:
    """Where a device that is a regular file (a virtual GPU) really lies inside.

    /dev/NAME is a link to it, not a mount: a mount belongs to the frozen tree, and the tree must
    come back with whatever devices its next lease has.
    """
    return f"{DEVICE_FOLDER}/{posixpath.basename(path)}"


def passwd(identity: Identity, host_lines: Iterable[str]) -> str:
    """/etc/passwd inside: the machine's system accounts and the sandbox's own, nobody else."""
    own = f"{identity.name}:x:{identity.uid}:{identity.gid}::{home_of(identity)}:/bin/bash"
    kept = [line for line in _system_lines(host_lines) if line.split(":")[0] != identity.name]
    return "\n".join([*kept, own]) + "\n"


def group(identity: Identity, host_lines: Iterable[str]) -> str:
    """/etc/group inside: system groups without members, and the account's own groups."""
    own = {identity.gid, *identity.groups}
    lines: list[str] = []
    seen: set[int] = set()
    for line in host_lines:
        fields = line.strip().split(":")
        if len(fields) != 4 or not fields[2].isdigit():
            continue
        number = int(fields[2])
        if number in own or _is_system(number):
            members = identity.name if number in identity.groups else ""
            lines.append(f"{fields[0]}:x:{number}:{members}")
            seen.add(number)
    if identity.gid not in seen:
        lines.append(f"{identity.name}:x:{identity.gid}:")
    return "\n".join(lines) + "\n"


def _is_system(number: int) -> bool:
    return number < 1000 or number == 65534


def _system_lines(host_lines: Iterable[str]) -> list[str]:
    lines = [line.strip() for line in host_lines]
    fields = [(line, line.split(":")) for line in lines]
    return [
        line
        for line, parts in fields
        if len(parts) == 7 and parts[2].isdigit() and _is_system(int(parts[2]))
    ]


def hosts(hostname: str) -> str:
    """/etc/hosts inside: only this machine's loopback names."""
    names = "localhost" if hostname == "localhost" else f"localhost {hostname}"
    return f"127.0.0.1 {names}\n::1 localhost ip6-localhost ip6-loopback\n"


def resolver(host_text: str, forwarder: str) -> str:
    """/etc/resolv.conf inside: the host's domains, and a name server that the network forwards.

    The host's own server may listen on the host's loopback, which is out of reach inside.
    """
    kept = [
        line
        for line in host_text.splitlines()
        if line.split()[:1] and line.split()[0] in {"search", "domain", "options"}
    ]
    return "\n".join([f"nameserver {forwarder}", *kept]) + "\n"
