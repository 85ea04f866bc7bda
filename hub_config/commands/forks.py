"""A fork needs a server at the Hub, so the Hub is asked for it, not the scheduler."""

from __future__ import annotations

import json
from typing import Final

import httpx

from hub_config.commands.connection import TOKEN_VARIABLES, Access, public_port
from hub_config.commands.errors import CommandError
from hub_config.settings import HOST, SERVICE_NAME
from scheduler_bridge.model.workload import Workload

FORK_SECONDS: Final = 660.0
"""Copying a session's /tmp may take that long."""

_SCHEDULER: Final = "scheduler"


async def ask_hub_to_fork(access: Access, source: Workload, name: str) -> str:
    """Have the Hub fork a suspended session; the new one's id. Raises `CommandError`."""
    url = f"{_hub_url(access)}/hub/hubernate/sessions/fork"
    body = {"user": source.spec.user, "server": source.spec.server, "name": name}
    headers = {"Authorization": f"token {_token(access)}"}
    try:
        async with httpx.AsyncClient(trust_env=False, timeout=FORK_SECONDS) as client:
            answer = await client.post(url, json=body, headers=headers)
    except httpx.HTTPError as error:
        why = str(error) or type(error).__name__
        raise CommandError(f"the Hub does not answer ({why}).") from error
    if answer.status_code == 403:
        raise CommandError(
            f"you may not fork this session: {_message(answer)}",
            remedy="Use the Hub's page, or set "
            f"{TOKEN_VARIABLES[0]} to a token from the Hub's page for tokens.",
        )
    if not answer.is_success:
        raise CommandError(f"it was not forked: {_message(answer)}")
    return str(answer.json()["workload_id"])


def _hub_url(access: Access) -> str:
    """The public address of the Hub."""
    if access.state is None:
        return access.url.removesuffix(f"/services/{SERVICE_NAME}")
    return f"http://{HOST}:{public_port(access.state)}"


def _token(access: Access) -> str:
    """The administrator acts with what the scheduler has at the Hub: it may start servers."""
    if access.state is None:
        return access.token
    path = access.state.secrets / "service-tokens.json"
    try:
        return str(json.loads(path.read_text())[_SCHEDULER])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CommandError(
            f"{path} holds no token for the Hub.", remedy="Run `hubernate up` again."
        ) from error


def _message(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["message"])[:300]
    except (ValueError, LookupError, TypeError):
        return f"the Hub answered {answer.status_code}."
