"""The cells that the demo runs, and what they must answer after a suspend (data only)."""

from __future__ import annotations

from typing import Final

PREPARE: Final = """
import hashlib, os, subprocess, sys, threading, time
import numpy as np

floats = np.random.default_rng(7).random(8_000_000)
digest = hashlib.sha256(floats).hexdigest()

def count_up():
    number = 0
    while True:
        yield number
        number += 1

numbers = count_up()
for _ in range(5):
    next(numbers)

ticks = 0
def tick():
    global ticks
    while True:
        ticks += 1
        time.sleep(0.1)

thread = threading.Thread(target=tick, daemon=True)
thread.start()

child = subprocess.Popen(
    [sys.executable, "-u", "-c",
     "import sys\\nseen = []\\nfor line in sys.stdin:\\n"
     "    seen.append(line.strip())\\n    print(len(seen), flush=True)"],
    stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

def ask_child(word):
    child.stdin.write(word + "\\n")
    child.stdin.flush()
    return int(child.stdout.readline())

first = ask_child("before")
device = sorted(name for name in os.listdir("/dev") if name.startswith(("vgpu", "nvidia")))
print(len(floats), first, *device)
"""
"""Variables, a generator, a thread and a child process, all in the kernel."""

CHECK: Final = """
same = hashlib.sha256(floats).hexdigest() == digest
before = ticks
time.sleep(0.35)
print(same, next(numbers), ticks > before, ask_child("after"))
"""

LOOP: Final = """
done = []
for step in range(40):
    time.sleep(0.1)
    done.append(step)
    bar = "#" * (len(done) // 2)
    print(f"\\r[{bar:20}] {len(done)}/40", end="", flush=True)
print("\\nloop finished")
"""

LOOP_CHECK: Final = "print(done == list(range(40)))"

TRAIN: Final = """
import fcntl, glob, json, time
device = sorted(glob.glob('/dev/vgpu*'))[0]
with open(device, 'r+') as handle:
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    print('device', device, json.loads(handle.readline())['uuid'], flush=True)
    weight = 0.0
    for step in range(20):
        weight += 0.1 * (3.0 - weight)
        time.sleep(0.1)
    print(f'trained: weight {weight:.3f}', flush=True)
"""
"""A training job that takes its virtual GPU exclusively while it runs."""
