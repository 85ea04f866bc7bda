"""Moves that several end-to-end tests make."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from hub_config.demo.browserless import Researcher
from hub_config.demo.stage import Stage
from spawner.supervisor.status import read_status

SECRET_CELL = "import secrets; word = secrets.token_hex(8); print(word)"


async def until(
    claim: Callable[[], Awaitable[Any]], *, timeout: float, what: str, every: float = 0.1
) -> Any:
    """Ask again until the claim is true; its value. Fails naming `what` was waited for."""
    last: Any = None
    try:
        async with asyncio.timeout(timeout):
            while True:
                last = await claim()
                if last:
                    return last
                await asyncio.sleep(every)
    except TimeoutError:
        raise AssertionError(f"{what}: not within {timeout} s; last seen {last!r}") from None


async def shown(user: Researcher, server: str = "") -> dict[str, Any]:
    """The session as the user's home page shows it."""
    for session in await user.sessions():
        if session["server"] == server:
            return session
    return {}


async def until_shown(
    user: Researcher, phase: str, *, server: str = "", timeout: float = 40
) -> dict[str, Any]:
    """Wait until the home page shows the session in a phase."""

    async def claim() -> dict[str, Any] | None:
        session = await shown(user, server)
        return session if session.get("phase") == phase else None

    found: dict[str, Any] = await until(claim, timeout=timeout, what=f"{user.name} is {phase}")
    return found


async def open_with_a_secret(
    user: Researcher, profile: str = "gpu-1", *, server: str = ""
) -> tuple[str, str]:
    """Open a server and draw a random word in a kernel; returns kernel id and word."""
    await user.open({"profile": profile}, server=server)
    kernel_id = await user.new_kernel(server)
    async with user.kernel(kernel_id, server) as kernel:
        return kernel_id, await kernel.run(SECRET_CELL)


async def read_secret(user: Researcher, kernel_id: str, *, server: str = "") -> str:
    """The random word, asked of the same kernel."""
    async with user.kernel(kernel_id, server) as kernel:
        return await kernel.run("print(word)", timeout=30)


async def suspend(user: Researcher, *, server: str = "", timeout: float = 40) -> None:
    """Suspend by hand and wait until Hub and page agree."""
    await user.act("suspend", server)
    await until_shown(user, "suspended", server=server, timeout=timeout)
    await user.until_stopped(server)


async def resume(user: Researcher, *, server: str = "", timeout: float = 60) -> None:
    """Press Resume and wait until the server answers."""
    await user.act("resume", server)
    await user.until_ready(server, timeout=timeout)


async def end(user: Researcher, *, server: str = "") -> None:
    """End a session for good, from whatever state it is in."""
    session = await shown(user, server)
    if not session:
        return
    if session["phase"] == "suspended":
        await user.act("discard", server)
    else:
        await user.act("stop", server)
        await user.until_stopped(server)

    async def gone() -> bool:
        return not await shown(user, server)

    await until(gone, timeout=60, what=f"{user.name}'s session is ended")


async def workload(stage: Stage, user: str, *, server: str = "") -> dict[str, Any]:
    """The user's live session at the scheduler. Raises LookupError when there is none."""
    found = await stage.hubernate_json("sessions", "list", "--json")
    for each in found:
        if each["spec"]["user"] == user and each["spec"]["server"] == server:
            return dict(each)
    raise LookupError(f"the scheduler knows no session of {user}/{server}")


def host_port(stage: Stage, workload_id: str) -> int:
    """Where a session answers on the host's loopback address."""
    status = read_status(stage.state / "run" / workload_id)
    assert status is not None
    return status.host_port
