"""Program `python -m reclaimer`: looks at all sessions every few seconds."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Final, Protocol

from traitlets import Float, Unicode, default
from traitlets.config import Application

from reclaimer.actions import Reclaimer
from reclaimer.policy_file import PolicyFile
from scheduler_bridge.errors import SchedulerError
from scheduler_bridge.plugin import SchedulerPlugin

TOKEN_VARIABLE: Final = "HUBERNATE_TOKEN"  # noqa: S105 - the name of a variable
SCHEDULERS_GROUP: Final = "hubernate.schedulers"
LONGEST_BACKOFF_SECONDS: Final = 60.0
PASS_SECONDS: Final = 60.0
"""A pass that takes longer is given up; the next one starts afresh."""

log = logging.getLogger(__name__)


class Clock(Protocol):
    """Where time comes from."""

    def now(self) -> float:
        """UNIX seconds."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return after that long."""
        ...


class WallClock:
    """The machine's clock."""

    def now(self) -> float:
        return time.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


@dataclass(slots=True)
class Loop:
    """Runs passes until it is cancelled. Nothing that goes wrong in a pass ends it.

    `jitter` gives a factor around 1 for each pause, so that several loops do not run in step.
    """

    reclaimer: Reclaimer
    interval: float
    clock: Clock = field(default_factory=WallClock)
    jitter: Callable[[], float] = lambda: random.uniform(0.9, 1.1)  # noqa: S311 - no secret
    failures: int = 0

    async def run(self) -> None:
        """Pass, pause, pass, ... without end."""
        while True:
            await self.one_pass()
            await self.clock.sleep(self.pause())

    async def one_pass(self) -> None:
        """One pass, guarded: failures are counted and logged."""
        try:
            async with asyncio.timeout(PASS_SECONDS):
                await self.reclaimer.run_once(self.clock.now())
        except (SchedulerError, TimeoutError) as error:
            self._failed("the scheduler does not answer; nobody is suspended meanwhile: %s", error)
        except Exception as error:
            log.exception("a pass failed")
            self._failed("nobody was judged in this pass: %s", error)
        else:
            if self.failures:
                log.info("the scheduler answers again after %d attempts", self.failures)
            self.failures = 0

    def pause(self) -> float:
        """Seconds to the next pass; longer while passes fail."""
        seconds = self.interval * 2.0 ** min(self.failures, 10)
        limit = max(self.interval, LONGEST_BACKOFF_SECONDS)
        return min(seconds, limit) * self.jitter()

    def _failed(self, message: str, error: BaseException) -> None:
        self.failures += 1
        if self.failures == 1 or self.failures % 30 == 0:
            log.warning(message, error or type(error).__name__)


class ReclaimerApp(Application):
    """Suspends sessions that are idle, by the rules of a policy file."""

    name = "hubernate-reclaimer"
    description = __doc__

    scheduler_class = Unicode(
        "http", help="Scheduler to use: a name of the entry-point group `hubernate.schedulers`."
    ).tag(config=True)
    scheduler_url = Unicode(
        "http://127.0.0.1:8003/services/hubernate", help="Where the scheduler answers."
    ).tag(config=True)
    token_file = Unicode(
        "",
        help="File with the reclaimer's token and nothing else, or a JSON object with the key "
        "`reclaimer`. Empty: the variable HUBERNATE_TOKEN.",
    ).tag(config=True)
    policy_path = Unicode(
        "", help="Policy file (YAML), re-read when it changes. Empty: the policy that is shipped."
    ).tag(config=True)
    interval = Float(
        2.0,
        help="Seconds between two looks at all sessions. Lower notices idleness and policy changes "
        "sooner, and asks the scheduler more often.",
    ).tag(config=True)
    config_file = Unicode("", help="Configuration file (Python or JSON).").tag(config=True)

    aliases = {  # noqa: RUF012 - traitlets declares it so
        "scheduler": "ReclaimerApp.scheduler_class",
        "scheduler-url": "ReclaimerApp.scheduler_url",
        "token-file": "ReclaimerApp.token_file",
        "policy": "ReclaimerApp.policy_path",
        "interval": "ReclaimerApp.interval",
        "config": "ReclaimerApp.config_file",
        "log-level": "ReclaimerApp.log_level",
    }

    @default("log_level")
    def _default_log_level(self) -> str:
        return "INFO"

    def initialize(self, argv: list[str] | None = None) -> None:
        """Command line over configuration file over defaults."""
        super().initialize(argv)
        if self.config_file:
            self.load_config_file(self.config_file)
            self.parse_command_line(argv)
        if self.interval <= 0:
            self.exit_with("interval must be more than 0 seconds")

    def exit_with(self, message: str) -> None:
        """End with one plain line."""
        raise SystemExit(f"{self.name}: {message}")

    def start(self) -> None:
        """Run until SIGTERM or SIGINT."""
        form = "%(asctime)s %(levelname)s %(message)s"
        logging.basicConfig(level=logging.WARNING, format=form)  # what others write
        level = str(self.log_level)
        logging.getLogger("reclaimer").setLevel(int(level) if level.isdigit() else level.upper())
        asyncio.run(self.run())

    async def run(self) -> None:
        """Owns the scheduler's client and the loop's task."""
        scheduler = self.open_scheduler()
        policy_file = PolicyFile(Path(self.policy_path) if self.policy_path else None)
        task = asyncio.create_task(Loop(Reclaimer(scheduler, policy_file), self.interval).run())
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        log.info("watching the sessions of %s", self.scheduler_url)
        try:
            await task
        except asyncio.CancelledError:
            log.info("stopped")
        finally:
            await scheduler.aclose()

    def open_scheduler(self) -> SchedulerPlugin:
        """The client of the scheduler that was chosen."""
        found = entry_points(group=SCHEDULERS_GROUP, name=self.scheduler_class)
        if not found:
            known = ", ".join(sorted(e.name for e in entry_points(group=SCHEDULERS_GROUP)))
            self.exit_with(f"there is no scheduler {self.scheduler_class}; known: {known}")
        kind: Any = next(iter(found)).load()
        client: SchedulerPlugin = kind(self.scheduler_url, read_token(self.token_file))
        return client


def read_token(path: str) -> str:
    """The token from the file, else from the environment. Ends the program if there is none."""
    if not path:
        token = os.environ.get(TOKEN_VARIABLE, "")
    else:
        try:
            text = Path(path).read_text().strip()
            token = str(json.loads(text)["reclaimer"]) if text.startswith("{") else text
        except (OSError, ValueError, KeyError) as error:
            raise SystemExit(f"hubernate-reclaimer: no token in {path}: {error}") from error
    if not token:
        raise SystemExit(f"hubernate-reclaimer: give --token-file, or set {TOKEN_VARIABLE}")
    return token


def main() -> None:
    """Entry point."""
    ReclaimerApp.launch_instance()
