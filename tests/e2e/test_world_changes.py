"""The world changes while a session is suspended, and that is normal."""

from __future__ import annotations

import asyncio
import socket

import pytest

from hub_config.demo.browserless import Researcher
from hub_config.demo.stage import Stage
from tests.e2e.scenes import (
    end,
    host_port,
    open_with_a_secret,
    read_secret,
    resume,
    suspend,
    until,
    workload,
)

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.criu,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(180),
]

MAP_A_LIBRARY = """
import ctypes, os, shutil, sysconfig
here = os.path.expanduser("~/lib")
os.makedirs(here, exist_ok=True)
source = os.path.join(sysconfig.get_config_var("LIBDIR"), "libz.so.1")
import glob
source = sorted(glob.glob("/usr/lib/x86_64-linux-gnu/libz.so.1*"))[-1]
shutil.copy(os.path.realpath(source), here + "/libmine.so")
mine = ctypes.CDLL(here + "/libmine.so")
print(mine.zlibCompileFlags() > 0)
"""

REPLACE_IT = """
import os, shutil
here = os.path.expanduser("~/lib")
with open(here + "/new", "wb") as handle:
    handle.write(b"a new version of another size")
os.replace(here + "/new", here + "/libmine.so")
print("replaced")
"""


async def test_a_second_server_and_a_job_of_the_same_user_run_meanwhile(
    two_gpus: Stage, alice: Researcher
) -> None:
    kernel_id, word = await open_with_a_secret(alice)
    async with alice.kernel(kernel_id) as kernel:
        assert await kernel.run(MAP_A_LIBRARY) == "True"
    await suspend(alice)

    other_kernel, other = await open_with_a_secret(alice, server="second")
    async with alice.kernel(other_kernel, "second") as kernel:
        for number in range(30):
            await kernel.run(f"x = {number}")  # grows history.sqlite
        assert await kernel.run(REPLACE_IT) == "replaced"
    job = await two_gpus.hubernate_json(
        *("submit", "--user", "alice", "--gpus", "1", "--name", "meanwhile", "--json"),
        *("--", "python", "-c", "print('ran')"),
    )

    async def done() -> bool:
        jobs = await two_gpus.hubernate_json("jobs", "--all", "--json")
        return any(j["id"] == job["id"] and j["phase"] == "succeeded" for j in jobs)

    await until(done, timeout=60, what="the job ran")

    await resume(alice)
    assert await read_secret(alice, kernel_id) == word
    async with alice.kernel(kernel_id) as kernel:
        assert await kernel.run("print(mine.zlibCompileFlags() > 0)") == "True"
    assert await read_secret(alice, other_kernel, server="second") == other
    await end(alice)
    await end(alice, server="second")


async def test_the_old_host_port_is_taken_at_the_resume(two_gpus: Stage, bob: Researcher) -> None:
    kernel_id, word = await open_with_a_secret(bob, "cpu")
    old = host_port(two_gpus, str((await workload(two_gpus, "bob"))["id"]))
    await suspend(bob)
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", old))
        taken.listen()
        await resume(bob)
        assert await read_secret(bob, kernel_id) == word
    await end(bob)


async def test_two_tabs_that_resume_at_once_get_one_restore(
    two_gpus: Stage, alice: Researcher
) -> None:
    """Two press Resume on the home page, a third opens the server's address."""
    kernel_id, word = await open_with_a_secret(alice)
    await suspend(alice)
    before = await workload(two_gpus, "alice")
    await asyncio.gather(
        alice.act("resume"),
        alice.act("resume"),
        alice.request("GET", f"{alice.url}/hub/spawn/{alice.name}", expect=(200, 302)),
    )
    await asyncio.gather(alice.until_ready(), alice.until_ready())
    assert await asyncio.gather(*(read_secret(alice, kernel_id) for _ in range(2))) == [word, word]
    after = await workload(two_gpus, "alice")
    assert (after["id"], after["epoch"]) == (before["id"], before["epoch"] + 1)
    await end(alice)
