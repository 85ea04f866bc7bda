"""Timers and signals: a beating interval timer, a blocked signal that is pending, a handler."""

import signal
import time

from stage import stages, wait_for

beats = 0
handled = []


def beat(*_: object) -> None:
    global beats
    beats += 1


signal.signal(signal.SIGALRM, beat)
signal.signal(signal.SIGUSR2, lambda *_: handled.append("usr2"))
signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGUSR2})
signal.raise_signal(signal.SIGUSR2)
started, wall = time.monotonic(), time.time()

for _ in stages():
    before = beats
    wait_for(lambda before=before: beats > before + 2)
    assert signal.sigpending() == {signal.SIGUSR2}
    assert not handled
    # Neither clock went back.
    assert time.monotonic() > started and time.time() > wall
    started, wall = time.monotonic(), time.time()

signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR2})
assert handled == ["usr2"]
