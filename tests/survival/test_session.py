"""What a researcher has open in Jupyter, after a suspend that was undone and eight hours of sleep.

One session goes through both once; each test looks at one thing in it.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.builders.jupyter import page
from tests.builders.s3 import running_s3_server
from tests.builders.sandboxes import until
from tests.survival import cells
from tests.survival.session import Session, session

pytestmark = [
    pytest.mark.criu,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(240),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def woken(
    open_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Session]:
    with running_s3_server(tmp_path_factory.mktemp("s3")) as store:
        async with session(open_folder, store) as made:
            await prepare(made)
            await made.undo_a_suspend()
            await made.sleep_eight_hours()
            yield made


async def prepare(made: Session) -> None:
    """Kernels with work in them, one of them busy; two terminals with programs in front."""
    home = made.box.home
    for _ in range(2):
        await made.server.call("POST", "api/terminals")
    (home / "editor.py").write_text(cells.EDITOR)
    await made.type("1", "python3 editor.py\rone two ", shows="two ")
    starting = f"{sys.prefix}/bin/python -m ipykernel_launcher -f ~/from-terminal.json\r"
    await made.type("2", starting, shows="from-terminal.json")
    await asyncio.gather(
        made.run("science", cells.SCIENCE),
        made.run("widgets", "import ipywidgets"),
        made.run("busy", "1"),
    )
    await made.run("widgets", cells.WIDGETS + "\nprint(end='')")
    await until((home / "from-terminal.json").exists, "the kernel of the terminal is there")
    await made.run("client", cells.CLIENT)
    await made.server.execute(made.kernels["busy"], cells.COUNTS_ON, wait=False)
    await until((home / "count").exists, "the cell runs")


async def test_numpy_pandas_and_matplotlib_compute_on(woken: Session) -> None:
    assert await woken.run("science", cells.COMPUTES_ON) == "same True"


async def test_the_cell_that_ran_goes_on_to_its_end(woken: Session) -> None:
    count = woken.box.home / "count"

    def counted() -> int:
        return int(count.read_text() or 0)

    before = counted()
    await until(lambda: counted() > before + 5, "it counts on")
    (woken.box.home / "enough").touch()
    assert int(await woken.run("busy", "print(count)")) >= counted() > before


async def test_widgets_still_speak_with_the_page(woken: Session) -> None:
    comm = await woken.run("widgets", "print(slider.comm.comm_id)")
    content = {"comm_id": comm, "data": {"method": "update", "state": {"value": 7}}}
    async with page(woken.server.channel(woken.kernels["widgets"])) as widgets:
        await widgets.write_message(json.dumps(woken.server.message("comm_msg", content)))
        assert await woken.run("widgets", "print(slider.value, heard)") == "7 [7]"
        await woken.run("widgets", "slider.value = 9")
        async with asyncio.timeout(20):
            while not is_update(json.loads(await widgets.read_message() or "{}"), comm, 9):
                continue


def is_update(message: dict[str, Any], comm: str, value: int) -> bool:
    """Whether a kernel tells its page the new value of a widget."""
    content = message["content"]
    if message["msg_type"] != "comm_msg" or content["comm_id"] != comm:
        return False
    return bool(content["data"].get("state", {}).get("value") == value)


async def test_a_kernel_started_from_a_terminal_answers_its_client(woken: Session) -> None:
    assert await woken.run("client", "print(ask('secret + 1'), ask('os.getpid()') == pid)") == (
        "43 True"
    )


async def test_the_editor_in_a_terminal_has_the_text_that_was_never_saved(woken: Session) -> None:
    await woken.type("1", "three\x13", shows="SAVED")
    assert (woken.box.home / "edited").read_text() == "one two three"


async def test_nothing_was_culled_and_the_cullers_work(woken: Session) -> None:
    """Last: it ends what the others look at."""
    beats = (await woken.server.call("GET", "eight-hours"))["beats"]
    async with asyncio.timeout(30):
        while (await woken.server.call("GET", "eight-hours"))["beats"] < beats + 2:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    kernels = await woken.server.call("GET", "api/kernels")
    assert {kernel["id"] for kernel in kernels} == set(woken.kernels.values())
    assert {t["name"] for t in await woken.server.call("GET", "api/terminals")} == {"1", "2"}

    # Eight hours without a resume are eight idle hours.
    await woken.server.call("POST", "eight-hours")
    async with asyncio.timeout(30):
        while await woken.server.call("GET", "api/kernels"):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
