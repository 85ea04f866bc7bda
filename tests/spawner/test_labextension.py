"""The session's state in JupyterLab's status bar, in a real server and a real browser."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from playwright.async_api import Page, Request, async_playwright, expect

from reclaimer.idleness import IdleSince, Watch, assess
from reclaimer.signals import read_sample
from scheduler_bridge.model.phases import Kind, Phase
from scheduler_bridge.model.workload import Workload, WorkloadId, WorkloadSpec
from spawner.extension_page import LABEXTENSIONS
from spawner.supervisor.signals import Heard, InnerReport, compose
from tests.builders.jupyter import TOKEN
from tests.spawner.test_extension import Session, session

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or ""
browser_needed = pytest.mark.skipif(not CHROMIUM, reason="there is no Chromium on this machine")
PATIENT = 30_000.0
CAN = {"can": True, "sentence": "Can be suspended: 5 MB of memory."}
THEMES = "lab/api/settings/@jupyterlab/apputils-extension:themes"
READABLE = 4.5
"""The contrast that WCAG asks of text."""


def tell(s: Session, filling: dict[str, Any] | None, suspend: dict[str, Any] = CAN) -> None:
    """As a supervisor does."""
    new = s.folder / "state.new"
    new.write_text(json.dumps({"filling": filling, "suspend": suspend}))
    new.rename(s.folder / "state.json")


def arriving(percent: int, trouble: str = "") -> dict[str, Any]:
    return {"percent": percent, "trouble": trouble}


@asynccontextmanager
async def lab(s: Session) -> AsyncIterator[Page]:
    """JupyterLab in a browser; nothing may be complained of in its console."""
    problems: list[str] = []
    async with async_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-gpu"]
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        page = await browser.new_page(viewport={"width": 1280, "height": 800})
        page.set_default_timeout(PATIENT)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on(
            "console",
            lambda said: problems.append(said.text) if said.type in ("error", "warning") else None,
        )
        await page.goto(f"{s.server.url}lab?token={TOKEN}")
        await shown(page, "")
        yield page
        await browser.close()
    assert problems == []


async def shown(page: Page, text: str) -> None:
    """The status bar says this."""
    await expect(page.locator("#jp-bottom-panel .hubernate-state")).to_contain_text(
        text, timeout=PATIENT
    )


async def colours(page: Page) -> tuple[str, str]:
    """Of the item's text, and of what is behind it."""
    found = await page.locator(".hubernate-state").evaluate(
        """item => {
          let behind = item;
          while (/, 0\\)|transparent/.test(getComputedStyle(behind).backgroundColor))
            behind = behind.parentElement;
          return [getComputedStyle(item).color, getComputedStyle(behind).backgroundColor];
        }"""
    )
    return str(found[0]), str(found[1])


async def readable(page: Page, theme: str) -> None:
    """In the theme that the page is to have."""
    worn = page.locator(f"body[data-jp-theme-name='{theme}']")
    await expect(worn).to_have_count(1, timeout=PATIENT)
    text, behind = await colours(page)
    assert contrast(text, behind) >= READABLE, (theme, text, behind)


def luminance(colour: str) -> float:
    """Relative luminance (WCAG) of `rgb(…)`, or of `rgba(…)` as if it were solid."""
    parts = [float(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(text: str, behind: str) -> float:
    lighter, darker = sorted((luminance(text), luminance(behind)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


@browser_needed
async def test_memory_that_arrives_is_shown_until_all_of_it_is_there(tmp_path: Path) -> None:
    async with session(tmp_path) as s:
        tell(s, arriving(63))
        async with lab(s) as page:
            await shown(page, "Memory arriving 63 %")
            tell(s, arriving(64, "<b>the store</b> does not answer."))
            await shown(page, "⚠ Memory arriving 64 %: waiting")
            await page.locator(".hubernate-state").click()
            details = page.get_by_role("dialog")
            await expect(details).to_contain_text("No more comes now: <b>the store</b> does not")
            await expect(details).to_contain_text("nothing is lost")
            await page.get_by_role("button", name="Close").click()
            tell(s, None)
            await expect(page.locator(".hubernate-state")).to_have_text(
                "Hubernate", timeout=PATIENT
            )
            await expect(page.locator(".hubernate-state")).to_have_attribute(
                "title", CAN["sentence"]
            )
            tell(s, None, {"can": False, "sentence": "Cannot be suspended. vim uses a device."})
            await shown(page, "Cannot be suspended")
            await readable(page, "JupyterLab Light")
            await s.server.call("PUT", THEMES, json={"raw": '{"theme": "JupyterLab Dark"}'})
            await page.reload()
            await shown(page, "Cannot be suspended")
            await readable(page, "JupyterLab Dark")


@browser_needed
async def test_what_changed_meanwhile_is_said_once(tmp_path: Path) -> None:
    async with session(tmp_path) as s, lab(s) as page:
        s.go_on(announced=True)
        toast = page.locator(".Toastify__toast")
        await expect(toast).to_contain_text("one thing is not as before", timeout=PATIENT)
        await page.get_by_role("button", name="Show", exact=True).click()
        await expect(page.get_by_role("dialog")).to_contain_text("a file grew")
        await page.reload()
        await shown(page, "Hubernate")
        await page.wait_for_event("requestfinished", lambda r: "hubernate/status" in r.url)
        await expect(toast).to_have_count(0)


@browser_needed
async def test_a_hidden_page_does_not_ask_and_looking_is_no_input(tmp_path: Path) -> None:
    async with session(tmp_path) as s:
        begun = await s.hears(lambda r: True)
        tell(s, arriving(5))
        async with lab(s) as page:
            asked: list[str] = []

            def note(request: Request) -> None:
                if "hubernate/status" in request.url:
                    asked.append(request.url)

            page.on("request", note)
            async with asyncio.timeout(20):
                while len(asked) < 4:
                    await page.wait_for_event("requestfinished")
            await hide(page, True)
            so_far = len(asked)
            # two beats of the server: four seconds in which a page that is seen asks four times
            await s.hears(lambda r: True)
            still = await s.hears(lambda r: True)
            assert len(asked) <= so_far + 1  # one may have been on its way
            assert still.last_input == begun.last_input
            assert still.connections == 0
            tell(s, arriving(6))
            await hide(page, False)
            await shown(page, "Memory arriving 6 %")


async def hide(page: Page, hidden: bool) -> None:
    """As if another tab were in front."""
    await page.evaluate(
        """hidden => {
          Object.defineProperty(document, "hidden", {value: hidden, configurable: true});
          document.dispatchEvent(new Event("visibilitychange"));
        }""",
        hidden,
    )


async def test_the_real_server_offers_it_and_serves_what_is_in_the_package(tmp_path: Path) -> None:
    async with session(tmp_path) as s:
        entry = "hubernate/static/remoteEntry.js"
        served = await s.server.text(f"lab/extensions/{entry}")
        assert served == (LABEXTENSIONS / entry).read_text()


def judged(report: InnerReport, cpu_seconds: float, watch: Watch) -> Any:
    """What the reclaimer makes of a session that reported the same for a minute."""
    now = time.time()
    spec = WorkloadSpec(Kind.SESSION, "s", "alice", gpus=1)
    samples = []
    for at, cpu in ((now - 60, 0.0), (now, cpu_seconds)):
        signals = compose(at, Heard().hear(report, at), cpu_seconds=cpu, blockers=()).as_dict()
        told = json.loads(json.dumps(signals))
        workload = Workload(
            WorkloadId("w"), "k", spec, Phase.RUNNING, 0.0, 0.0, 1, signals=told, signals_at=at
        )
        sample = read_sample(workload)
        assert sample is not None
        samples.append(sample)
    return assess(samples, now, running_since=0.0, watch=watch)


async def test_asking_alone_lets_a_session_go_idle(tmp_path: Path) -> None:
    """A minute of a page that asks each second, without the minute."""
    async with session(tmp_path) as s:
        before = await s.hears(lambda r: r.kernels == ())
        activity = await s.server.call("GET", "api/status?no_track_activity=1")
        server = psutil.Process(s.process.pid)
        used = sum(server.cpu_times()[:2])
        for _ in range(60):
            await s.server.call("GET", "hubernate/status")
        cpu = sum(server.cpu_times()[:2]) - used
        after = await s.hears(lambda r: True)
        again = await s.server.call("GET", "api/status?no_track_activity=1")
        assert again["last_activity"] == activity["last_activity"]
        found = judged(after, cpu, Watch())
        assert isinstance(found, IdleSince), (found, cpu)
        assert found.since == before.last_input
