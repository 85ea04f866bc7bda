"""The story in a real browser: log in, choose a GPU, compute, suspend, resume, same kernel.

With HUBERNATE_SCREENSHOTS set to a folder, what the browser showed is kept there for the docs.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import psutil
import pytest
import pytest_asyncio
from playwright.async_api import Page, async_playwright, expect

from hub_config.demo.browserless import Researcher
from hub_config.demo.stage import Stage
from snapshot.filling.program import LOG_FILE
from spawner.supervisor.status import read_status
from tests.e2e.scenes import (
    end,
    open_with_a_secret,
    read_secret,
    suspend,
    until,
    until_shown,
    workload,
)

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.criu,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(240),
]

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
CELL = "import secrets; word = secrets.token_hex(4); print('word', word)"


@pytest_asyncio.fixture(loop_scope="module")
async def page(folder: Path) -> AsyncIterator[Page]:
    """A new browser profile on Debian's Chromium."""
    chromium = shutil.which("chromium")
    assert chromium, "chromium is missing: apt-get install chromium"
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        context = await browser.new_context(viewport={"width": 1280, "height": 800})
        page = await context.new_page()
        page.on("dialog", lambda dialog: dialog.accept())
        yield page
        await browser.close()


async def picture(page: Page, name: str) -> None:
    """Keep what the browser shows, when asked to."""
    folder = os.environ.get("HUBERNATE_SCREENSHOTS")
    if folder:
        await page.screenshot(path=f"{folder}/{name}.png")


async def log_in(page: Page, stage: Stage, name: str) -> None:
    await page.goto(f"{stage.url}/hub/login")
    await page.fill("#username_input", name)
    await page.fill("#password_input", stage.password())
    await picture(page, "1-log-in")
    await page.click("#login_submit")


async def choose_one_gpu(page: Page) -> None:
    await page.get_by_label("1 GPU", exact=True).check()
    await expect(page.get_by_text("virtual").first).to_be_visible()
    await picture(page, "2-choose")
    await page.get_by_role("button", name="Start").click()
    await page.wait_for_url(re.compile(r"/user/[^/]+/lab"), timeout=60_000)


async def run_cell(page: Page, code: str) -> None:
    """Type into the active cell of the open notebook, once its kernel is ready, and run it."""
    await expect(page.get_by_role("button", name="Python 3 (ipykernel) | Idle")).to_be_visible(
        timeout=30_000
    )
    cell = page.locator(".jp-Notebook:visible .jp-Cell.jp-mod-active .cm-content")
    await cell.fill(code)
    await expect(cell).to_contain_text(code)
    await page.keyboard.press("Shift+Enter")


async def new_notebook(page: Page) -> None:
    await page.locator(".jp-LauncherCard[data-category='Notebook']").first.click()
    await page.locator(".jp-Notebook:visible .jp-Cell").first.wait_for()


def outputs(page: Page) -> str:
    return ".jp-Notebook:visible .jp-OutputArea-output"


async def test_open_compute_suspend_resume_in_a_browser(two_gpus: Stage, page: Page) -> None:
    await log_in(page, two_gpus, "carol")
    await page.goto(f"{two_gpus.url}/hub/spawn")
    await choose_one_gpu(page)
    await new_notebook(page)
    await run_cell(page, CELL)
    output = page.locator(outputs(page)).filter(has_text="word ").first
    await expect(output).to_be_visible(timeout=30_000)
    word = (await output.inner_text()).split()[-1]
    await page.keyboard.press("Control+s")
    await page.locator(".jp-Dialog .jp-mod-accept").click()  # the first save asks for a name
    await expect(page.locator(".jp-mod-dirty")).to_have_count(0, timeout=10_000)
    await picture(page, "3-compute")

    home = await page.context.new_page()
    home.on("dialog", lambda dialog: dialog.accept())
    await home.goto(f"{two_gpus.url}/hub/home")
    await home.locator("[data-action=suspend]").click()
    await expect(home.locator("li[data-phase=suspended]")).to_be_visible(timeout=40_000)
    await expect(home.get_by_text("your work is safe")).to_be_visible()
    await expect(home.get_by_text("is being suspended")).to_have_count(0)
    await picture(home, "4-suspended")

    await home.locator("[data-action=resume]").click()
    await home.wait_for_url(re.compile(r"/user/carol/"), timeout=60_000)
    await home.close()
    await page.reload()
    await page.locator(".jp-Notebook:visible").first.wait_for(timeout=30_000)
    await page.locator(".jp-Notebook:visible .jp-Cell").last.click()
    await run_cell(page, "print('again', word)")
    await expect(page.locator(outputs(page)).filter(has_text=f"again {word}").first).to_be_visible(
        timeout=30_000
    )
    await expect(page.locator("#jp-bottom-panel .hubernate-state")).to_be_visible(timeout=30_000)
    await picture(page, "5-same-kernel")


def filler_of(folder: Path) -> psutil.Process | None:
    """The program that brings memory to the session of this folder; it writes its log there."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if any(file.path == str(folder / LOG_FILE) for file in process.open_files()):
                return process
    return None


@asynccontextmanager
async def slow_memory(folder: Path) -> AsyncIterator[None]:
    """The memory of the session's next resume comes in small portions, as from far away, once its
    server answers."""

    async def found() -> psutil.Process | None:
        return filler_of(folder)

    async def answers() -> bool:
        status = read_status(folder)
        return status is not None and status.phase == "filling" and status.host_port != 0

    async def slow_down() -> None:
        await until(found, timeout=60, what="memory is brought", every=0.005)
        await until(answers, timeout=60, what="the server answers", every=0.005)
        while filler := filler_of(folder):  # one that is taken for dead is replaced
            with suppress(psutil.NoSuchProcess):
                try:
                    while True:
                        filler.suspend()
                        await asyncio.sleep(0.1)
                        filler.resume()
                        await asyncio.sleep(0.002)
                finally:
                    filler.resume()

    task = asyncio.create_task(slow_down())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def test_arriving_memory_is_shown_on_the_home_page_and_in_the_old_tab(
    two_gpus: Stage, alice: Researcher, page: Page
) -> None:
    kernel_id, word = await open_with_a_secret(alice)
    async with alice.kernel(kernel_id) as kernel:
        await kernel.run("import os; ballast = os.urandom(800_000_000)", timeout=60)
    await log_in(page, two_gpus, "alice")
    await page.goto(f"{two_gpus.url}/user/alice/lab")
    state = page.locator(".hubernate-state")
    await expect(state).to_be_visible(timeout=60_000)
    folder = two_gpus.state / "run" / str((await workload(two_gpus, "alice"))["id"])
    await suspend(alice)
    await expect(state).to_have_text("Session not running", timeout=40_000)

    home = await page.context.new_page()
    await home.goto(f"{two_gpus.url}/hub/home")
    async with slow_memory(folder):
        await alice.act("resume")
        row = home.locator("li[data-phase=filling]")
        await expect(row).to_contain_text(
            re.compile(r"its memory is still arriving \(\d+ %\)"), timeout=60_000
        )
        await expect(state).to_have_text(re.compile(r"^Memory arriving \d+ %$"), timeout=60_000)
    await until_shown(alice, "running")
    await expect(state).to_have_text("Hubernate", timeout=40_000)
    assert await read_secret(alice, kernel_id) == word
    await end(alice)


async def test_more_gpus_than_exist_cannot_be_chosen(two_gpus: Stage, page: Page) -> None:
    await log_in(page, two_gpus, "bob")
    await page.goto(f"{two_gpus.url}/hub/spawn")
    offered = await page.locator("input[name=profile]").evaluate_all(
        "inputs => inputs.filter(i => !i.disabled).map(i => i.value)"
    )
    assert "gpu-1" in offered
    assert "gpu-2" in offered
    assert not [slug for slug in offered if slug in {"gpu-4", "gpu-8"}]
