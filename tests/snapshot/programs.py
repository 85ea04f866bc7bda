"""Programs that tests run inside a sandbox: what they hold must survive a freeze."""

EVERYTHING = """
import os, pty, socket, sqlite3, subprocess, tempfile, threading, time
from multiprocessing import shared_memory

child = subprocess.Popen(["sleep", "1000"])
terminal, far = pty.openpty()
shell = subprocess.Popen(["/bin/sh"], stdin=far, stdout=far, stderr=far, start_new_session=True)
memory = bytearray(os.urandom(8_000_000))
digest = hash(bytes(memory))
listener = socket.create_server(("127.0.0.1", 0))
near = socket.create_connection(listener.getsockname())
distant, _ = listener.accept()
unlinked = tempfile.TemporaryFile()
unlinked.write(b"unlinked" * 400_000)
unlinked.flush()
shared = shared_memory.SharedMemory(create=True, size=1_000_000)
shared.buf[:6] = b"shared"
database = sqlite3.connect(":memory:")
database.execute("create table t (x)")
database.execute("insert into t values (42)")
half = open(os.path.expanduser("~/half"), "w")
half.write("first half ")
half.flush()
ticks = 0

def tick():
    global ticks
    while True:
        ticks += 1
        time.sleep(0.01)

threading.Thread(target=tick, daemon=True).start()
turn = 0
while True:
    turn += 1
    before = ticks
    while ticks == before:
        time.sleep(0.005)
    near.sendall(b"ping")
    assert distant.recv(4) == b"ping"
    assert hash(bytes(memory)) == digest
    unlinked.seek(0)
    assert unlinked.read() == b"unlinked" * 400_000
    assert bytes(shared.buf[:6]) == b"shared"
    assert database.execute("select x from t").fetchall() == [(42,)]
    assert child.poll() is None and shell.poll() is None
    os.write(terminal, b"echo $((%d * 7))-out\\n" % turn)
    seen = b""
    while b"%d-out" % (turn * 7) not in seen:
        seen += os.read(terminal, 1000)
    half.write(f"{turn} ")
    half.flush()
    print(f"turn {turn} pid {os.getpid()} child {child.pid}", flush=True)
    time.sleep(0.05)
"""

COUNT = """
import time
turn = 0
while True:
    turn += 1
    print(f"turn {turn}", flush=True)
    time.sleep(0.05)
"""

HISTORY = """
import os, sqlite3, time
db = sqlite3.connect(os.path.expanduser("~/history.sqlite"))
db.execute("create table if not exists h (x)")
db.commit()
while True:
    rows = db.execute("select count(*) from h").fetchone()[0]
    print(f"rows {rows} check {db.execute('pragma integrity_check').fetchone()[0]}", flush=True)
    time.sleep(0.05)
"""

LIBRARY = """
import ctypes, os, time
library = ctypes.CDLL(os.path.expanduser("~/lib.so"))
library.zlibVersion.restype = ctypes.c_char_p
while True:
    print(f"answer {library.zlibVersion().decode()[0]}", flush=True)
    time.sleep(0.05)
"""

# Sends without a pause: the shortest moment in which its connection refuses ends it.
BUSY_CONNECTION = """
import socket
listener = socket.create_server(("127.0.0.1", 0))
near = socket.create_connection(listener.getsockname())
far, _ = listener.accept()
turn = 0
while True:
    for _ in range(2000):
        near.sendall(b"x")
        assert far.recv(1) == b"x"
    turn += 1
    print(f"turn {turn}", flush=True)
"""
