"""`jupyterhub_config.py` of one machine: assignments only.

The file that `hubernate up` writes is two lines: read the settings, call `configure(c, settings)`.
An operator may add lines after that call; they win.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from hub_config.paths import StateFolder
from hub_config.profiles import PROFILES_FILE, load_profiles
from hub_config.roles import (
    RECLAIMER_NAME,
    SERVER_TOKEN_SCOPES,
    USER_SCOPES,
    service_roles,
    services,
)
from hub_config.secrets_store import SecretFiles
from hub_config.settings import HOST, SERVICE_NAME, LocalSettings
from hub_config.welcome import place_welcome
from spawner.identity import IdentityBook, NameRefusedError
from spawner.pages import HANDLERS
from spawner.pages_fork import FORK_HANDLERS

TEMPLATES: Final = Path(__file__).parent / "templates"
HUB_AT_SCHEDULER: Final = "hub"
SCHEDULER_AT_HUB: Final = "scheduler"
CONCURRENT_STARTS: Final = 200


def welcome_hook(folder: StateFolder, demo_users: frozenset[str]) -> Callable[[Any], None]:
    """For `pre_spawn_hook`: a demo user's new home gets the notebook that shows what happens."""
    book = IdentityBook(folder.users_file, homes=folder.homes)

    def place(spawner: Any) -> None:
        if spawner.user.name not in demo_users:
            return
        try:
            account = book.account(spawner.user.name)
            if account.is_managed:
                place_welcome(Path(account.host_home), account.identity.uid, account.identity.gid)
        except (OSError, NameRefusedError) as problem:
            spawner.log.warning("no welcome notebook for %s: %s", spawner.user.name, problem)

    return place


def configure(c: Any, settings: LocalSettings) -> None:
    """Set everything that a Hub on this machine needs. `c` is the Hub's configuration object."""
    folder = settings.folder()
    secrets = SecretFiles(folder.secrets)
    _hub(c, settings, folder, secrets)
    _proxy(c, settings, folder, secrets)
    _users(c, settings, secrets)
    _pages(c)
    _services(c, settings, secrets)
    _spawner(c, settings, folder, secrets)


def _hub(c: Any, settings: LocalSettings, folder: StateFolder, secrets: SecretFiles) -> None:
    c.JupyterHub.bind_url = settings.public_url
    c.JupyterHub.hub_bind_url = f"http://{HOST}:{settings.ports.hub_api}"
    c.JupyterHub.hub_connect_ip = HOST
    c.JupyterHub.db_url = f"sqlite:///{folder.hub / 'hub.sqlite'}"
    c.JupyterHub.cookie_secret_file = str(secrets.cookie_secret())
    c.JupyterHub.pid_file = str(folder.hub / "hub.pid")
    # a Hub that goes down takes no session with it
    c.JupyterHub.cleanup_servers = False
    c.JupyterHub.allow_named_servers = True
    c.JupyterHub.named_server_limit_per_user = 10
    # a start that waits in the queue counts as pending: leave room for many
    c.JupyterHub.concurrent_spawn_limit = CONCURRENT_STARTS
    c.JupyterHub.active_server_limit = 0


def _proxy(c: Any, settings: LocalSettings, folder: StateFolder, secrets: SecretFiles) -> None:
    c.ConfigurableHTTPProxy.command = list(folder.proxy_command())
    c.ConfigurableHTTPProxy.api_url = f"http://{HOST}:{settings.ports.proxy_api}"
    c.ConfigurableHTTPProxy.auth_token = secrets.proxy_token()
    c.ConfigurableHTTPProxy.pid_file = str(folder.hub / "proxy.pid")
    c.ConfigurableHTTPProxy.should_start = True


def _users(c: Any, settings: LocalSettings, secrets: SecretFiles) -> None:
    c.JupyterHub.authenticator_class = "shared-password"
    c.SharedPasswordAuthenticator.user_password = secrets.demo_password()
    c.SharedPasswordAuthenticator.admin_password = secrets.admin_password()
    c.SharedPasswordAuthenticator.allowed_users = set(settings.users) | set(settings.admins)
    c.SharedPasswordAuthenticator.admin_users = set(settings.admins)


def _pages(c: Any) -> None:
    c.JupyterHub.template_paths = [str(TEMPLATES)]
    c.JupyterHub.extra_handlers = [*HANDLERS, *FORK_HANDLERS]


def _services(c: Any, settings: LocalSettings, secrets: SecretFiles) -> None:
    c.JupyterHub.services = services(
        urls={SERVICE_NAME: f"http://{HOST}:{settings.ports.scheduler}"},
        tokens={
            SERVICE_NAME: secrets.service_token(SCHEDULER_AT_HUB),
            RECLAIMER_NAME: secrets.service_token(RECLAIMER_NAME),
        },
    )
    c.JupyterHub.load_roles = service_roles()
    c.JupyterHub.extra_user_scopes = set(USER_SCOPES)


def _spawner(c: Any, settings: LocalSettings, folder: StateFolder, secrets: SecretFiles) -> None:
    secrets.crypt_key()
    c.JupyterHub.spawner_class = "hubernate-local"
    c.LocalSpawner.site_file = str(folder.site_file)
    c.LocalSpawner.scheduler_url = settings.scheduler_url
    c.LocalSpawner.scheduler_token_file = str(secrets.service_token_file(HUB_AT_SCHEDULER))
    c.LocalSpawner.state_secret_file = str(secrets.folder / "crypt-key")
    c.LocalSpawner.profiles = list(
        load_profiles(folder.config / PROFILES_FILE, largest_machine=settings.virtual_gpus or None)
    )
    c.LocalSpawner.pre_spawn_hook = welcome_hook(folder, frozenset(settings.users))
    c.LocalSpawner.server_token_scopes = list(SERVER_TOKEN_SCOPES)
    c.LocalSpawner.hub_connect_url = f"http://{HOST}:{settings.ports.hub_api}"
