"""What programs inside are called and call their files reaches people as one short printable line."""

from __future__ import annotations

from pathlib import Path

import pytest

from snapshot import criu, proc
from snapshot.gpu.putting_back import short_name
from snapshot.pins import PinError
from snapshot.printable import printable
from tests.builders.sandboxes import Box

PYTHON = "/usr/bin/python3"
HOSTILE = "\x1b[2J\x9b\u202e\n"


def grow(path: Path) -> None:
    path.write_text("grown")


@pytest.mark.parametrize(
    ("text", "keep_end", "shown"),
    [
        ("plain ü", False, "plain ü"),
        ("a\x1b[2J\nb\u202e\x00", False, "a?[2J?b??"),
        ("0123456789", False, "0123456789"),
        ("0123456789x", False, "012345678…"),
        ("0123456789x", True, "…23456789x"),
    ],
)
def test_text_is_one_line_of_bounded_length(text: str, keep_end: bool, shown: str) -> None:
    assert printable(text, 10, keep_end=keep_end) == shown


def test_what_criu_says_of_a_name_moves_no_cursor() -> None:
    said = criu.explain(f"(00.1) 7: Error (criu/files.c:1): Can't open \x1b]0;{'x' * 5000}\n")
    assert said.isprintable() and "Can't open" in said and len(said) < 500


def test_a_file_that_is_gone_is_named_without_control_characters() -> None:
    error = PinError(f"/home/alice/{HOSTILE}")
    assert str(error).isprintable() and error.path == "/home/alice/?[2J???"


@pytest.mark.usefixtures("working_criu")
async def test_names_of_files_and_programs_are_filtered(box: Box) -> None:
    program = f"""
import time
held = open("/home/alice/" + {HOSTILE!r}, "w+")
held.write("x"); held.flush()
print("up", flush=True)
time.sleep(999)
"""
    process = await box.start(PYTHON, "-X", HOSTILE, "-c", program)
    await box.says("up")
    members = proc.members(process)
    assert any("\x1b" in proc.command(member.pid)[:50] for member in members)
    assert all(short_name(member).isprintable() for member in members)
    stored = await box.freeze()
    home = next(bind.source for bind in box.spec.binds if bind.target == "/home/alice")
    grow(Path(home, HOSTILE))
    thawed = await box.thaw(stored)
    assert any("changed meanwhile" in note for note in thawed.notes)
    assert all(note.isprintable() for note in thawed.notes)
