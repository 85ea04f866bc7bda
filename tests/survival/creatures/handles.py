"""What programs wait with: epoll, event counters, timers, signals and processes as descriptors."""

import ctypes
import os
import select
import signal
import socket
import subprocess

from stage import stages

libc = ctypes.CDLL(None, use_errno=True)


class Interval(ctypes.Structure):
    _fields_ = [(name, ctypes.c_long) for name in ("every", "every_ns", "first", "first_ns")]


def interval(seconds: int, nanoseconds: int) -> Interval:
    return Interval(seconds, nanoseconds, seconds, nanoseconds)


counter = libc.eventfd(0, 0)
beating, far_away = libc.timerfd_create(1, 0), libc.timerfd_create(1, 0)
assert libc.timerfd_settime(beating, 0, ctypes.byref(interval(0, 50_000_000)), None) == 0
assert libc.timerfd_settime(far_away, 0, ctypes.byref(interval(3600, 0)), None) == 0
child = subprocess.Popen(["sleep", "1000"])
process = os.pidfd_open(child.pid)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
mask = (ctypes.c_ulong * 16)(1 << (signal.SIGUSR1 - 1))
signals = libc.signalfd(-1, ctypes.byref(mask), 0)
near, far = socket.socketpair()
waiting = select.epoll()
for descriptor in (counter, process, signals, near.fileno()):
    waiting.register(descriptor, select.EPOLLIN)
nested = select.epoll()
nested.register(waiting.fileno(), select.EPOLLIN)


def tells(expected: int) -> None:
    assert nested.poll(20) == [(waiting.fileno(), select.EPOLLIN)]
    assert [descriptor for descriptor, _ in waiting.poll(20)] == [expected]


for stage in stages():
    assert waiting.poll(0) == []
    os.write(counter, (7).to_bytes(8, "little"))
    tells(counter)
    assert int.from_bytes(os.read(counter, 8), "little") == 7
    far.sendall(b"x")
    tells(near.fileno())
    assert near.recv(10) == b"x"
    os.kill(os.getpid(), signal.SIGUSR1)
    tells(signals)
    assert int.from_bytes(os.read(signals, 128)[:4], "little") == signal.SIGUSR1
    os.read(beating, 8)
    os.read(beating, 8)
    left = Interval()
    libc.timerfd_gettime(far_away, ctypes.byref(left))
    assert 3000 < left.first <= 3600
    if stage == "again":
        child.kill()
        tells(process)
