"""The Hub's side as it is, on a scheduler in the Hub's own process and sessions that are small
HTTP servers: for tests of the Hub without sandboxes."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

from jupyterhub.spawner import Spawner
from traitlets import Unicode

from scheduler_bridge.engine.settings import Settings
from scheduler_bridge.inprocess import InProcessScheduler
from scheduler_bridge.plugin import SchedulerPlugin
from scheduler_bridge.policy.values import Rules
from spawner.base import GpuSessionMixin
from spawner.hosting import SessionHost
from tests.fakes.process_host import ProcessHost


@cache
def scheduler() -> InProcessScheduler:
    rules = Rules({"narrow": 1})
    made = InProcessScheduler(
        gpus=int(os.environ.get("TEST_GPUS", "2")), settings=Settings(rules=rules)
    )
    made.engine.learn(made.engine.books.nodes[0].name, {"gpu_driver": "590.10"})
    return made


@cache
def host(folder: str) -> ProcessHost:
    return ProcessHost(Path(folder), scheduler())


class PlainSpawner(GpuSessionMixin, Spawner):  # type: ignore[misc]
    folder = Unicode().tag(config=True)

    @property
    def plugin(self) -> SchedulerPlugin:
        return scheduler()

    def make_host(self) -> SessionHost:
        return host(self.folder)


CONFIG = """
from tests.fakes.plain_spawner import PlainSpawner
from spawner.pages import HANDLERS
from spawner.pages_fork import FORK_HANDLERS
from spawner.profiles_model import DEFAULT_PROFILES, Profile
from hub_config.local import TEMPLATES
from pathlib import Path
c.JupyterHub.spawner_class = PlainSpawner
c.JupyterHub.extra_handlers = [*HANDLERS, *FORK_HANDLERS]
c.JupyterHub.template_paths = [str(TEMPLATES)]
c.JupyterHub.allow_named_servers = True
c.JupyterHub.cleanup_servers = False
c.JupyterHub.activity_resolution = 0
folder = Path({folder!r})
folder.mkdir(exist_ok=True)
(folder / "secret").write_text("s" * 64)
c.PlainSpawner.folder = str(folder)
c.PlainSpawner.state_secret_file = str(folder / "secret")
c.PlainSpawner.queue_wait = 2
c.PlainSpawner.profiles = [*DEFAULT_PROFILES, Profile("small", "Small", "", cpus=0.5, memory_bytes=2**28)]
c.PlainSpawner.poll_interval = 1
c.PlainSpawner.start_timeout = 30
c.PlainSpawner.consecutive_failure_limit = 3
c.PlainSpawner.oauth_client_allowed_scopes = ["custom:hubernate:test"]
"""
