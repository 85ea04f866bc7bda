"""The Hub's configuration for one machine, as JupyterHub itself reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from jupyterhub.app import JupyterHub
from traitlets.config import Config

from hub_config.local import configure
from hub_config.programs import scheduler_program
from hub_config.secrets_store import SecretFiles
from hub_config.settings import LocalSettings, Ports
from scheduler_bridge.app import SchedulerService
from spawner.local import LocalSpawner


@pytest.fixture
def config(tmp_path: Path) -> Any:
    settings = LocalSettings(str(tmp_path), "/nowhere", Ports(7000), virtual_gpus=2)
    for name in ("secrets", "hub", "config"):
        (tmp_path / name).mkdir(mode=0o700)
    c = Config()
    configure(c, settings)
    return c


def test_every_setting_exists(config: Any) -> None:
    """A misspelt trait would be ignored by JupyterHub with a warning that nobody reads."""
    for section, cls in (("JupyterHub", JupyterHub), ("LocalSpawner", LocalSpawner)):
        known = set(cls.class_trait_names(config=True))
        assert set(config[section]) <= known, set(config[section]) - known


def test_nothing_listens_beyond_this_machine(config: Any) -> None:
    for url in (
        config.JupyterHub.bind_url,
        config.JupyterHub.hub_bind_url,
        config.ConfigurableHTTPProxy.api_url,
        config.LocalSpawner.hub_connect_url,
        *(s["url"] for s in config.JupyterHub.services if "url" in s),
    ):
        assert url.startswith("http://127.0.0.1:70"), url


def test_ports_do_not_collide(config: Any) -> None:
    assert config.JupyterHub.bind_url.endswith(":7000")
    assert config.ConfigurableHTTPProxy.api_url.endswith(":7001")
    assert config.JupyterHub.hub_bind_url.endswith(":7002")


def test_a_hub_that_ends_leaves_sessions_running(config: Any) -> None:
    assert config.JupyterHub.cleanup_servers is False


def test_only_named_users_get_in_and_admins_have_a_password_of_their_own(config: Any) -> None:
    users = config.SharedPasswordAuthenticator
    assert users.allowed_users == {"alice", "bob", "carol", "admin"}
    assert users.admin_users == {"admin"}
    assert users.admin_password != users.user_password and len(users.admin_password) >= 32


def test_the_wait_in_the_queue_ends_before_the_hub_gives_up(config: Any) -> None:
    spawner = LocalSpawner(config=config)
    assert spawner.queue_wait < spawner.start_timeout
    assert [p.slug for p in spawner.profiles] == ["cpu", "gpu-1", "gpu-2"]


def test_a_wait_that_is_too_long_is_refused_at_start(config: Any) -> None:
    config.LocalSpawner.queue_wait = 170
    with pytest.raises(Exception, match="at least 15 s below start_timeout"):
        LocalSpawner(config=config)


def test_configuring_twice_changes_no_secret(config: Any, tmp_path: Path) -> None:
    again = Config()
    configure(again, LocalSettings(str(tmp_path), "/nowhere", Ports(7000), virtual_gpus=2))
    assert again.SharedPasswordAuthenticator == config.SharedPasswordAuthenticator
    assert again.ConfigurableHTTPProxy == config.ConfigurableHTTPProxy


def test_secrets_are_for_root_only(tmp_path: Path, config: Any) -> None:
    files = list((tmp_path / "secrets").iterdir())
    assert files
    assert not [f for f in files if f.stat().st_mode & 0o077]


def test_the_schedulers_state_is_in_its_folder_unless_the_operator_says_where(
    tmp_path: Path,
) -> None:
    settings = LocalSettings(str(tmp_path), "/nowhere", Ports(7000))
    for name in ("secrets", "config"):
        (tmp_path / name).mkdir(mode=0o700)
    program = scheduler_program(settings, SecretFiles(settings.folder().secrets), {})
    (tmp_path / "config/scheduler.py").write_text("c.SchedulerService.database_url = 'mine'\n")
    service = SchedulerService()
    state = SchedulerService.database_url.default_value
    assert (program.folder, state) == (settings.folder().scheduler, "sqlite:///scheduler.sqlite")
    service.initialize([f"--config={tmp_path}/config/scheduler.json"])
    assert service.database_url == "mine"


def test_a_scheduler_whose_operator_wrote_something_is_not_adopted(tmp_path: Path) -> None:
    settings = LocalSettings(str(tmp_path), "/nowhere", Ports(7000))
    for name in ("secrets", "config"):
        (tmp_path / name).mkdir(mode=0o700)
    secrets = SecretFiles(settings.folder().secrets)
    before = scheduler_program(settings, secrets, {}).digest()
    (tmp_path / "config/scheduler.py").write_text("c.SchedulerService.lease_seconds = 60\n")
    assert scheduler_program(settings, secrets, {}).digest() != before
