"""Set-up's pieces on real files: interpreters, stamps, mirrors, progress, an empty machine."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hub_config.paths import StateFolder
from hub_config.setup.criu import criu_complaint, parse_version
from hub_config.setup.debian import choose_mirror
from hub_config.setup.node import LOCKED, npm_command
from hub_config.setup.postgres import server_programs
from hub_config.setup.problems import SetupFailed
from hub_config.setup.progress import Progress
from hub_config.setup.python import Environment, find_interpreter, is_editable, pip_wheel
from hub_config.setup.stamps import Stamps, digest
from hub_config.setup.steps import CHECKOUT, GOALS


def fake_python(folder: Path, version: str) -> Path:
    """A program that answers like an interpreter of that version."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "python3"
    numbers = version.replace(".", ", ")
    path.write_text(f'#!/bin/sh\necho \'[[{numbers}], "{path}", "{folder}"]\'\n')
    path.chmod(0o755)
    return path


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other accounts can pass through, unlike pytest's own."""
    path = Path(tempfile.mkdtemp(prefix="hubernate-test-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def test_an_interpreter_closed_to_others_is_passed_over(open_folder: Path) -> None:
    closed = fake_python(open_folder / "home", "3.12.1")
    (open_folder / "home").chmod(0o700)
    good = fake_python(open_folder / "usr", "3.11.2")
    assert find_interpreter([closed, good], seen_inside=(open_folder,)).path == good


def test_an_interpreter_that_is_too_old_is_passed_over(open_folder: Path) -> None:
    old = fake_python(open_folder / "old", "3.9.2")
    good = fake_python(open_folder / "new", "3.13.5")
    assert find_interpreter([old, good], seen_inside=(open_folder,)).version == (3, 13, 5)


def test_an_interpreter_that_sessions_do_not_see_is_passed_over(open_folder: Path) -> None:
    elsewhere = fake_python(open_folder / "home", "3.12.1")
    good = fake_python(open_folder / "usr", "3.11.2")
    assert find_interpreter([elsewhere, good], seen_inside=(open_folder / "usr",)).path == good


def test_where_no_interpreter_serves_each_is_named_with_its_reason(open_folder: Path) -> None:
    closed = fake_python(open_folder / "private", "3.12.1")
    (open_folder / "private").chmod(0o700)
    old = fake_python(open_folder / "older", "3.9.2")
    with pytest.raises(SetupFailed, match=r"private is closed to other accounts.*is 3\.9\.2"):
        find_interpreter([closed, old], seen_inside=(open_folder,))


def test_this_machine_has_an_interpreter_that_sessions_can_run() -> None:
    found = find_interpreter()
    assert found.version >= (3, 11)
    assert not str(found.path.resolve()).startswith("/root/")


@pytest.mark.parametrize(
    ("lines", "mirror"),
    [
        (["http://m/debian/|Debian|trixie|main"], "http://m/debian/"),
        (["http://m/debian/||trixie|main"], "http://m/debian/"),
        (["http://other/apt||trixie|main"], None),
        (["http://other/debian|Other|trixie|main", "http://m/x|Debian|stable|main"], "http://m/x"),
        (["http://s/debian-security|Debian|trixie-security|main"], None),
        (["http://m/debian/|Debian|trixie|contrib"], None),
        ([], None),
    ],
)
def test_the_mirror_is_debians_own(lines: list[str], mirror: str | None) -> None:
    assert choose_mirror(lines, "trixie") == mirror


@pytest.mark.parametrize(
    ("text", "version"),
    [("Version: 4.2.1\nGitID: x", (4, 2)), ("Version: 3.17.1", (3, 17)), ("what?", (0, 0))],
)
def test_criu_says_its_version(text: str, version: tuple[int, int]) -> None:
    assert parse_version(text) == version


def test_criu_complains_in_its_own_words() -> None:
    assert criu_complaint(["/nowhere/criu"]).startswith("CRIU could not be started")
    assert criu_complaint(["/bin/sh", "-c", "echo no luck >&2; exit 1"]) == "no luck"
    assert criu_complaint(["/bin/true"]) == ""


def test_a_stamp_counts_for_the_same_inputs_and_an_existing_product(tmp_path: Path) -> None:
    stamps, product = Stamps(tmp_path / "stamps"), tmp_path / "product"
    stamps.write("step", "1", dev=True)
    assert not stamps.is_current("step", "1", product)
    product.touch()
    assert stamps.is_current("step", "1", product)
    assert not stamps.is_current("step", "2", product)
    assert stamps.read("step")["dev"] is True
    stamps.forget("step")
    assert stamps.read("step") == {}


def test_a_digest_sees_names_and_contents(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_text("1")
    first = digest(["x"], [file])
    file.write_text("2")
    assert digest(["x"], [file]) != first
    assert digest(["ab", "c"]) != digest(["a", "bc"])


def test_a_failed_command_shows_the_end_of_its_output(tmp_path: Path) -> None:
    progress = Progress(tmp_path)
    with pytest.raises(SetupFailed, match="the disk is full") as caught:
        argv = ["/bin/sh", "-c", "echo the disk is full; exit 3"]
        progress.run("venv", argv, environment={})
    assert str(tmp_path / "setup-venv.log") in caught.value.remedy


def test_an_environment_in_use_for_development_stays_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HUBERNATE_EDITABLE", raising=False)
    info = tmp_path / "venv/lib/python3.11/site-packages/hubernate-0.1.0.dist-info"
    info.mkdir(parents=True)
    origin = {"url": CHECKOUT.as_uri(), "dir_info": {"editable": True}}
    (info / "direct_url.json").write_text(json.dumps(origin))
    assert is_editable(tmp_path / "venv", CHECKOUT)
    assert not is_editable(tmp_path / "venv", tmp_path / "another checkout")
    assert not is_editable(tmp_path / "none", CHECKOUT)


def test_the_lock_files_name_no_registry() -> None:
    assert '"resolved"' not in (LOCKED / "package-lock.json").read_text()


def test_the_wheel_of_pip_is_found_among_others(tmp_path: Path) -> None:
    assert pip_wheel([tmp_path / "none", tmp_path]) is None
    for name in ("pip-24.0-py3-none-any.whl", "setuptools-70.0-py3-none-any.whl"):
        (tmp_path / name).touch()
    assert pip_wheel([tmp_path / "none", tmp_path]) == tmp_path / "pip-24.0-py3-none-any.whl"


def test_npm_lies_beside_node(tmp_path: Path) -> None:
    script = tmp_path / "lib/node_modules/npm/bin/npm-cli.js"
    script.parent.mkdir(parents=True)
    script.touch()
    node = tmp_path / "bin/node"
    assert npm_command(node) == [str(node), str(script)]


def test_every_goal_is_known_to_the_makefile() -> None:
    asked = re.findall(r"\$\(BRING\) (\w+)", (CHECKOUT / "Makefile").read_text())
    assert set(asked) == set(GOALS)


def test_the_newest_postgresql_is_taken(tmp_path: Path) -> None:
    assert server_programs(tmp_path) is None
    for version in ("9", "15", "common"):
        program = tmp_path / version / "bin/initdb"
        program.parent.mkdir(parents=True)
        program.touch(mode=0o755)
    assert server_programs(tmp_path) == tmp_path / "15/bin"


@pytest.mark.parametrize(
    "module", ["steps", "machine", "python", "debian", "criu", "node", "postgres"]
)
def test_set_up_needs_nothing_but_the_standard_library(module: str) -> None:
    """Run by an isolated interpreter that sees no installed package."""
    code = f"import sys; sys.path[0:0] = [{str(CHECKOUT)!r}]; import hub_config.setup.{module}"
    subprocess.run([sys.executable, "-I", "-S", "-B", "-c", code], check=True)


def test_set_up_refuses_an_unwritable_folder_with_the_remedy(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    answer = subprocess.run(
        [sys.executable, "-B", str(CHECKOUT / "hub_config/setup/bootstrap.py"), "check"],
        env={"PATH": os.environ["PATH"], "HUBERNATE_STATE": str(blocked)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 1
    assert "what to do" in answer.stderr


def test_what_was_brought_with_dev_stays_with_dev(tmp_path: Path) -> None:
    stamps = Stamps(tmp_path / "stamps")
    environment = Environment(CHECKOUT, tmp_path, Progress(tmp_path), stamps)
    interpreter = find_interpreter()
    (tmp_path / "venv/bin").mkdir(parents=True)
    (tmp_path / "venv/bin/hubernate").touch()
    wanted = environment._digest(interpreter, dev=True, editable=False)
    stamps.write("venv", wanted, dev=True)
    environment.ensure(dev=False)
    assert not (tmp_path / "uv").exists()


def test_programs_come_from_the_system_where_set_up_says_so(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path, tmp_path)
    private = folder.tools()
    assert private.criu[-1] == str(tmp_path / "tools/usr/sbin/criu")
    assert str(tmp_path / "tools/bin") in private.criu[1]
    folder.tools_prefix.mkdir()
    (folder.tools_prefix / "system.json").write_text('{"criu": "/usr/sbin/criu"}')
    assert folder.tools().criu[-1] == "/usr/sbin/criu"
    assert folder.tools().pasta == private.pasta
