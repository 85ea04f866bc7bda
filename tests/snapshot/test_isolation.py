"""From inside a session: what is of others, of the host or of the kernel's depths is out of reach."""

from __future__ import annotations

import ast
import asyncio
import os
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from snapshot import proc, sandbox
from tests.builders.sandboxes import Box, sandboxes, until

PYTHON = "/usr/bin/python3"


async def run_inside(box: Box, program: str) -> str:
    """Run a program to its end in a new sandbox of the box; its output."""
    begun = len(box.output())
    process = await box.start(PYTHON, "-c", program)
    await until(lambda: sandbox.is_empty(process), f"the end of the program; {box.output()}")
    return box.output()[begun:]


CALLS = """
import ctypes, os, errno
libc = ctypes.CDLL(None, use_errno=True)
def refused(name, number, *arguments):
    ctypes.set_errno(0)
    result = libc.syscall(number, *arguments)
    print(name, "REACHED" if result >= 0 else errno.errorcode[ctypes.get_errno()], flush=True)
refused("unshare-user", 272, 0x10000000)
refused("clone-user", 56, 0x10000011, 0, 0, 0, 0)
refused("clone3", 435, 0, 0)
refused("userfaultfd", 323, 1)
refused("io_uring", 425, 8, ctypes.create_string_buffer(120))
refused("mount", 165, b"none", b"/tmp", b"tmpfs", 0, 0)
refused("setns", 308, os.open("/proc/self/ns/net", os.O_RDONLY), 0)
refused("bpf", 321, 0, 0, 0)
refused("perf", 298, 0, 0, -1, -1, 0)
refused("keyctl", 250, 0, -3, 1)
refused("by-handle", 304, 0, 0, 0)
refused("mknod", 259, -100, b"/tmp/disk", 0o60666, os.makedev(254, 0))
refused("setuid", 105, 0)
"""


async def test_calls_that_widen_the_attack_or_cannot_be_frozen_are_refused(box: Box) -> None:
    said = await run_inside(box, CALLS)
    answers = dict(line.split() for line in said.splitlines())
    assert set(answers.values()) <= {"EPERM", "ENOSYS", "EINVAL", "EACCES"}, answers
    assert answers["userfaultfd"] == answers["io_uring"] == answers["unshare-user"] == "EPERM"
    assert len(answers) == 13


async def test_there_are_no_capabilities_and_no_way_to_gain_any(box: Box) -> None:
    said = await run_inside(box, "print(open('/proc/self/status').read())")
    fields = dict(line.split(":\t") for line in said.splitlines() if ":\t" in line)
    assert {fields[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {
        "0" * 16
    }
    assert fields["NoNewPrivs"] == "1"
    assert fields["Seccomp"] == "2"
    uid = str(box.spec.identity.uid)
    assert fields["Uid"].split() == [uid] * 4


LOOK = """
import os
for path in {paths!r}:
    try:
        os.stat(path)
        try:
            content = os.listdir(path) if os.path.isdir(path) else open(path).read()
            print(path, "READ", repr(content)[:80])
        except OSError as error:
            print(path, "unreadable")
    except OSError:
        print(path, "absent")
"""


async def test_other_homes_roots_home_and_the_state_folder_do_not_exist(
    box: Box, passable: Path
) -> None:
    other = passable / "other"
    other.mkdir()
    (other / "secret").write_text("secret")
    state = box.folder / "store"
    state.mkdir(exist_ok=True)
    paths = [str(p) for p in (other, other / "secret", state, box.folder, box.spec.directory)]
    paths += ["/root", "/etc/shadow", "/etc/gshadow", "/etc/sudoers", "/var/lib/hubernate"]
    said = await run_inside(box, LOOK.format(paths=paths))
    assert [line.split()[-1] for line in said.splitlines()] == ["absent"] * len(paths), said


async def test_the_hosts_secret_files_are_unreadable_behind_the_configuration(box: Box) -> None:
    said = await run_inside(box, LOOK.format(paths=["/.host/etc/shadow", "/.host/etc/gshadow"]))
    assert "READ" not in said


async def test_only_the_home_tmp_and_run_can_be_written(box: Box) -> None:
    program = """
import os
for root in ("/", "/usr", "/usr/local/lib", "/etc", "/.host/etc", "/opt", "/sys", "/dev", "/var",
             "/run", "/.pins", "/.devices", "/.init", "/home", "/proc/sys/kernel",
             "/home/alice", "/tmp", "/run/hubernate", "/dev/shm", "/var/tmp"):
    if not os.path.isdir(root): continue
    try:
        open(os.path.join(root, "new"), "w").close()
        print(root)
    except OSError:
        pass
"""
    said = await run_inside(box, program)
    assert said.split() == ["/home/alice", "/tmp", "/run/hubernate", "/dev/shm", "/var/tmp"]


async def can_plant(path: Path) -> bool:
    """Whether another account of the host can create this file."""
    nobody = 65534
    tried = await asyncio.create_subprocess_exec(
        "touch", path, user=nobody, group=nobody, extra_groups=[], stderr=asyncio.subprocess.DEVNULL
    )
    return await tried.wait() == 0


@pytest.mark.usefixtures("working_criu")
async def test_no_other_account_of_the_host_reaches_a_sessions_tmp(box: Box) -> None:
    forever = "import time, os; os.chdir('/tmp'); open('own', 'w'); print('up'); time.sleep(999)"
    await box.start(PYTHON, "-u", "-c", forever)
    await box.says("up")
    stored = await box.freeze()
    folder = box.spec.directory / "tmp"
    folder.chmod(0o1777)  # as an earlier release made it
    assert await can_plant(folder / "before")
    await box.thaw(stored)
    assert (folder / "own").exists()
    assert not await can_plant(folder / "after")


async def test_only_the_leased_devices_exist(box: Box, passable: Path) -> None:
    for number in (0, 1):
        device = passable / f"vgpu{number}"
        device.write_text(f"identity {number}")
        device.chmod(0o666)
    program = """
import glob, os
print(sorted(os.listdir("/dev")))
print([open(path).read() for path in glob.glob("/dev/vgpu*")], os.listdir("/.devices"))
"""
    box.spec = replace(box.spec, devices=(str(passable / "vgpu1"),))
    said = await run_inside(box, program)
    assert "['identity 1'] ['vgpu1']" in said
    usual = {"fd", "full", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin", "stdout"}
    usual |= {"tty", "urandom", "zero", "vgpu1"}
    assert set(ast.literal_eval(said.splitlines()[0])) == usual


async def test_two_sandboxes_see_neither_processes_nor_ports_nor_memory_of_each_other(
    box: Box, passable: Path
) -> None:
    program = """
import os, socket, time
from multiprocessing import shared_memory
listener = socket.create_server(("127.0.0.1", 8888))
open("/dev/shm/mine", "w").write("secret")
abstract = socket.socket(socket.AF_UNIX); abstract.bind("\\0abstract"); abstract.listen()
print("ready", flush=True)
time.sleep(1000)
"""
    await box.start(PYTHON, "-c", program)
    await box.says("ready")
    async with sandboxes(passable / "c", number=1) as other:
        said = await run_inside(
            other,
            """
import os, socket
print("processes", sum(name.isdigit() for name in os.listdir("/proc")))
print("shm", os.listdir("/dev/shm"))
for family, address in ((socket.AF_INET, ("127.0.0.1", 8888)), (socket.AF_UNIX, "\\0abstract")):
    try:
        socket.socket(family).connect(address); print("REACHED", address)
    except OSError as error:
        print("refused")
""",
        )
    # init, the shell that records the exit, and the program itself.
    assert said.splitlines() == ["processes 3", "shm []", "refused", "refused"]


async def test_a_session_cannot_signal_or_trace_the_host(box: Box) -> None:
    ours = {os.getpid(), os.getppid()} - {1}  # inside, that number is its own first process's
    program = f"""
import os
for pid in {ours}:
    try:
        os.kill(pid, 0); print("REACHED", pid)
    except OSError as error:
        print("refused")
"""
    said = await run_inside(box, program)
    assert said.split() == ["refused"] * len(ours)


async def test_no_descriptor_of_the_host_leaks_in(box: Box, tmp_path: Path) -> None:
    """Even descriptors that were made inheritable on purpose."""
    leak = os.open(tmp_path / "leak", os.O_RDWR | os.O_CREAT)
    os.set_inheritable(leak, True)
    near, far = socket.socketpair()
    far.set_inheritable(True)
    try:
        said = await run_inside(
            box,
            "import os; print([os.readlink(f'/proc/self/fd/{n}') for n in os.listdir('/proc/self/fd') if n != '3'])",
        )
    finally:
        os.close(leak)
        near.close()
        far.close()
    log = "/run/hubernate/output.log"
    assert ast.literal_eval(said) == ["/dev/null", log, log]


async def test_the_user_inside_is_the_user_outside_and_nobody_else_is_mapped(box: Box) -> None:
    process = await box.start("/bin/sleep", "1000")
    uid = box.spec.identity.uid
    mapped = [line.split() for line in proc.read_text(f"/proc/{process.pid}/uid_map").splitlines()]
    assert mapped == [["0", str(box.spec.inner_root), "1"], [str(uid), str(uid), "1"]]
    namespaces = ("user", "pid", "mnt", "net", "ipc")
    for name in namespaces:
        own = os.readlink(f"/proc/self/ns/{name}")
        assert os.readlink(f"/proc/{process.pid}/ns/{name}") != own


@pytest.mark.parametrize("umask", [0o022, 0o077])
async def test_the_sandbox_does_not_depend_on_the_supervisors_umask(box: Box, umask: int) -> None:
    before = os.umask(umask)
    try:
        said = await run_inside(box, "import os; print(os.umask(0), os.listdir('/home'))")
    finally:
        os.umask(before)
    assert said.strip() == f"{0o022} ['alice']"
