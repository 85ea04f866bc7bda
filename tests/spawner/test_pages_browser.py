"""The pages' scripts in a real browser: what a person presses, and what they then see."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Dialog, Error, Page, Route, async_playwright, expect

from tests.builders.hub import RunningHub, until

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or ""
pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(not CHROMIUM, reason="there is no Chromium on this machine"),
]
_numbers = itertools.count()
PATIENT = 15_000.0


class Person:
    """Somebody at a browser. `problems` collects what the page's scripts complain of."""

    def __init__(self, page: Page, hub: RunningHub, name: str) -> None:
        self.page, self.hub, self.name = page, hub, name
        self.problems: list[str] = []
        page.on("pageerror", lambda error: self.problems.append(str(error)))

    async def log_in(self) -> None:
        await self.page.goto(f"{self.hub.url}/hub/login?next=%2Fhub%2Fhome")
        await self.page.fill("#username_input", self.name)
        await self.page.fill("#password_input", self.hub.password)
        await self.page.click("#login_submit")
        await self.page.wait_for_selector("#hubernate-title")

    async def home(self) -> None:
        """Whatever page was open: that of a start goes on by itself, perhaps just now."""
        try:
            await self.page.goto(f"{self.hub.url}/hub/home")
        except Error as error:
            if "interrupted by another navigation" not in str(error):
                raise
            await self.page.wait_for_load_state()
            await self.page.goto(f"{self.hub.url}/hub/home")

    async def choose(self, profile: str, server: str = "") -> None:
        path = f"/hub/spawn/{self.name}/{server}" if server else "/hub/spawn"
        await self.page.goto(self.hub.url + path)
        await self.page.check(f"#profile-{profile}")
        await self.page.click("button[type=submit]")

    async def press(self, label: str) -> None:
        await self.page.get_by_role("button", name=label).click()


@pytest_asyncio.fixture(loop_scope="module")
async def people(hub: RunningHub) -> AsyncIterator[list[Person]]:
    """Two people with a browser each."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        made = []
        for _ in range(2):
            page = await (await browser.new_context()).new_page()
            page.set_default_timeout(PATIENT)
            made.append(Person(page, hub, f"person{next(_numbers)}"))
            await made[-1].log_in()
        yield made
        problems = [person.problems for person in made]
        await browser.close()
        for person in made:
            await hub.remove(person.name)
        assert problems == [[], []]


async def test_a_session_is_suspended_resumed_and_discarded_by_hand(people: list[Person]) -> None:
    ada, _ = people
    page = ada.page
    await ada.choose("gpu-1")
    await until(lambda: ada.hub.is_ready(ada.name))
    await ada.home()
    row = page.locator("#hubernate-sessions li")
    await expect(row).to_contain_text("Your server is running.", timeout=PATIENT)
    await expect(row).to_contain_text("Can be suspended: 3 MB of memory", timeout=PATIENT)
    await expect(page.locator("#stop")).to_have_count(0)
    await ada.press("Suspend now: Your server")
    await expect(row).to_contain_text("is suspended; your work is safe", timeout=PATIENT)
    await expect(row).to_contain_text("Resumes now: ")
    await ada.press("Resume: Your server")
    await until(lambda: ada.hub.is_ready(ada.name))
    await ada.home()
    await ada.press("Suspend now: Your server")
    await expect(row).to_contain_text("is suspended", timeout=PATIENT)

    asked: list[str] = []

    async def refuse(dialog: Dialog) -> None:
        asked.append(dialog.message)
        await dialog.dismiss()

    page.once("dialog", refuse)
    await ada.press("Discard: Your server")
    assert "deleted for good" in asked[0]
    await expect(row).to_contain_text("is suspended")
    page.once("dialog", lambda dialog: dialog.accept())
    await ada.press("Discard: Your server")
    await expect(page.locator("#hubernate-none")).to_be_visible(timeout=PATIENT)


async def test_fork_asks_for_a_name_and_opens_a_second_session(people: list[Person]) -> None:
    ada, _ = people
    page = ada.page
    await ada.choose("cpu")
    await until(lambda: ada.hub.is_ready(ada.name))
    await ada.home()
    rows = page.locator("#hubernate-sessions li")
    await ada.press("Suspend now: Your server")
    await expect(rows).to_contain_text("is suspended; your work is safe", timeout=PATIENT)
    page.once("dialog", lambda dialog: dialog.dismiss())
    await ada.press("Fork: Your server")
    await expect(rows).to_have_count(1)
    page.once("dialog", lambda dialog: dialog.accept("second"))
    await ada.press("Fork: Your server")
    await until(lambda: ada.hub.is_ready(ada.name, "second"))
    await ada.home()
    await expect(rows).to_have_count(2, timeout=PATIENT)
    await expect(page.locator("li[data-server=second]")).to_contain_text("is running")
    await expect(page.locator("li[data-server='']")).to_contain_text("is suspended")


async def test_the_keyboards_place_survives_the_refresh(people: list[Person]) -> None:
    ada, _ = people
    await ada.choose("cpu")
    await until(lambda: ada.hub.is_ready(ada.name))
    await ada.home()
    button = ada.page.get_by_role("button", name="Suspend now: Your server")
    await button.focus()
    first = await button.element_handle()
    assert first is not None
    await first.wait_for_element_state("visible")
    async with ada.page.expect_response("**/hubernate/sessions*"):
        pass
    await expect(ada.page.get_by_role("button", name="Suspend now: Your server")).to_be_focused()


async def test_cancel_on_the_pending_page_cancels_the_named_server(people: list[Person]) -> None:
    ada, bob = people
    await bob.choose("gpu-2")
    await until(lambda: bob.hub.is_ready(bob.name))
    await ada.choose("cpu")
    await until(lambda: ada.hub.is_ready(ada.name))
    await ada.choose("gpu-2", "second")
    await expect(ada.page.locator("#hubernate-heading")).to_contain_text("second")
    await expect(ada.page.locator("#progress-message")).to_contain_text("You are next")
    await ada.press("Cancel")
    await ada.page.wait_for_url("**/hub/home")
    rows = ada.page.locator("#hubernate-sessions li")
    await expect(rows).to_have_count(1, timeout=PATIENT)
    await expect(rows).to_contain_text("Your server is running.")


async def test_the_wait_that_ended_tells_the_place_and_the_page_goes_on_by_itself(
    people: list[Person],
) -> None:
    ada, bob = people
    await bob.choose("gpu-2")
    await until(lambda: bob.hub.is_ready(bob.name))
    await ada.choose("gpu-1")
    message = ada.page.locator("#progress-message")
    await expect(message).to_contain_text("your place is kept", timeout=PATIENT)
    await expect(ada.page.locator("#hubernate-heading")).to_have_text("Not opened yet")
    await bob.home()
    await bob.press("Suspend now: Your server")
    await expect(bob.page.locator("#hubernate-sessions li")).to_contain_text("suspended")
    # what the scheduler does when it is their turn
    assert (await ada.hub.api("POST", f"/users/{ada.name}/server")).status_code == 201
    await ada.page.wait_for_url(f"**/user/{ada.name}/**")


async def test_the_date_on_which_memory_goes_is_shown_and_stands_out_when_it_is_near(
    people: list[Person],
) -> None:
    """The date is the scheduler's; here the answer to the page is given one."""
    ada, _ = people
    page, dates = ada.page, {"kept_until": "Kept until 2030-01-01.", "goes_soon": False}

    async def with_date(route: Route) -> None:
        answer = await route.fetch()
        told = await answer.json()
        for each in told["sessions"]:
            each.update(dates)
        await route.fulfill(response=answer, json=told)

    await ada.choose("cpu")
    await until(lambda: ada.hub.is_ready(ada.name))
    await page.route("**/hubernate/sessions*", with_date)
    await ada.home()
    await expect(page.locator("[data-kept=later]")).to_have_text("Kept until 2030-01-01.")
    dates["goes_soon"] = True
    await expect(page.locator(".alert-warning[data-kept=soon]")).to_be_visible(timeout=PATIENT)
    await page.unroute_all(behavior="ignoreErrors")
