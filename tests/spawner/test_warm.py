"""A process that waits for work: used once, replaced later, gone with its owner."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from spawner.warm import WarmSupervisors
from tests.builders.supervisor import until

ECHO = (sys.executable, "-c", "print(input())")
GONE = "import sys; sys.stdin.read()"


@pytest.fixture
def warm() -> Iterator[WarmSupervisors]:
    made = WarmSupervisors(ECHO, os.environ, delay=0.0)
    yield made
    made.close()


async def filled(warm: WarmSupervisors) -> subprocess.Popen[bytes]:
    warm.refill()
    found = await until(lambda: warm.waiting, 10)
    assert isinstance(found, subprocess.Popen)
    return found


async def test_there_is_none_until_one_was_asked_for(warm: WarmSupervisors) -> None:
    assert warm.take() is None
    waiting = await filled(warm)
    assert warm.take() is waiting
    assert waiting.communicate(b"the order\n")[0] == b"the order\n"
    assert warm.take() is None


async def test_one_that_died_is_not_given_out_and_replaced(warm: WarmSupervisors) -> None:
    first = await filled(warm)
    first.send_signal(signal.SIGKILL)
    first.wait()
    for stream in (first.stdin, first.stdout):
        assert stream is not None
        stream.close()
    assert warm.take() is None
    second = await filled(warm)
    assert second.pid != first.pid


async def test_it_ends_when_its_owner_closes_the_input() -> None:
    warm = WarmSupervisors((sys.executable, "-c", GONE), os.environ, delay=0.0)
    waiting = await filled(warm)
    warm.close()
    assert waiting.returncode == 0
    warm.close()


async def test_a_program_that_cannot_start_is_no_error() -> None:
    warm = WarmSupervisors(("/does/not/exist",), os.environ, delay=0.0)
    warm.refill()
    assert warm.take() is None
    warm.close()
