"""A lease is enforced by what the sandbox can open."""

from __future__ import annotations

import pytest

from hub_config.demo.browserless import Researcher
from hub_config.demo.stage import Stage
from tests.e2e.scenes import end, open_with_a_secret, read_secret, resume, suspend, until

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.criu,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(180),
]

DEVICES = """
import os
def openable():
    found = []
    for number in range(4):
        try:
            open(f"/dev/vgpu{number}").close()
            found.append(number)
        except OSError:
            pass
    return found
print(openable())
"""
SET_BY_HAND = "os.environ['CUDA_VISIBLE_DEVICES'] = '0,1,2,3'; print(openable())"
HOLD = (
    "import os, time\n"
    "print(sorted(n for n in os.listdir('/dev') if n.startswith('vgpu')), flush=True)\n"
    "while not os.path.exists(os.path.expanduser('~/stop')): time.sleep(0.1)\n"
)


async def test_resume_on_another_gpu_reaches_only_that_one(
    two_gpus: Stage, alice: Researcher
) -> None:
    kernel_id, word = await open_with_a_secret(alice)
    async with alice.kernel(kernel_id) as kernel:
        first = await kernel.run(DEVICES)
        hint = await kernel.run("print(os.environ['CUDA_VISIBLE_DEVICES'])")
    assert first == "[0]"
    terminal = await alice.new_terminal()
    await suspend(alice)
    job = await two_gpus.hubernate_json(
        *("submit", "--user", "bob", "--gpus", "1", "--name", "hold", "--json"),
        *("--", "python", "-u", "-c", HOLD),
    )

    async def runs() -> bool:
        return "vgpu0" in await two_gpus.hubernate("logs", job["id"])

    await until(runs, timeout=40, what="the job holds GPU 0")
    await resume(alice)
    assert await read_secret(alice, kernel_id) == word
    async with alice.kernel(kernel_id) as kernel:
        assert await kernel.run("print(openable())") == "[1]"
        assert await kernel.run(SET_BY_HAND) == "[1]"
    async with alice.kernel(await alice.new_kernel()) as fresh:
        assert await fresh.run(DEVICES) == "[1]"
        assert await fresh.run("print(os.environ['CUDA_VISIBLE_DEVICES'])") == hint
    async with alice.terminal(terminal) as shell:
        await shell.type("cat /dev/vgpu0; ls /dev | grep vgpu; echo end-of-$((1+1))\n")
        text = await shell.until(r"end-of-2")
    assert "vgpu1" in text
    assert "No such file" in text
    await two_gpus.hubernate("cancel", job["id"])
    await end(alice)


async def test_a_cpu_only_session_has_no_device_and_is_suspended_all_the_same(
    two_gpus: Stage, alice: Researcher
) -> None:
    kernel_id, word = await open_with_a_secret(alice, "cpu")
    async with alice.kernel(kernel_id) as kernel:
        assert await kernel.run(DEVICES) == "[]"
    await suspend(alice)
    await _is_known_to_fit(two_gpus)
    await resume(alice)
    assert await read_secret(alice, kernel_id) == word
    await end(alice)


async def _is_known_to_fit(stage: Stage) -> None:
    """What the snapshot demands and what the machine is were both told to the scheduler."""
    (node,) = (await stage.hubernate_json("nodes", "--json"))["nodes"]
    (session,) = await stage.hubernate_json("sessions", "list", "--json")
    demands = session["snapshot"]["constraints"]
    assert demands.keys() >= {"architecture", "kernel", "criu", "cpu_flags"}
    assert node["facts"].keys() >= demands.keys()
    assert demands["criu"] == node["facts"]["criu"]
    why = await stage.hubernate_json("why", session["id"], "--json")
    assert why["resume"]["now"]
    judged = await stage.hubernate_json("snapshots", "compat", "--json")
    assert (judged["judged"], [*judged["facts"]]) == (1, [node["name"]])
