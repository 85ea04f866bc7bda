"""2,000 descriptors of one process: files, pipes, sockets, devices, copies."""

import os
import resource
import socket

from stage import stages

home = os.path.expanduser("~")
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
os.mkdir(f"{home}/many")
files = [open(f"{home}/many/{n}", "w+") for n in range(700)]
copies = [os.dup(file.fileno()) for file in files[:300]]
pipes = [os.pipe() for _ in range(300)]
pairs = [socket.socketpair() for _ in range(150)]
nulls = [open("/dev/null", "wb") for _ in range(100)]
assert len(os.listdir("/proc/self/fd")) > 2000
limits = resource.getrlimit(resource.RLIMIT_NOFILE)

for number, _ in enumerate(stages(), start=1):
    for index, file in enumerate(files):
        file.write(f"{index} ")
        file.flush()
        file.seek(0)
        assert file.read() == f"{index} " * number
    assert all(os.fstat(c).st_ino == os.fstat(f.fileno()).st_ino for c, f in zip(copies, files))
    for reading, writing in pipes:
        os.write(writing, b"p")
        assert os.read(reading, 10) == b"p"
    for near, far in pairs:
        near.sendall(b"s")
        assert far.recv(10) == b"s"
    assert all(null.write(b"x") == 1 for null in nulls)
    assert len(os.listdir("/proc/self/fd")) > 2000
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == limits
