"""The scheduler as a program: configuration, start, graceful end."""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import uvicorn
from sqlalchemy import make_url
from sqlalchemy.exc import SQLAlchemyError
from traitlets import Bool, Dict, Enum, Float, Integer, List, Unicode, validate
from traitlets.config import Application, catch_config_error

from scheduler_bridge.agent.facts import read_facts
from scheduler_bridge.agent.inventory import (
    MAX_VIRTUAL_GPUS,
    ensure_device_files,
    virtual_node,
)
from scheduler_bridge.agent.nvml import nvml_node
from scheduler_bridge.api.auth import Authenticator, BadTokenFile, HubUsers, read_tokens
from scheduler_bridge.api.rates import Rate, Rates
from scheduler_bridge.api.service import HUB_PREFIX, create_service
from scheduler_bridge.clusters.local import LocalCluster, LocalSettings
from scheduler_bridge.engine.books import Books
from scheduler_bridge.engine.hub_gateway import HubGateway
from scheduler_bridge.engine.runner import Runner
from scheduler_bridge.engine.scheduler import Scheduler
from scheduler_bridge.engine.settings import Settings, SystemClock
from scheduler_bridge.engine.steward import Steward
from scheduler_bridge.estimate_metrics import EstimateCollector
from scheduler_bridge.logs import configure_logging
from scheduler_bridge.metrics import Metrics
from scheduler_bridge.model.usage import HOURS_PER_DAY
from scheduler_bridge.model.workload import Node
from scheduler_bridge.policy.usage_window import UsageWindow
from scheduler_bridge.policy.values import Rules
from scheduler_bridge.policy.visibility import Visibility
from scheduler_bridge.store.base import StoreError
from scheduler_bridge.store.opening import WriterLock, open_database

_log = logging.getLogger(__name__)

GRACE_SECONDS = 3
"""How long requests may take to end after SIGTERM."""


class SchedulerService(Application):
    """Traits of `python -m scheduler_bridge`. Times are seconds."""

    name = "scheduler_bridge"
    description = "The scheduler of Hubernate: who runs where, and who waits."
    raise_config_file_errors = True

    config_file = Unicode(
        "",
        help="A traitlets configuration file (.py or .json). Of two beside each other with the same "
        "name both are read, and the .json wins.",
    ).tag(config=True)
    bind_address = Unicode(
        "127.0.0.1",
        help="Address to serve on. Only the Hub's proxy and supervisors have to reach it.",
    ).tag(config=True)
    port = Integer(8003, min=0, max=65535, help="Port to serve on; 0 takes a free one.").tag(
        config=True
    )
    port_file = Unicode(
        "", help="File that gets the port in use once the service answers; for port 0."
    ).tag(config=True)
    prefix = Unicode(
        HUB_PREFIX, help="Path under which the Hub's proxy passes requests on, unchanged."
    ).tag(config=True)
    database_url = Unicode(
        "sqlite:///scheduler.sqlite",
        help="The state: sqlite:///FILE, or postgresql://USER@HOST/DATABASE (14 or newer, a database "
        "of its own, connected to directly or by a pooler in session mode). It holds no password.",
    ).tag(config=True)
    database_password_file = Unicode(
        "",
        help="File whose first line is PostgreSQL's password; read again at each connection. Empty: "
        "PGPASSWORD in the environment, ~/.pgpass, or none.",
    ).tag(config=True)
    lock_file = Unicode(
        "", help="Lock of the one writer. Default: beside the SQLite file, with .lock added."
    ).tag(config=True)
    service_tokens_file = Unicode(
        "", help="JSON object {name: token}, mode 0600; names that count: hub, reclaimer, admin."
    ).tag(config=True)
    hub_api_url = Unicode(
        "", help="The Hub's API, such as http://127.0.0.1:8002/hub/api. Empty: no Hub users."
    ).tag(config=True)
    hub_token_file = Unicode(
        "", help="File with our token at the Hub. Empty: servers are not started from here."
    ).tag(config=True)
    node_name = Unicode("", help="This machine's name. Default: its host name.").tag(config=True)
    virtual_gpus = Integer(
        -1,
        min=-1,
        max=MAX_VIRTUAL_GPUS,
        help="Number of virtual GPUs; they compute nothing. -1: those that the driver knows.",
    ).tag(config=True)
    virtual_gpu_folder = Unicode("", help="Folder of the virtual GPUs' files.").tag(config=True)
    facts_command = List(
        Unicode(),
        help="Argument vector of a program that prints what this machine is, in the words of "
        "snapshots, as one JSON object; {python} is replaced. Asked at the start and every "
        "`facts_seconds`. Empty: a session may be placed where it is then refused.",
    ).tag(config=True)
    facts_seconds = Float(
        300.0,
        min=0.1,
        help="How often `facts_command` is run again. Less often: a driver or CRIU that was replaced "
        "is known later, and a resume that it allows is refused until then.",
    ).tag(config=True)
    job_command = List(
        Unicode(),
        help="Argument vector that starts a job's supervisor; {python} and {request} are replaced.",
    ).tag(config=True)
    job_request_folder = Unicode(
        "", help="Private folder for what that program reads. It holds credentials."
    ).tag(config=True)
    run_folder = Unicode(
        "", help="Folder with one folder per supervisor, where last words are looked for."
    ).tag(config=True)
    team_gpu_limits = Dict(
        per_key_traits={},
        value_trait=Integer(min=0),
        key_trait=Unicode(),
        help="GPUs that a team may hold at once, by team.",
    ).tag(config=True)
    default_team_gpu_limit = Integer(
        -1, min=-1, help="The same for every team not named. -1: no limit."
    ).tag(config=True)
    lease_seconds = Float(
        600.0,
        min=10.0,
        help="A supervisor that cannot renew for this long freezes its own processes. Lower: dead "
        "machines are noticed earlier; higher: longer outages of this service do no harm.",
    ).tag(config=True)
    node_silent_seconds = Float(
        60.0,
        min=5.0,
        help="A machine that has not answered for this long gets no new work; its leases are kept. "
        "Also how long a session's supervisor must be silent before it may be stopped by force.",
    ).tag(config=True)
    hold_seconds = Float(
        600.0, min=10.0, help="How long a session's place is held for a Hub to take it up."
    ).tag(config=True)
    queue_visibility = Enum(
        [rule.value for rule in Visibility],
        Visibility.COUNTS.value,
        help="What users see of others' work that waits or holds GPUs: `counts` only how much there "
        "is, `team` names inside their own teams, `names` all names. Never commands, folders or what "
        "others were told. Administrators see all.",
    ).tag(config=True)
    user_requests_per_second = Float(
        20.0,
        min=0.0,
        help="Requests that one user may make for good, over all of their tokens; 0: no limit. "
        "Lower: one user's program disturbs others less; too low and `hubernate` itself is refused "
        "(429). Services and supervisors are not counted.",
    ).tag(config=True)
    user_requests_at_once = Integer(
        200, min=1, help="How many more a user may make at once after a rest."
    ).tag(config=True)
    usage_lookback_days = Integer(
        30,
        min=1,
        max=366,
        help="How many days back GPU time counts in a team's balance (owed less delivered), which "
        "decides whose work goes first. Lower: the past is over sooner.",
    ).tag(config=True)
    usage_half_life_days = Float(
        7.0,
        min=0.0,
        help="After how many days GPU time counts half in the balance; 0: all counts the same.",
    ).tag(config=True)
    forgiveness_days = Integer(
        14,
        min=-1,
        help="What a team had above its due more than so many days ago is forgiven. -1: never "
        "before `usage_lookback_days`.",
    ).tag(config=True)
    json_logs = Bool(True, help="One JSON object per line; False: lines for people.").tag(
        config=True
    )

    _lost = ""
    _end: Callable[[], None] = staticmethod(lambda: None)

    aliases = {"config": "SchedulerService.config_file", "port": "SchedulerService.port"}  # noqa: RUF012 (traitlets)

    @validate("prefix")
    def _valid_prefix(self, proposal: Any) -> str:
        prefix = str(proposal["value"]).rstrip("/")
        if prefix and not prefix.startswith("/"):
            raise ValueError(f"prefix must begin with a slash: {prefix!r}")
        return prefix

    @catch_config_error
    def initialize(self, argv: list[str] | None = None) -> None:
        """Flags win over the file. Raises `SystemExit` for a file that cannot be used as it is:
        a scheduler with half of its configuration must not start."""
        self.parse_command_line(argv)
        if self.config_file:
            self._load(Path(self.config_file).resolve())
            self.parse_command_line(argv)
        self._refuse_unknown()
        configure_logging(as_json=self.json_logs, level=cast("int | str", self.log_level))

    def _load(self, path: Path) -> None:
        if not path.is_file():
            raise SystemExit(f"There is no configuration file {path}.")
        try:
            self.load_config_file(path.name, path=str(path.parent))
        except (ValueError, SyntaxError, NameError) as error:
            raise SystemExit(f"The configuration {path} cannot be read: {error}") from error

    def _refuse_unknown(self) -> None:
        known = self.traits(config=True)
        for name in self.config.get(type(self).__name__, {}):
            if name not in known:
                near = difflib.get_close_matches(name, known, 1)
                hint = f" Did you mean {near[0]}?" if near else ""
                raise SystemExit(f"SchedulerService.{name} is not a setting.{hint}")

    def start(self) -> None:
        """Serve until SIGTERM or SIGINT. Raises `SystemExit` with a sentence if it cannot."""
        os.umask(0o077)
        try:
            with self._state() as (books, tokens):
                asyncio.run(self._serve(books, tokens))
        except (StoreError, BadTokenFile, SQLAlchemyError, OSError) as error:
            raise SystemExit(str(error)) from error
        if self._lost:
            raise SystemExit(self._lost)

    @contextlib.contextmanager
    def _state(self) -> Iterator[tuple[Books, dict[str, str]]]:
        tokens = read_tokens(Path(self.service_tokens_file)) if self.service_tokens_file else {}
        lock = self._lock()
        try:
            store = open_database(
                self.database_url,
                password_file=self.database_password_file,
                on_lost=self._give_up,
            )
            try:
                yield Books(store, SystemClock(), (self._node(),)), tokens
            finally:
                store.close()
        finally:
            if lock is not None:
                lock.release()

    def _give_up(self, words: str) -> None:
        """The state belongs to another scheduler now, or moved on: end, and be started again."""
        _log.error("%s", words)
        self._lost = words
        self._end()

    def _lock(self) -> WriterLock | None:
        database = make_url(self.database_url)
        path = self.lock_file
        if not path and database.get_backend_name() == "sqlite" and database.database:
            path = database.database + ".lock"
        if not path:
            return None
        Path(path).parent.mkdir(exist_ok=True, mode=0o700)
        return WriterLock(Path(path).resolve())

    def _node(self) -> Node:
        if self.virtual_gpus < 0:
            node, problems = nvml_node(name=self.node_name)
            for problem in problems:
                _log.warning("%s", problem)
            return node
        folder = Path(self.virtual_gpu_folder or "vgpu").resolve()
        node = virtual_node(self.virtual_gpus, folder, name=self.node_name)
        ensure_device_files(node.gpus)
        return node

    def _settings(self) -> Settings:
        limit = self.default_team_gpu_limit
        return Settings(
            lease_seconds=self.lease_seconds,
            lease_margin=max(5.0, self.lease_seconds / 10),
            hold_seconds=self.hold_seconds,
            silent_seconds=self.node_silent_seconds,
            queue_visibility=Visibility(self.queue_visibility),
            rules=Rules(dict(self.team_gpu_limits), None if limit < 0 else limit),
            usage_window=UsageWindow(
                self.usage_lookback_days * HOURS_PER_DAY,
                self.usage_half_life_days * HOURS_PER_DAY or None,
                None if self.forgiveness_days < 0 else self.forgiveness_days * HOURS_PER_DAY,
            ),
        )

    async def _serve(self, books: Books, tokens: dict[str, str]) -> None:
        scheduler = Scheduler(books, self._settings())
        cluster = LocalCluster(
            LocalSettings(
                tuple(self.job_command),
                self.job_request_folder,
                self.run_folder,
                node=books.inventory[0].name,
            )
        )
        await self._learn(scheduler)
        gateway = self._gateway(scheduler)
        metrics = Metrics(books, scheduler.ledger)
        metrics.add(EstimateCollector(scheduler.estimates))
        runner = Runner(
            scheduler,
            steward=Steward(scheduler, cluster),
            gateway=gateway,
            observe=metrics.cycles.observe,
            refresh=lambda: self._learn(scheduler),
            refresh_seconds=self.facts_seconds,
        )
        users = HubUsers(self.hub_api_url)
        app = create_service(
            scheduler,
            Authenticator(tokens, users),
            prefix=self.prefix,
            not_ready=lambda: _not_ready(books, runner),
            metrics=metrics.text,
            rates=Rates(
                Rate(self.user_requests_per_second, self.user_requests_at_once), time.monotonic
            ),
        )
        listener = self._listen()
        runner.start()
        try:
            server = _Server(_uvicorn_config(app))
            self._end = server.end_on_signals(scheduler)
            if self._lost:
                self._end()
            self._announce(listener, books)
            await server.serve(sockets=[listener])
        finally:
            await runner.stop()
            scheduler.close()
            await users.aclose()
            if gateway is not None:
                await gateway.aclose()

    async def _learn(self, scheduler: Scheduler) -> None:
        """Take over what this machine is, if it can be told."""
        argv = [part.replace("{python}", sys.executable) for part in self.facts_command]
        facts = await read_facts(argv)
        if facts is not None:
            scheduler.learn(scheduler.books.nodes[0].name, facts)

    def _gateway(self, scheduler: Scheduler) -> HubGateway | None:
        if not (self.hub_api_url and self.hub_token_file):
            return None
        try:
            token = Path(self.hub_token_file).read_text().strip()
        except OSError as error:
            raise BadTokenFile(f"The token for the Hub cannot be read: {error}") from error
        return HubGateway(scheduler, self.hub_api_url, token)

    def _listen(self) -> socket.socket:
        family = socket.AF_INET6 if ":" in self.bind_address else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((self.bind_address, self.port))
            listener.listen(1024)
        except OSError as error:
            listener.close()
            raise SystemExit(
                f"Cannot serve on {self.bind_address}:{self.port}: {error.strerror}. "
                "End what listens there, or choose another port."
            ) from error
        return listener

    def _announce(self, listener: socket.socket, books: Books) -> None:
        port = listener.getsockname()[1]
        if self.port_file:
            temporary = Path(self.port_file + ".new")
            temporary.write_text(f"{port}\n")
            temporary.replace(self.port_file)
        gpus = [gpu for node in books.nodes for gpu in node.gpus]
        _log.info(
            "serving on %s:%d, %d GPUs (%d virtual), %d live workloads",
            self.bind_address,
            port,
            len(gpus),
            sum(gpu.virtual for gpu in gpus),
            len(books.workloads),
        )


class _Server(uvicorn.Server):
    """Ends at once when asked: long polls and streams are woken first."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to `end_on_signals`: the original raises them again at its end, which would
        skip everything that is to be closed after it."""
        yield

    def end_on_signals(self, scheduler: Scheduler) -> Callable[[], None]:
        """SIGTERM and SIGINT end it gracefully, and so does calling what is returned."""

        def end() -> None:
            self.should_exit = True
            scheduler.books.bells.close()

        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, end)
        return end


def _uvicorn_config(app: Any) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        timeout_graceful_shutdown=GRACE_SECONDS,
        server_header=False,
    )


def _not_ready(books: Books, runner: Runner) -> str:
    try:
        books.store.last_event_id()
    except StoreError as error:
        _log.warning("not ready: %s", error)
        return "the database does not answer; the log says more"
    dead = runner.dead_task()
    return f"the task {dead} has ended" if dead else runner.failing


def main() -> None:
    """Entry point of `python -m scheduler_bridge`."""
    SchedulerService.launch_instance()
