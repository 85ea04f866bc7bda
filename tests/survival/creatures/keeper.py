"""The first program of the tree: starts every creature, each with a log of its own."""

import os
import signal
import subprocess
import sys

home = os.path.expanduser("~")
for line in sys.argv[1:]:
    name, interpreter = line.split("=")
    log = open(f"{home}/said/{name}", "w")
    subprocess.Popen(
        [interpreter, f"{home}/creatures/{name}.py"],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,
    )
while True:
    signal.pause()
