"""The filesystem layer through the real freezer: a session whose disk does not stay."""

from __future__ import annotations

import os
import re
import shutil
import stat
from pathlib import Path

import pytest

from snapshot.freezer import FreezeFailedError
from snapshot.layer import LayerError
from tests.builders.sandboxes import Box, until

pytestmark = [pytest.mark.criu, pytest.mark.usefixtures("working_criu")]
PYTHON = "/usr/bin/python3"

WORKS_IN_TMP = """
import os, socket, sqlite3, time
os.makedirs("/tmp/work/deep", mode=0o750)
os.chmod("/tmp/work", 0o700)
with open("/tmp/work/data", "wb") as file:
    file.write(b"data" * 3_000_000)
    file.seek(1 << 33)
    file.write(b"end")
os.link("/tmp/work/data", "/tmp/work/deep/same")
os.symlink("/nowhere", "/tmp/work/link")
os.mkfifo("/tmp/work/pipe")
os.setxattr("/tmp/work/data", "user.note", b"mine")
log = open("/tmp/work/log", "a")
renamed = open("/tmp/work/two names", "w+")
os.link("/tmp/work/two names", "/tmp/work/the other name")
os.unlink("/tmp/work/two names")
unlinked = open("/tmp/work/unlinked", "w+")
os.unlink("/tmp/work/unlinked")
unlinked.write("still here")
unlinked.flush()
database = sqlite3.connect("/tmp/work/history.sqlite")
database.execute("create table h (x)")
database.commit()
server = socket.socket(socket.AF_UNIX)
server.bind("/tmp/work/socket")
server.listen()
os.remove("/tmp/of the image")
os.chdir("/tmp/work/deep")
turn = 0
while True:
    turn += 1
    log.write(f"{turn}\\n")
    log.flush()
    renamed.write("x")
    renamed.flush()
    assert os.stat("/tmp/work/the other name").st_size == turn
    unlinked.seek(0)
    assert unlinked.read() == "still here"
    try:
        database.execute("insert into h values (?)", (turn,))
    except sqlite3.OperationalError as error:
        assert "readonly" in str(error)
        database.close()
        database = sqlite3.connect("/tmp/work/history.sqlite")
        database.execute("insert into h values (?)", (turn,))
    database.commit()
    assert database.execute("select count(*) from h").fetchone() == (turn,)
    client = socket.socket(socket.AF_UNIX)
    client.connect("/tmp/work/socket")
    server.accept()[0].close()
    client.close()
    assert os.getcwd() == "/tmp/work/deep" and os.path.exists("same")
    assert not os.path.exists("/tmp/of the image")
    print(f"turn {turn}", flush=True)
    time.sleep(0.05)
"""


def last_turn(box: Box) -> int:
    return max((int(n) for n in re.findall(r"turn (\d+)", box.output())), default=0)


async def goes_on(box: Box) -> None:
    """The program makes progress from here."""
    reached = last_turn(box)
    await until(lambda: last_turn(box) > reached + 1, f"progress after:\n{box.output()[-800:]}")


def fresh_image(box: Box) -> Path:
    """The sandbox's /tmp as a new container has it, and nothing else of the old machine's disk."""
    folder = Path(box.spec.directory, "tmp")
    for gone in (folder, Path(box.spec.directory, "pins"), Path(box.spec.directory, "layer")):
        shutil.rmtree(gone, ignore_errors=True)
    folder.mkdir(parents=True)
    folder.chmod(0o1777)
    (folder / "of the image").write_text("image")
    (folder / "stays").write_text("image")
    return folder


async def test_a_session_finds_its_files_on_a_fresh_disk(box: Box) -> None:
    folder = fresh_image(box)
    await box.start(PYTHON, "-c", WORKS_IN_TMP, layer=("/tmp",))
    await goes_on(box)
    for _ in range(2):
        stored = await box.freeze()
        frozen_at = last_turn(box)
        fresh_image(box)
        thawed = await box.thaw(stored)
        await goes_on(box)
        assert f"turn {frozen_at + 1}\n" in box.output()
        assert any("1 socket(s)" in note for note in thawed.notes)
        assert any("history.sqlite can only be read until" in note for note in thawed.notes)
    assert "Traceback" not in box.output()
    work = folder / "work"
    lines = (work / "log").read_text().split()
    assert lines == [str(n) for n in range(1, len(lines) + 1)]
    data = (work / "data").stat()
    assert data.st_size == 2**33 + 3
    assert data.st_blocks * 512 < 20_000_000
    assert data.st_ino == (work / "deep" / "same").stat().st_ino
    assert os.getxattr(work / "data", "user.note") == b"mine"
    assert os.readlink(work / "link") == "/nowhere"
    assert stat.S_ISFIFO((work / "pipe").lstat().st_mode)
    assert stat.S_IMODE(work.stat().st_mode) == 0o700
    assert work.stat().st_uid == box.spec.identity.uid
    assert (folder / "stays").read_text() == "image"
    assert not (folder / "of the image").exists()


async def test_without_a_layer_nothing_of_the_disk_is_stored(box: Box) -> None:
    fresh_image(box)
    await box.start(PYTHON, "-c", WORKS_IN_TMP)
    await goes_on(box)
    names = box.repository.open((await box.freeze()).manifest).file_names()
    assert not [name for name in names if name.startswith("layer")]


async def test_a_folder_that_cannot_be_kept_leaves_the_session_running(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh_image(box)
    process = await box.start(PYTHON, "-c", WORKS_IN_TMP, layer=("/tmp",))
    await goes_on(box)
    monkeypatch.setattr("snapshot.tree_scan.MAX_ENTRIES", 5)
    with pytest.raises(FreezeFailedError, match="more than 5 files in /tmp") as failed:
        await box.freeze()
    assert isinstance(failed.value.__cause__, LayerError)
    assert box.process == process
    await goes_on(box)
    monkeypatch.undo()
    stored = await box.freeze()
    fresh_image(box)
    await box.thaw(stored)
    await goes_on(box)
    assert "Traceback" not in box.output()
