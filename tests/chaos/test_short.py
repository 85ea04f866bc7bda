"""One short round through the real Hub, CRIU, supervisors and store; the long ones: `make chaos`."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.chaos.plan import Fault, plan

SEED = 142


@pytest.mark.e2e
@pytest.mark.criu
@pytest.mark.timeout(600)
def test_a_short_round_loses_and_leaks_nothing() -> None:
    struck = set(plan(SEED, 0, cycles=1).faults())
    assert struck >= {Fault.CRIU, Fault.HOLDERS}
    command = [sys.executable, "-m", "tests.chaos", "--rounds", "1", "--cycles", "1"]
    ran = subprocess.run([*command, "--seed", str(SEED)], capture_output=True, text=True)
    said = f"{ran.stdout}\n{ran.stderr}"
    assert ran.returncode == 0, said
    assert json.loads(ran.stdout.splitlines()[-1]) == {
        "rounds": 1,
        "lost_sessions": 0,
        "leaked_gpus": 0,
        "double_allocations": 0,
        "orphan_processes": 0,
        "leftovers": 0,
        "seed": SEED,
    }
    assert "compute: done" in said
