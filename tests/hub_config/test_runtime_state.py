"""The state folder: modes, versions, secrets, ports, policy copy, virtual GPUs."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from hub_config import state
from hub_config.gpus import write_virtual_gpus
from hub_config.installation import Wishes, decide, local_site, refuse_taken_ports
from hub_config.paths import StateFolder
from hub_config.policy_copy import ensure_policy, set_idle_after
from hub_config.ports import taken
from hub_config.problems import UpRefused
from hub_config.secrets_store import SERVICES, SecretFiles
from hub_config.settings import LocalSettings, Ports, read_settings, write_settings
from reclaimer.policy_file import PolicyFile


@pytest.fixture
def folder(tmp_path: Path) -> StateFolder:
    return StateFolder(tmp_path / "state", tmp_path / "downloads")


def test_folders_are_closed_and_open_as_promised(folder: StateFolder) -> None:
    folder.root.mkdir()
    folder.secrets.mkdir(mode=0o777)
    state.create(folder)
    modes = {path.name: path.stat().st_mode & 0o777 for path in folder.root.iterdir()}
    closed = ("secrets", "keys", "hub", "scheduler", "store", "cache", "logs")
    assert {name: modes[name] for name in closed} == dict.fromkeys(closed, 0o700)
    assert modes["run"] == modes["homes"] == 0o711


def test_a_newer_state_folder_is_refused_untouched(folder: StateFolder) -> None:
    folder.root.mkdir()
    folder.version_file.write_text("2\n")
    with pytest.raises(UpRefused, match=r"newer Hubernate \(layout 2; this one knows up to 1\)"):
        state.check_version(folder)
    assert [path.name for path in folder.root.iterdir()] == ["VERSION"]


def test_a_version_file_that_is_no_number_is_refused(folder: StateFolder) -> None:
    folder.root.mkdir()
    folder.version_file.write_text("banana")
    with pytest.raises(UpRefused, match="banana"):
        state.check_version(folder)


def test_secrets_are_made_once_and_closed(tmp_path: Path) -> None:
    first = SecretFiles(tmp_path)
    first.create_all()
    before = {path.name: path.read_text() for path in tmp_path.iterdir()}
    SecretFiles(tmp_path).create_all()
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == before
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}
    assert set(json.loads(before["service-tokens.json"])) == set(SERVICES)


def test_a_service_added_later_gets_a_token_and_others_keep_theirs(tmp_path: Path) -> None:
    (tmp_path / "service-tokens.json").write_text(json.dumps({"hub": "kept"}))
    tokens = SecretFiles(tmp_path).service_tokens()
    assert tokens["hub"] == "kept"
    assert len(set(tokens.values())) == len(SERVICES)


def test_a_taken_port_is_refused_with_its_holder(folder: StateFolder) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        ports = Ports(listener.getsockname()[1])
        with pytest.raises(UpRefused, match=rf"Port {ports.public} \(public\).*PID \d+ .*python"):
            refuse_taken_ports(folder, ports)
    assert all(holder.port != ports.public for holder in taken(ports))


def test_settings_survive_a_round_trip(tmp_path: Path) -> None:
    settings = LocalSettings("/s", "/d", Ports(9000), 3, freezable=False, not_freezable_because="x")
    write_settings(settings, tmp_path / "settings.json")
    assert read_settings(tmp_path / "settings.json") == settings
    assert settings.ports.from_sandbox == (9000, 9002)


def test_a_later_start_keeps_what_was_chosen_before(folder: StateFolder) -> None:
    state.create(folder)
    first, _ = decide(folder, Wishes(port=9100, virtual_gpus=3))
    write_settings(first, folder.settings_file)
    again, _ = decide(folder, Wishes())
    assert (again.ports.public, again.virtual_gpus) == (9100, 3)


def test_without_criu_sessions_run_and_suspending_is_refused_with_the_reason(
    folder: StateFolder,
) -> None:
    state.create(folder)
    settings, notes = decide(folder, Wishes(port=9100, virtual_gpus=1))
    site = local_site(settings, SecretFiles(folder.secrets))
    assert not site.freezable
    assert site.not_freezable_because
    assert any(site.not_freezable_because in note for note in notes)


def test_virtual_gpus_are_as_many_as_asked_and_keep_their_identity(tmp_path: Path) -> None:
    write_virtual_gpus(tmp_path, 3)
    first = (tmp_path / "vgpu0").read_text()
    write_virtual_gpus(tmp_path, 1)
    assert [path.name for path in tmp_path.iterdir()] == ["vgpu0"]
    assert (tmp_path / "vgpu0").read_text() == first
    assert json.loads(first)["virtual"] is True
    assert (tmp_path / "vgpu0").stat().st_mode & 0o777 == 0o666


def test_a_short_idle_time_shortens_what_would_outlast_it(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    ensure_policy(path)
    comments = [line for line in path.read_text().splitlines() if line.startswith("#")]
    set_idle_after(path, 8.0)
    assert PolicyFile(path).current() is not None
    assert "idle_after: 8s" in path.read_text()
    assert "warn_before: 4s" in path.read_text()
    assert [line for line in path.read_text().splitlines() if line.startswith("#")] == comments


def test_an_operators_policy_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text("mine")
    ensure_policy(path)
    assert path.read_text() == "mine"
