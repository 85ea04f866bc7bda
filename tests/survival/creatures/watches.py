"""inotify: watches on a folder and on a file, and `tail -f`, which has one of its own.

`tail -f` begins only after the suspend that is undone: it ends when its `poll` is interrupted, which
CRIU does to every program that it lets go on. What is brought back from a store is spared that.
"""

import ctypes
import os
import select
import struct
import subprocess

from stage import stages

IN_MODIFY, IN_CREATE, IN_NONBLOCK = 0x2, 0x100, 0o4000
libc = ctypes.CDLL(None, use_errno=True)
home = os.path.expanduser("~")
os.mkdir(f"{home}/watched")
single = open(f"{home}/single", "w")
grown = open(f"{home}/grown", "w")
watcher = libc.inotify_init1(IN_NONBLOCK)
on_folder = libc.inotify_add_watch(watcher, f"{home}/watched".encode(), IN_CREATE)
on_file = libc.inotify_add_watch(watcher, f"{home}/single".encode(), IN_MODIFY)


def events() -> list[tuple[int, int, str]]:
    assert select.select([watcher], [], [], 20)[0], "nothing was told"
    data, found = os.read(watcher, 4096), []
    while data:
        watch, mask, _, length = struct.unpack_from("iIII", data)
        found.append((watch, mask, data[16 : 16 + length].rstrip(b"\0").decode()))
        data = data[16 + length :]
    return found


def follow() -> "subprocess.Popen[str]":
    argv = ["tail", "-f", f"{home}/grown"]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, bufsize=1)


tail = None
for stage in stages():
    assert not select.select([watcher], [], [], 0)[0]
    open(f"{home}/watched/{stage}", "w").close()
    assert events() == [(on_folder, IN_CREATE, stage)]
    single.write("x")
    single.flush()
    assert events() == [(on_file, IN_MODIFY, "")]
    tail = tail or follow()
    grown.write(f"{stage}\n")
    grown.flush()
    line = tail.stdout.readline()
    assert line == f"{stage}\n", (line, tail.poll())
