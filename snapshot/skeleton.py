"""The folders and files that a sandbox's small root consists of, on the host's disk.

Everything is created by root in folders that only root can write to, and may be called again: what
exists stays as it is, because a frozen tree holds some of it open.
"""

from __future__ import annotations

import errno
import os
import shutil
import socket
import stat
from pathlib import Path

from snapshot import groups, plan, programs
from snapshot.model import Blocker, Process, SandboxSpec

DNS_FORWARDER = "169.254.1.53"
PROGRAMS_FOLDER = "bin"
_GROUPS = "groups.so"

# CRIU packs /dev/shm with `tar --gzip`, at a few megabytes a second. The store compresses anyway,
# and much faster, so the gzip that tar finds first passes everything through.
_PASSING_GZIP = """#!/bin/sh
case "$*" in *-d*) exec /bin/gzip -cdf ;; *) exec cat ;; esac
"""


def look_at_host(spec: SandboxSpec) -> plan.HostFacts:
    """What the plan must know of this machine. Raises `FileNotFoundError` for a missing device."""
    links, separate = [], []
    for name in plan.USR_LINKS:
        path = Path("/", name)
        if path.is_symlink():
            links.append((name, os.readlink(path)))
        elif path.is_dir():
            separate.append(name)
    nodes, files = [], []
    for device in spec.devices:
        found = os.stat(device)
        if stat.S_ISCHR(found.st_mode):
            name = os.path.basename(device)
            numbers = os.major(found.st_rdev), os.minor(found.st_rdev)
            nodes.append(plan.CharacterDevice(name, *numbers))
        else:
            files.append(device)
    folders = frozenset(path for path in plan.OPTIONAL_FOLDERS if os.path.isdir(path))
    return plan.HostFacts(folders, tuple(links), tuple(separate), tuple(nodes), tuple(files))


def build(spec: SandboxSpec, host: plan.HostFacts, mounts: tuple[plan.Mount, ...]) -> None:
    """Create what is missing of the sandbox's folder: root, /etc, mount points, own folders."""
    own = Path(spec.directory)
    if not own.exists():
        _make_folder(own)
        own.chmod(0o711)
    for name in ("root", "dev", "devices", "ext", "pins"):
        _make_folder(own / name)
    for name, mode in ((plan.TMP, plan.TMP_MODE), ("run", 0o700)):
        _own_folder(own / name, mode, spec)
    root = own / "root"
    for name in ("proc", "etc", "run", "var", "home"):
        _make_folder(root / name)
    for link, text in (*host.links, ("var/tmp", plan.INNER_TMP), ("var/run", "/run")):
        _link(root / link, text)
    _fill_etc(root / "etc", spec)
    for mount in mounts:
        _mount_point(root, mount, mounts)
        _copy_kind(Path(mount.source), Path(mount.staging))
    _fill_devices(own / "devices", host.device_files)
    _install_gzip(own / PROGRAMS_FOLDER)


def _install_gzip(folder: Path) -> None:
    _make_folder(folder)
    program = folder / "gzip"
    if not program.exists():
        program.write_text(_PASSING_GZIP)
        program.chmod(0o755)


def criu_environment(spec: SandboxSpec) -> dict[str, str]:
    """The environment for CRIU: our programs are found before the system's."""
    clean = programs.CLEAN_ENVIRONMENT
    return clean | {"PATH": f"{spec.directory}/{PROGRAMS_FOLDER}:{clean['PATH']}"}


def install_groups(spec: SandboxSpec, known: frozenset[int]) -> None:
    """Let CRIU open files as a member of the session's groups, as far as the tree knows them."""
    identity = spec.identity
    wanted = sorted({identity.gid, *identity.groups} & known)
    library = Path(spec.directory, PROGRAMS_FOLDER, _GROUPS)
    _make_folder(library.parent)
    temporary = library.with_suffix(".new")
    temporary.write_bytes(groups.library(wanted))
    temporary.replace(library)


def restore_environment(spec: SandboxSpec) -> dict[str, str]:
    """The environment for CRIU's restore, after `install_groups`."""
    preloaded = {"LD_PRELOAD": f"{spec.directory}/{PROGRAMS_FOLDER}/{_GROUPS}"}
    here = os.uname().machine == groups.MACHINE
    return criu_environment(spec) | (preloaded if here else {})


def install_init(spec: SandboxSpec, init: tuple[str, ...]) -> None:
    """Put the init program where the sandbox sees it. A tree may be running it: never replaced."""
    if not init:
        return
    folder = Path(spec.directory, "root", plan.INIT_FOLDER.strip("/"))
    _make_folder(folder)
    target = folder / os.path.basename(init[0])
    if not target.exists():
        temporary = target.with_suffix(".new")
        shutil.copyfile(init[0], temporary)
        temporary.chmod(0o755)
        temporary.replace(target)


def closed_folders(spec: SandboxSpec, process: Process) -> tuple[Blocker, ...]:
    """Folders above the sandbox's that other accounts cannot pass: a tree frozen there could not
    be brought back, because CRIU looks for its mounts as the sandbox's own root."""
    return tuple(
        Blocker(
            process.pid,
            "session",
            f"the folder {folder} is closed to other accounts",
            f"An administrator can open it: chmod o+x {folder}",
        )
        for folder in (Path(spec.directory), *Path(spec.directory).parents)
        if not folder.stat().st_mode & stat.S_IXOTH
    )


def empty_folder(spec: SandboxSpec) -> Path:
    """A folder with nothing in it, to show where this machine lacks one."""
    path = Path(spec.directory, "empty")
    _make_folder(path)
    return path


def _make_folder(path: Path) -> None:
    """Create a folder and its missing parents, readable by everybody whatever our umask is."""
    if path.is_dir():
        return
    _make_folder(path.parent)
    path.mkdir()
    path.chmod(0o755)


def _own_folder(path: Path, mode: int, spec: SandboxSpec) -> None:
    path.mkdir(mode=0o700, exist_ok=True)
    os.chown(path, spec.identity.uid, spec.identity.gid)
    path.chmod(mode)


def _link(path: Path, text: str) -> None:
    if not path.is_symlink() and not path.exists():
        path.symlink_to(text)


def _fill_etc(etc: Path, spec: SandboxSpec) -> None:
    """Own accounts and resolver as files, everything else of the host's /etc as links.

    Mounts over single files of /etc would vanish whenever the host replaces such a file.
    """
    for name in os.listdir("/etc"):
        if name in plan.HIDDEN_IN_ETC or name in plan.OWN_IN_ETC:
            continue
        source = Path("/etc", name)
        _link(etc / name, os.readlink(source) if source.is_symlink() else f"{plan.HOST_ETC}/{name}")
    _link(etc / "mtab", "/proc/self/mounts")
    files = {
        "passwd": plan.passwd(spec.identity, _lines("/etc/passwd")),
        "group": plan.group(spec.identity, _lines("/etc/group")),
        "hosts": plan.hosts(socket.gethostname()),
        "resolv.conf": plan.resolver("\n".join(_lines("/etc/resolv.conf")), DNS_FORWARDER),
    }
    for name, text in files.items():
        path = etc / name
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            path.chmod(0o644)


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(errors="replace").splitlines()
    except OSError:
        return []


def _mount_point(root: Path, mount: plan.Mount, mounts: tuple[plan.Mount, ...]) -> None:
    """A mount point in the root, or the check that one exists in the mount that will hold it."""
    holders = [m for m in mounts if mount.target.startswith(f"{m.target}/")]
    if not holders:
        _copy_kind(Path(mount.source), root / mount.target.strip("/"))
        return
    holder = max(holders, key=lambda m: len(m.target))
    place = Path(holder.source, mount.target[len(holder.target) + 1 :])
    # A link in there could lead the mount out of the sandbox's root.
    if not place.exists() or os.path.realpath(place) != os.path.abspath(place):
        raise FileNotFoundError(
            errno.ENOENT,
            f"{mount.source} cannot be shown at {mount.target}: create {place} first, not as a link",
        )


def _copy_kind(source: Path, place: Path) -> None:
    """An empty folder or file, whatever `source` is."""
    if place.exists():
        return
    if source.is_dir():
        _make_folder(place)
        return
    _make_folder(place.parent)
    place.touch()
    place.chmod(0o644)


def _fill_devices(folder: Path, files: tuple[str, ...]) -> None:
    """Show exactly these device files; a link keeps them one file, a copy does across disks."""
    wanted = {os.path.basename(path): path for path in files}
    for name in os.listdir(folder):
        if name not in wanted:
            (folder / name).unlink()
    for name, path in wanted.items():
        place = folder / name
        if place.exists():
            continue
        try:
            place.hardlink_to(path)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            shutil.copy(path, place)
            place.chmod(0o666)
