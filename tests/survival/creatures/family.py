"""A tree of children: nested shells, one stopped, one that ended unseen, a daemon, exit statuses."""

import os
import signal
import subprocess

from stage import stages, state_of, wait_for

DAEMON = "(/bin/sh -c 'while true; do sleep 1000; done' >/dev/null 2>&1 & echo $!)"

nested = subprocess.Popen(
    ["/bin/sh", "-c", "/bin/sh -c 'while read line; do echo got $line; done'; exit 7"],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    text=True,
    bufsize=1,
)
stopped = subprocess.Popen(["sleep", "1000"], start_new_session=True)
stopped.send_signal(signal.SIGSTOP)
wait_for(lambda: state_of(stopped.pid) == "T")
ended = subprocess.Popen(["/bin/sh", "-c", "exit 3"])
wait_for(lambda: state_of(ended.pid) == "Z")
daemon = int(subprocess.run(["/bin/sh", "-c", DAEMON], capture_output=True, check=True).stdout)
parent = int(open(f"/proc/{daemon}/stat").read().split()[3])


def shape() -> tuple[object, ...]:
    pids = (nested.pid, stopped.pid, ended.pid, daemon)
    return tuple((pid, os.getpgid(pid), os.getsid(pid)) for pid in pids)


before = shape()
for number, _ in enumerate(stages()):
    nested.stdin.write(f"line {number}\n")
    assert nested.stdout.readline() == f"got line {number}\n"
    assert state_of(stopped.pid) == "T"
    wait_for(lambda: state_of(ended.pid) == "Z")
    assert int(open(f"/proc/{daemon}/stat").read().split()[3]) == parent == 1
    assert shape() == before
    extra = subprocess.run(["/bin/sh", "-c", "exit 5"])
    assert extra.returncode == 5
    if number == 2:
        nested.stdin.close()
        assert (nested.wait(20), ended.wait(20)) == (7, 3)
        os.kill(daemon, signal.SIGKILL)
        stopped.send_signal(signal.SIGCONT)
        wait_for(lambda: state_of(stopped.pid) == "S")
        stopped.terminate()
        assert stopped.wait(20) == -signal.SIGTERM
