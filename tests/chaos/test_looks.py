"""The looks at a machine: each says what is wrong, and nothing else."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.gpus import Open, leaked, shared
from tests.chaos.leftovers import Traces, is_left_raised, left, traces
from tests.chaos.processes import Running, orphans, running

TREE = (
    Running(1, 0, "first"),
    Running(10, 1, "up"),
    Running(11, 10, "hub"),
    Running(12, 11, "warm supervisor"),
    Running(20, 1, "supervisor"),
    Running(21, 20, "sandbox"),
    Running(30, 1, "pasta"),
)


@pytest.mark.parametrize(
    ("roots", "names"),
    [
        ({1}, []),
        ({1, 10}, []),
        ({10, 20, 30}, ["first"]),
        ({10, 20}, ["first", "pasta"]),
        ({10, 30}, ["first", "supervisor", "sandbox"]),
    ],
)
def test_processes_without_a_root_are_orphans(roots: set[int], names: list[str]) -> None:
    assert [each.name for each in orphans(TREE, roots)] == names


def test_a_process_that_runs_is_seen_with_its_words() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        mine = [each for each in running() if each.pid == child.pid]
        assert [each.parent for each in mine] == [os.getpid()]
        assert "input()" in mine[0].name
        assert mine[0] in orphans(running(), set())
    finally:
        child.communicate(b"\n")
    assert child.pid not in [each.pid for each in running()]


def test_a_gpu_whose_holder_does_not_live_is_leaked() -> None:
    assert leaked({"gpu-a": "s-1", "gpu-b": "s-2"}, {"s-1"}) == ("gpu-b",)
    assert leaked({"gpu-a": "s-1"}, {"s-1", "s-2"}) == ()


def test_a_gpu_in_two_sandboxes_is_shared() -> None:
    one, again = Open("gpu-a", "pid:[1]", 10), Open("gpu-a", "pid:[1]", 11)
    other, free = Open("gpu-a", "pid:[2]", 20), Open("gpu-b", "pid:[2]", 20)
    assert shared((one, again, free)) == ()
    assert shared((one, again, other, free)) == ((one, other),)


def test_what_is_left_is_what_was_not_there_before() -> None:
    before = Traces(frozenset({"/", "/proc"}), frozenset(), is_raised=False)
    now = Traces(frozenset({"/", "/run/x"}), frozenset({"net:[7]"}), is_raised=True)
    assert left(before, before) == ()
    assert left(before, now) == (
        "mount /run/x",
        "namespace net:[7]",
        "vm.unprivileged_userfaultfd is raised, and nobody restores",
    )


def test_the_setting_is_left_raised_only_when_nobody_restores(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    assert not is_left_raised(lock)
    lock.write_text("")
    assert not is_left_raised(lock)
    lock.write_text("0")
    assert is_left_raised(lock)
    with lock.open() as restoring:
        fcntl.flock(restoring, fcntl.LOCK_SH)
        assert not is_left_raised(lock)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make a namespace")
def test_a_namespace_that_only_a_descriptor_keeps_is_seen() -> None:
    alone = ["unshare", "--uts", "sh", "-c", "echo; read line"]
    with subprocess.Popen(alone, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        name = os.readlink(f"/proc/{child.pid}/ns/uts")
        kept = os.open(f"/proc/{child.pid}/ns/uts", os.O_RDONLY)
        assert name not in traces().namespaces
        child.communicate(b"\n")
    assert name in traces().namespaces
    os.close(kept)
    assert name not in traces().namespaces
