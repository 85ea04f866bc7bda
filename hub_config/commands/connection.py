"""Who runs the command, and how the scheduler is reached for them.

Root on the Hub's machine acts as administrator, with the token in the state folder. Anybody else
acts as the user whose token they hold: a session has it in its environment.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import urlsplit

from hub_config.commands.errors import CommandError
from hub_config.paths import StateFolder, state_folder
from hub_config.settings import DEFAULT_PORT, HOST, SERVICE_NAME
from scheduler_bridge.plugin import SchedulerPlugin

URL_VARIABLE: Final = "HUBERNATE_URL"
TOKEN_VARIABLES: Final = ("HUBERNATE_TOKEN", "JUPYTERHUB_API_TOKEN")
USER_VARIABLE: Final = "JUPYTERHUB_USER"
RUN_VARIABLE: Final = "HUBERNATE_RUN"
DEFAULT_RUN: Final = "/run/hubernate"
IDENTITY_FILE: Final = "identity.json"
"""See `spawner.supervisor.inside`, which is too much to import for one name."""

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Access:
    """How the scheduler is reached. `state` is set for the administrator of this machine only;
    `user` is the account that the token belongs to, empty where that is not known."""

    url: str
    token: str
    actor: str
    user: str = ""
    state: StateFolder | None = None

    @property
    def is_admin(self) -> bool:
        """Whether it acts for everybody on this machine."""
        return self.state is not None


def find_access() -> Access:
    """From the environment, else from the state folder. Raises `CommandError` with the remedy."""
    url = os.environ.get(URL_VARIABLE, "")
    if url:
        return _by_environment(url)
    if os.geteuid() == 0:
        return _by_state_folder(state_folder())
    raise CommandError(
        "this is neither a session nor the administrator of the Hub's machine.",
        remedy=f"Set {URL_VARIABLE} and {TOKEN_VARIABLES[0]}, or run it as root where the Hub runs.",
    )


def ask(question: Callable[[SchedulerPlugin, Access], Awaitable[Answer]]) -> Answer:
    """Run one conversation with the scheduler."""
    from scheduler_bridge.client import SchedulerClient  # only commands that ask pay for it

    access = find_access()

    async def conversation() -> Answer:
        scheduler = SchedulerClient(access.url, access.token)
        try:
            return await question(scheduler, access)
        finally:
            await scheduler.aclose()

    return asyncio.run(conversation())


def need_admin(what: str) -> tuple[Access, StateFolder]:
    """Access of the administrator. Raises `CommandError` for anybody else."""
    access = find_access()
    if access.state is None:
        raise CommandError(
            f"{what} is for the administrator.",
            remedy=f"Run it as root where the Hub runs, with {URL_VARIABLE} not set.",
        )
    return access, access.state


def _by_environment(url: str) -> Access:
    given, of_session = (os.environ.get(name, "") for name in TOKEN_VARIABLES)
    token = given or _newest_token() or of_session
    if not token:
        raise CommandError(
            f"{URL_VARIABLE} is set, but no token.",
            remedy=f"Set {TOKEN_VARIABLES[0]} to a token from the Hub's page for tokens.",
        )
    user = os.environ.get(USER_VARIABLE, "")
    return Access(_service_url(url), token, actor=user or "user", user=user)


def _newest_token() -> str:
    """The session's own token after a resume, which the variables of programs that were frozen do
    not have; empty outside a session and in one that was never resumed."""
    file = Path(os.environ.get(RUN_VARIABLE, DEFAULT_RUN)) / IDENTITY_FILE
    try:
        return str(json.loads(file.read_bytes())["environment"][TOKEN_VARIABLES[1]])
    except (OSError, ValueError, LookupError, TypeError):
        return ""


def _service_url(url: str) -> str:
    """The scheduler's address; where only the Hub's is given, below it."""
    parts = urlsplit(url)
    if not parts.scheme or not parts.netloc:
        raise CommandError(
            f"{URL_VARIABLE} is {url}, which is no address.",
            remedy=f"It looks like http://HOST:PORT/services/{SERVICE_NAME}.",
        )
    below = "" if parts.path.strip("/") else f"/services/{SERVICE_NAME}"
    return url.rstrip("/") + below


def _by_state_folder(state: StateFolder) -> Access:
    return Access(
        url=f"http://{HOST}:{public_port(state) + 3}/services/{SERVICE_NAME}",
        token=_admin_token(state),
        actor=os.environ.get("SUDO_USER") or "root",
        state=state,
    )


def public_port(state: StateFolder) -> int:
    """Where the Hub's proxy listens on this machine. Raises `CommandError`."""
    try:
        return int(json.loads(state.ports_file.read_text())["public"])
    except FileNotFoundError:
        return DEFAULT_PORT
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CommandError(
            f"{state.ports_file} cannot be read: {error}.", remedy="Run `hubernate up` again."
        ) from error


def _admin_token(state: StateFolder) -> str:
    path = state.secrets / "service-tokens.json"
    try:
        return str(json.loads(path.read_text())["admin"])
    except FileNotFoundError as error:
        raise CommandError(
            f"nothing is set up in {state.root}.",
            remedy="Run `hubernate up` first, or name the right folder in HUBERNATE_STATE.",
        ) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CommandError(
            f"{path} holds no token for the administrator.", remedy="Run `hubernate up` again."
        ) from error
