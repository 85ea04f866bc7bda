"""A full-screen program on a terminal, with text that was never saved."""

import os
import sys

from stage import stages
from terminals import Terminal

EDITOR = r"""
import curses, os, sys
def main(screen):
    curses.raw()
    text, drawn = "", 0
    while True:
        screen.erase()
        screen.addstr(0, 0, "EDITING " + text)
        screen.addstr(curses.LINES - 1, 0, f"{curses.COLS}x{curses.LINES}")
        screen.refresh()
        drawn += 1
        sys.stdout.write(f"\x1b]0;drawn {drawn}\x07")  # the window's title
        sys.stdout.flush()
        key = screen.get_wch()
        if key == "\x13":
            open(os.path.expanduser("~/edited"), "w").write(text)
            screen.addstr(1, 0, f"SAVED {len(text)}")
            screen.refresh()
            screen.get_wch()
        else:
            text += key
curses.wrapper(main)
"""

editor = Terminal(sys.executable, "-c", EDITOR)
drawn = 1


def press(keys):
    """Type, and read the screen to its last character."""
    global drawn
    drawn += len(keys)
    editor.type(keys)
    editor.shows(f"drawn {drawn}\x07")


editor.shows("90x30")
press("one ")
settings = editor.settings()
text = "one "

for stage in stages():
    assert editor.rest() == ""
    assert editor.settings() == settings
    press(f"{stage} ")
    text += f"{stage} "
    editor.type("\x13")
    editor.shows("SAVED")
    with open(os.path.expanduser("~/edited")) as file:
        assert file.read() == text
    press("x")
