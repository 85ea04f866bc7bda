"""What every session spawner is configured with, and the parts it works with."""

from __future__ import annotations

from typing import Any

from traitlets import Float, Integer, TraitError, Unicode
from traitlets import List as ListTrait
from traitlets.config import LoggingConfigurable

from scheduler_bridge.plugin import SchedulerPlugin
from spawner.hosting import Seen, SessionHost
from spawner.names import session_key
from spawner.profiles_model import DEFAULT_PROFILES, check_profiles
from spawner.schedulers import scheduler_named
from spawner.state import SavedState

QUEUE_MARGIN_SECONDS = 15.0


class SessionTraits(LoggingConfigurable):
    """Traits with what an operator needs to know of each, checked against one another at start."""

    scheduler_plugin = Unicode(
        "http",
        help="""Which scheduler plugin to use: a name in the entry-point group
        `hubernate.schedulers`. `http` speaks to the service at `scheduler_url`.""",
    ).tag(config=True)
    scheduler_url = Unicode(
        help="""Where the scheduler answers, e.g. http://127.0.0.1:8003/services/hubernate. While
        it does not, running sessions go on and can be suspended; new ones are refused (503).""",
    ).tag(config=True)
    scheduler_token_file = Unicode(
        help="""File with the Hub's token for the scheduler and nothing else. Must be readable by
        the Hub only. A wrong token shows as "not allowed" at every start.""",
    ).tag(config=True)
    state_secret_file = Unicode(
        help="""File with a secret of 32 bytes or more, which encrypts the sessions' API tokens in
        the Hub's database. If it is lost, sessions that were suspended before resume with a token
        that the Hub finds again only on the machine where they ran.""",
    ).tag(config=True)
    hub_name = Unicode(
        "local",
        help="""Names this Hub at the scheduler. Part of every session's key: changing it hides all
        suspended sessions from the Hub until it is changed back.""",
    ).tag(config=True)
    queue_wait = Float(
        45.0,
        help="""Seconds a start waits in the queue before the user is told the place and sent away;
        the place is kept and the session is started when it is its turn. Must be below
        `start_timeout` by 15 s or more. Higher: fewer people see that message, but each waiting
        start counts against `JupyterHub.concurrent_spawn_limit`.""",
    ).tag(config=True)
    suspend_wait = Float(
        1800.0,
        help="""Seconds that stopping a server waits for the suspend to be stored. After that the
        server counts as stopped in the Hub, but the session lives on and is found again when it is
        opened. Lower only where sessions are small.""",
    ).tag(config=True)
    stop_wait = Float(
        60.0,
        help="""Seconds to wait for a session that is ended without keeping its memory.""",
    ).tag(config=True)
    start_timeout = Integer(
        180,
        help="""Seconds until the Hub gives up on a start. Includes `queue_wait`, fetching and
        restoring the memory of a suspended session, and the server's own start.""",
    ).tag(config=True)
    profiles = ListTrait(
        list(DEFAULT_PROFILES),
        help="""The sizes users may choose from: a list of `spawner.profiles_model.Profile`. The
        first is taken where nothing was chosen. More GPUs than a machine has are refused.""",
    ).tag(config=True)

    user: Any
    name: str
    orm_spawner: Any
    api_token: str
    user_options: dict[str, Any]
    pending: str | None
    cmd: list[str]
    server: Any
    get_args: Any
    get_env: Any

    def __init__(self, **kwargs: Any) -> None:
        self._saved = SavedState()
        self._host: SessionHost | None = None
        super().__init__(**kwargs)
        check_profiles(tuple(self.profiles))
        if self.queue_wait > self.start_timeout - QUEUE_MARGIN_SECONDS:
            raise TraitError(
                f"queue_wait is {self.queue_wait:.0f} s and start_timeout {self.start_timeout} s: "
                f"set queue_wait at least {QUEUE_MARGIN_SECONDS:.0f} s below start_timeout, or "
                "every wait in the queue counts as a failure of the Hub."
            )

    def make_host(self) -> SessionHost:
        """Where this class starts supervisors. Called once per spawner, when first needed."""
        raise NotImplementedError

    @property
    def host(self) -> SessionHost:
        if self._host is None:
            self._host = self.make_host()
        return self._host

    @property
    def plugin(self) -> SchedulerPlugin:
        return scheduler_named(self.scheduler_plugin, self.scheduler_url, self.scheduler_token_file)

    @property
    def key(self) -> str:
        """This server at the scheduler."""
        return session_key(self.hub_name, self.user.name, self.name)

    @property
    def workload_id(self) -> str:
        """The session this server had last, empty if none."""
        return self._saved.workload_id

    def look(self) -> Seen:
        """This machine's view of the session. Never raises."""
        return self.host.observe(self._saved.workload_id) if self._saved.workload_id else Seen()
