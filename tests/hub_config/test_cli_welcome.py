"""The notebook in a new home, and what a home's owner may have put in its way."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from hub_config.welcome import NOTEBOOK, place_welcome

UID = os.getuid()
GID = os.getgid()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "ada"
    folder.mkdir()
    return folder


def test_it_is_a_valid_notebook_of_five_code_cells(home: Path) -> None:
    assert place_welcome(home, UID, GID)
    notebook = nbformat.read(home / NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    assert [c.cell_type for c in notebook.cells].count("code") == 5
    assert not any(c.get("outputs") for c in notebook.cells)


def test_its_python_runs_to_the_end(home: Path) -> None:
    """Shell lines and pauses left out, the cells run one after the other in one interpreter."""
    place_welcome(home, UID, GID)
    notebook = nbformat.read(home / NOTEBOOK, as_version=4)
    code = "\n".join(c.source for c in notebook.cells if c.cell_type == "code")
    lines = [line for line in code.splitlines() if not line.startswith("!")]
    program = "\n".join(lines).replace("time.sleep(1)", "time.sleep(0)")
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert "30/30" in done.stdout
    assert done.stdout.count("the answer is 42") == 2
    assert "You were away for 0 min" in done.stdout


def test_it_belongs_to_the_user_and_is_never_overwritten(home: Path) -> None:
    place_welcome(home, UID, GID)
    path = home / NOTEBOOK
    assert (path.stat().st_uid, path.stat().st_mode & 0o777) == (UID, 0o644)
    path.write_text("mine")
    assert not place_welcome(home, UID, GID)
    assert path.read_text() == "mine"


@pytest.mark.parametrize("target", ["victim", "missing"])
def test_a_link_in_its_place_is_not_followed(home: Path, tmp_path: Path, target: str) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (home / NOTEBOOK).symlink_to(tmp_path / target)
    assert not place_welcome(home, UID, GID)
    assert victim.read_text() == "precious"
    assert not (tmp_path / "missing").exists()


def test_a_folder_in_its_place_is_left_alone(home: Path) -> None:
    (home / NOTEBOOK).mkdir()
    assert not place_welcome(home, UID, GID)


def test_a_home_that_is_a_link_is_left_alone(home: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(home)
    assert not place_welcome(link, UID, GID)
    assert not (home / NOTEBOOK).exists()


def test_a_home_that_is_not_there_or_no_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert not place_welcome(tmp_path / "nothing", UID, GID)
    assert not place_welcome(tmp_path / "file", UID, GID)


def test_somebody_elses_home_is_left_alone(home: Path) -> None:
    assert not place_welcome(home, UID + 1, GID)
    assert not (home / NOTEBOOK).exists()
