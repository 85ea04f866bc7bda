"""Locked files: others are kept out before, meanwhile and after."""

import ctypes
import fcntl
import os
import struct

from stage import python, stages

F_OFD_SETLK = 37
home = os.path.expanduser("~")
whole = open(f"{home}/flocked", "w")
fcntl.flock(whole, fcntl.LOCK_EX)
part = open(f"{home}/locked-part", "w+b")
part.truncate(1000)
fcntl.lockf(part, fcntl.LOCK_EX, 10, 100)
shared = open(f"{home}/locked-shared", "w+b")
fcntl.lockf(shared, fcntl.LOCK_SH)
own = open(f"{home}/ofd-locked", "w+b")
# struct flock: type, whence, start, length, pid
order = struct.pack("hhxxxxqqixxxx", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
fcntl.fcntl(own, F_OFD_SETLK, order)
libc = ctypes.CDLL(None)

PROBE = """
import fcntl, os
def can(path, take):
    with open(os.path.expanduser(path), "r+b") as file:
        try:
            take(file)
        except BlockingIOError:
            return False
        return True
print(
    can("~/flocked", lambda f: fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)),
    can("~/locked-part", lambda f: fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 105)),
    can("~/locked-part", lambda f: fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 200)),
    can("~/locked-shared", lambda f: fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB)),
    can("~/locked-shared", lambda f: fcntl.lockf(f, fcntl.LOCK_SH | fcntl.LOCK_NB)),
    can("~/ofd-locked", lambda f: fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB)),
)
"""

for stage in stages():
    assert python(PROBE) == "False False True False True False", python(PROBE)
    if stage == "again":
        fcntl.flock(whole, fcntl.LOCK_UN)
        fcntl.lockf(part, fcntl.LOCK_UN, 10, 100)
        assert python(PROBE) == "True True True False True False"
