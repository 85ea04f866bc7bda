"""Shared memory of every kind, and semaphores with somebody waiting at them."""

import ctypes
import mmap
import multiprocessing
import os
from multiprocessing import shared_memory

from stage import python, stages

libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
libc.sem_open.restype = ctypes.c_void_p

block = shared_memory.SharedMemory(create=True, size=2_000_000)
anonymous = mmap.mmap(-1, 1_000_000)
segment = libc.shmget(4711, 100_000, 0o1600)
system_v = (ctypes.c_ubyte * 100_000).from_address(libc.shmat(segment, None, 0))
named = ctypes.c_void_p(libc.sem_open(b"/creature", os.O_CREAT, 0o600, 3))
block.buf[-4:] = anonymous[-4:] = b"last"
system_v[99_999] = 42
asked, answered = multiprocessing.Semaphore(0), multiprocessing.Semaphore(0)
OTHER = """
import ctypes
from multiprocessing import shared_memory, resource_tracker
libc = ctypes.CDLL(None)
libc.sem_open.restype = ctypes.c_void_p
value = ctypes.c_int()
libc.sem_getvalue(ctypes.c_void_p(libc.sem_open(b"/creature", 0)), ctypes.byref(value))
block = shared_memory.SharedMemory({name!r})
resource_tracker.unregister(block._name, "shared_memory")
print(value.value, bytes(block.buf[:1])[0])
"""


def add_one_each_time() -> None:
    while True:
        asked.acquire()
        block.buf[0] += 1
        anonymous[0] += 1
        system_v[0] += 1
        answered.release()


child = multiprocessing.Process(target=add_one_each_time, daemon=True)
child.start()
for number, _ in enumerate(stages(), start=1):
    asked.release()
    assert answered.acquire(timeout=20)
    assert (block.buf[0], anonymous[0], system_v[0]) == (number, number, number)
    assert bytes(block.buf[-4:]) == anonymous[-4:] == b"last" and system_v[99_999] == 42
    # Both are still there by their names, for a program that comes only now.
    assert libc.sem_post(named) == 0
    assert python(OTHER.format(name=block.name)) == f"{3 + number} {number}"
    assert child.is_alive()
