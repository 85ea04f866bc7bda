"""The Hub's pages, as a logged-in browser sees them."""

from __future__ import annotations

import itertools
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from tests.builders.hub import Browser, RunningHub, until
from tests.fakes.process_host import FITS_NOWHERE

pytestmark = pytest.mark.asyncio(loop_scope="module")
_numbers = itertools.count()


async def rows(browser: Browser) -> list[dict[str, Any]]:
    answer = await browser.get(f"/hub/hubernate/sessions?_xsrf={browser.xsrf}")
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["sessions"]
    return found


async def act(browser: Browser, action: str, server: str = "") -> httpx.Response:
    body = {"server": server, "action": action}
    return await browser.post("/hub/hubernate/sessions/action", json=body)


async def until_phase(browser: Browser, phase: str, server: str = "") -> dict[str, Any]:
    async def there() -> dict[str, Any] | None:
        return next(
            (r for r in await rows(browser) if r["server"] == server and r["phase"] == phase), None
        )

    found: dict[str, Any] = await until(there, what=f"{server!r} {phase}")
    return found


async def leave(browser: Browser) -> None:
    """End everything of this user."""
    for row in await rows(browser):
        for action in row["actions"]:
            if action in ("cancel", "stop", "discard"):
                await act(browser, action, row["server"])

    async def is_empty() -> bool:
        return not await rows(browser)

    await until(is_empty)


@pytest_asyncio.fixture(loop_scope="module")
async def ada(hub: RunningHub) -> AsyncIterator[Browser]:
    async with hub.browser(f"ada{next(_numbers)}") as browser:
        yield browser
        await leave(browser)


@pytest_asyncio.fixture(loop_scope="module")
async def bob(hub: RunningHub) -> AsyncIterator[Browser]:
    async with hub.browser(f"bob{next(_numbers)}") as browser:
        yield browser
        await leave(browser)


async def open_session(browser: Browser, profile: str, server: str = "") -> None:
    path = f"/hub/spawn/{browser.user}/{server}" if server else "/hub/spawn"
    answer = await browser.post(path, data={"profile": profile})
    assert answer.status_code == 200, answer.text
    await until(lambda: browser.hub.is_ready(browser.user, server))


async def test_the_form_shows_what_is_free(ada: Browser) -> None:
    page = (await ada.get("/hub/spawn")).text
    assert "Starts now: 2 of 2 virtual GPUs free." in page
    assert "Not available: there are only 2 virtual GPUs." in page


@pytest.mark.parametrize(
    ("form", "limit"),
    [
        ({"profile": "gpu-9"}, "There is no profile"),
        ({"profile": "gpu-4"}, "Ask for at most 2"),
        ({"profile": "gpu-1", "gpus": "3"}, "Ask for at most 2"),
    ],
)
async def test_bad_input_in_the_form_is_refused_with_the_limit(
    ada: Browser, form: dict[str, str], limit: str
) -> None:
    answer = await ada.post("/hub/spawn", data=form)
    assert answer.status_code == 400
    error = next(line for line in answer.text.splitlines() if "spawn-error-msg" in line)
    assert limit in error
    assert 'type="radio"' in answer.text, "the form is there to correct it"


async def test_a_link_with_bad_options_is_refused_too(ada: Browser) -> None:
    answer = await ada.get("/hub/spawn?opt-profile=gpu-4")
    assert answer.status_code == 400 and "Ask for at most 2" in answer.text
    assert await rows(ada) == []


async def test_suspend_resume_and_discard_by_button(ada: Browser) -> None:
    await open_session(ada, "gpu-1")
    row = await until_phase(ada, "running")
    assert row["actions"] == ["suspend", "stop"] and row["gpus"] == "1 virtual GPU"
    assert (await act(ada, "suspend")).json() == {"done": "suspend"}
    row = await until_phase(ada, "suspended")
    assert row["resume_now"] and row["resume_when"].startswith("Resumes now")

    await until(lambda: ada.hub.is_stopped(ada.user))
    stopped = await ada.get(f"/user/{ada.user}/lab")
    assert stopped.status_code == 424
    assert "Session suspended, your work is safe" in stopped.text and ">Resume<" in stopped.text

    answer = await act(ada, "resume")
    assert answer.json()["url"] == f"/hub/spawn-pending/{ada.user}"
    await until_phase(ada, "running")
    await until(lambda: ada.hub.is_ready(ada.user))
    await act(ada, "suspend")
    await until_phase(ada, "suspended")
    assert (await act(ada, "discard")).status_code == 200
    assert await rows(ada) == []
    assert 'type="radio"' in (await ada.get("/hub/spawn")).text


async def test_opening_a_suspended_session_asks_nothing(ada: Browser) -> None:
    await open_session(ada, "gpu-1")
    await act(ada, "suspend")
    await until_phase(ada, "suspended")
    await until(lambda: ada.hub.is_stopped(ada.user))
    answer = await ada.get("/hub/spawn")
    assert 'type="radio"' not in answer.text
    await until(lambda: ada.hub.is_ready(ada.user))


async def test_start_fresh_discards_and_leads_to_the_form(ada: Browser) -> None:
    await open_session(ada, "gpu-1")
    await act(ada, "suspend")
    await until_phase(ada, "suspended")
    answer = await act(ada, "fresh")
    form = await ada.get(answer.json()["url"])
    assert 'type="radio"' in form.text
    assert await rows(ada) == []


async def test_what_no_machine_can_bring_back_is_said_before_the_click(ada: Browser) -> None:
    await open_session(ada, "gpu-1", FITS_NOWHERE)
    await act(ada, "suspend", FITS_NOWHERE)
    row = await until_phase(ada, "suspended", FITS_NOWHERE)
    assert row["actions"] == ["fresh", "discard"] and not row["resume_now"]
    assert "it needs NVIDIA driver 580.65.06" in row["resume_when"]
    assert "has 590.10" in row["resume_when"] and "start fresh" in row["resume_when"]

    await until(lambda: ada.hub.is_stopped(ada.user, FITS_NOWHERE))
    answer = await act(ada, "resume", FITS_NOWHERE)
    assert answer.status_code == 400 and "NVIDIA driver 580.65.06" in answer.text
    row = await until_phase(ada, "suspended", FITS_NOWHERE)
    assert row["memory_bytes"] == 1000, "nothing is lost"


async def test_stop_keeps_no_memory(ada: Browser) -> None:
    await open_session(ada, "gpu-1")
    assert (await act(ada, "stop")).status_code == 200

    async def is_gone() -> bool:
        return not await rows(ada)

    await until(is_gone)


async def test_a_named_server_has_its_own_row_and_buttons(ada: Browser) -> None:
    await open_session(ada, "gpu-1")
    await open_session(ada, "gpu-1", "second")
    await act(ada, "suspend", "second")
    await until_phase(ada, "suspended", "second")
    phases = {row["server"]: row["phase"] for row in await rows(ada)}
    assert phases == {"": "running", "second": "suspended"}


async def test_cancel_on_the_pending_page_means_this_server(ada: Browser, bob: Browser) -> None:
    await open_session(bob, "gpu-2")
    page = await ada.post(f"/hub/spawn/{ada.user}/second", data={"profile": "gpu-2"})
    assert "hubernate-cancel" in page.text and 'var server = "second"' in page.text
    row = await until_phase(ada, "queued", "second")
    assert row["sentence"].startswith("Server “second” waits as number 1.")
    assert (await act(ada, "cancel", "second")).status_code == 200

    async def is_gone() -> bool:
        return not await rows(ada)

    await until(is_gone)
    await until(lambda: ada.hub.is_stopped(ada.user, "second"))


async def test_cancel_after_the_wait_was_over_gives_the_place_up(
    ada: Browser, bob: Browser
) -> None:
    await open_session(bob, "gpu-2")
    await ada.post("/hub/spawn", data={"profile": "gpu-2"})
    await until(lambda: ada.hub.is_stopped(ada.user))
    page = await ada.get(f"/hub/spawn-pending/{ada.user}")
    assert page.status_code == 503 and "your place is kept" in page.text
    assert (await act(ada, "cancel")).status_code == 200
    assert await rows(ada) == []


async def test_others_see_and_touch_nothing(ada: Browser, bob: Browser) -> None:
    await open_session(ada, "gpu-1")
    assert await rows(bob) == []
    assert (await act(bob, "suspend")).status_code == 409
    assert (await rows(ada))[0]["phase"] == "running"


async def test_a_page_elsewhere_cannot_press_buttons(ada: Browser) -> None:
    body = {"server": "", "action": "suspend"}
    path = "/hub/hubernate/sessions/action"
    assert (await ada.post(path, xsrf=False, json=body)).status_code == 403
    async with httpx.AsyncClient() as stranger:
        url = ada.hub.url + path
        assert (await stranger.post(url, json=body)).status_code == 403
        assert (await stranger.get(ada.hub.url + "/hub/hubernate/sessions")).status_code in (
            302,
            403,
        )


@pytest.mark.parametrize(
    ("body", "status", "named"),
    [
        ([], 400, "JSON object"),
        ({"action": "explode"}, 400, "suspend, resume"),
        ({"action": "suspend", "server": 3}, 400, "name of a server"),
        ({"action": "suspend", "server": "none"}, 404, "none"),
        ({"action": "discard"}, 409, "no session"),
        ({"action": "suspend"}, 409, "no session"),
    ],
)
async def test_wrong_requests_are_told_what_is_right(
    ada: Browser, body: Any, status: int, named: str
) -> None:
    answer = await ada.post("/hub/hubernate/sessions/action", json=body)
    assert answer.status_code == status
    assert named in answer.json()["message"]


async def test_a_token_needs_the_scope_for_what_it_does(hub: RunningHub, ada: Browser) -> None:

    async def token(*scopes: str) -> str:
        answer = await hub.api("POST", f"/users/{ada.user}/tokens", json={"scopes": list(scopes)})
        return str(answer.json()["token"])

    async def press(action: str, token: str) -> int:
        async with httpx.AsyncClient() as client:
            answer = await client.post(
                f"{hub.url}/hub/hubernate/sessions/action",
                json={"action": action},
                headers={"Authorization": f"token {token}"},
            )
        return answer.status_code

    reader = await token("read:servers!user")
    assert await press("suspend", reader) == 403
    assert await press("resume", reader) == 403
    assert await press("suspend", await token("delete:servers!user")) == 409
    assert await press("suspend", hub.token) == 403, "a service has no sessions of its own"


async def test_looking_is_no_activity(hub: RunningHub, ada: Browser) -> None:
    async def last() -> str:
        return str((await hub.api("GET", f"/users/{ada.user}")).json()["last_activity"])

    before = await last()
    await rows(ada)
    assert await last() == before
    await ada.get("/hub/home")
    assert await last() != before, "a person who opens a page is active"


async def test_nothing_is_loaded_from_elsewhere_and_every_page_has_the_banner(ada: Browser) -> None:
    for path in ("/hub/home", "/hub/spawn", "/hub/token"):
        page = (await ada.get(path)).text
        loaded = re.findall(r'<(?:script|link|img)[^>]*(?:src|href)="([^"]*)"', page)
        assert loaded and not [url for url in loaded if not url.startswith("/hub/")]
        assert 'id="hubernate-pauses"' in page and 'role="alert"' in page
