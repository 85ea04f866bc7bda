"""The doctor: every problem in plain words with its remedy, and the machine's use in full."""

from __future__ import annotations

import json
import shutil
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import psutil
import pytest

from hub_config import state
from hub_config.doctor import Report, examine, print_report
from hub_config.footprint import FOOTPRINT
from hub_config.key_record import Exported, note_export
from hub_config.paths import StateFolder
from hub_config.settings import LocalSettings, Ports, write_json, write_settings
from hub_config.setup.machine import Finding, Level
from snapshot import cgroups
from snapshot.filling import window
from snapshot.keyfiles import LocalWrapping


@pytest.fixture
def folder() -> Iterator[StateFolder]:
    """Below a folder that other accounts can pass through, unlike pytest's own."""
    path = Path(tempfile.mkdtemp(prefix="hubernate-test-"))
    path.chmod(0o755)
    yield StateFolder(path / "state", path / "downloads")
    shutil.rmtree(path)


def found(folder: StateFolder, subject: str) -> Finding:
    return next(one for one in examine(folder).findings if one.subject == subject)


def test_an_empty_machine_is_told_what_brings_the_rest(folder: StateFolder) -> None:
    assert "make up" in found(folder, "suspend").remedy + found(folder, "suspend").text
    assert found(folder, "proxy").remedy == "make up brings both"
    assert found(folder, "programs").remedy == "make up starts it"
    assert not folder.root.exists()


def test_it_says_whether_memory_may_arrive_later(
    folder: StateFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert found(folder, "resumes").level is Level.OK if window.is_possible() else Level.WARN
    monkeypatch.setattr(window, "SETTING", tmp_path / "not there")
    finding = found(folder, "resumes")
    assert finding.level is Level.WARN
    assert "userfaultfd" in finding.remedy


def test_it_says_whether_limits_are_kept_here(folder: StateFolder) -> None:
    finding, reason = found(folder, "limits"), cgroups.why_not()
    assert finding.level is (Level.WARN if reason else Level.OK)
    assert reason in finding.text


def test_a_newer_state_folder_is_named(folder: StateFolder) -> None:
    folder.root.mkdir()
    folder.version_file.write_text("99")
    assert found(folder, "state folder").level is Level.STOP
    assert "newer" in found(folder, "state folder").text


def test_a_folder_that_sessions_cannot_pass_is_named(folder: StateFolder) -> None:
    state.create(folder)
    assert found(folder, "state folder").level is Level.OK
    folder.root.chmod(0o700)
    finding = found(folder, "state folder")
    assert finding.level is Level.STOP
    assert "session users cannot pass through" in finding.text


def test_a_strangers_port_is_named_with_its_holder(folder: StateFolder) -> None:
    state.create(folder)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        settings = LocalSettings(str(folder.root), str(folder.downloads), Ports(port))
        write_settings(settings, folder.settings_file)
        finding = found(folder, "ports")
    assert finding.level is Level.STOP
    assert f"Port {port} (public) is taken by PID" in finding.text


def test_a_program_that_should_run_and_does_not_is_named(folder: StateFolder) -> None:
    state.create(folder)
    gone = {"pid": 2**22 + 1, "started": 1.0, "digest": ""}
    us = {"pid": 1, "started": psutil.Process(1).create_time(), "digest": ""}
    write_json(folder.children_file, {"hub": gone, "store": us})
    assert found(folder, "programs").text == "not running: hub"


def test_the_only_copy_of_the_key_is_a_warning_until_there_is_a_backup_elsewhere(
    folder: StateFolder,
) -> None:
    state.create(folder)
    assert found(folder, "keys").level is Level.OK
    key = LocalWrapping(folder.keys).current_id()
    assert found(folder, "keys").level is Level.WARN
    assert "hubernate keys export" in found(folder, "keys").remedy
    backup = folder.root / "backup"
    backup.touch()
    note_export(folder.keys, Exported(key, 0.0, str(backup), same_disk=True))
    assert "same disk" in found(folder, "keys").text
    backup.unlink()  # it was moved away
    assert found(folder, "keys").level is Level.OK
    note_export(folder.keys, Exported("another", 0.0, "", same_disk=False))
    assert found(folder, "keys").level is Level.WARN
    assert key not in (folder.keys / "kek.key").read_text()


def test_a_key_that_others_may_read_stops(folder: StateFolder) -> None:
    state.create(folder)
    LocalWrapping(folder.keys).current_id()
    (folder.keys / "kek.key").chmod(0o644)
    assert found(folder, "keys").level is Level.STOP
    assert "chmod 600" in found(folder, "keys").remedy


def test_everything_used_of_the_machine_says_what_for_and_how_to_undo() -> None:
    assert all(use.what and use.purpose and use.undo for use in FOOTPRINT)
    text = " ".join(use.what for use in FOOTPRINT)
    assert all(word in text for word in ("210000", "1000000", "sysctl", "chromium", "ports"))


def test_programs_read_it_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    report = Report((Finding("disk", Level.STOP, "full", "free some"),), FOOTPRINT)
    print_report(report, as_json=True)
    printed = json.loads(capsys.readouterr().out)
    assert printed["is_well"] is False
    assert printed["findings"] == [asdict(report.findings[0])]


def test_people_read_it_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    print_report(Report((Finding("disk", Level.STOP, "full", "free some"),), ()), as_json=False)
    assert "free some" in capsys.readouterr().out
