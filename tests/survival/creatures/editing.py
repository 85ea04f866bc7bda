"""A full-screen program on a terminal, with text that was never saved."""

import os
import sys

from stage import stages
from terminals import Terminal

EDITOR = r"""
import curses, os
def main(screen):
    curses.raw()
    text = ""
    while True:
        screen.erase()
        screen.addstr(0, 0, "EDITING " + text)
        screen.addstr(curses.LINES - 1, 0, f"{curses.COLS}x{curses.LINES}")
        screen.refresh()
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
editor.shows("90x30")
editor.type("one ")
editor.shows("e")
editor.rest(0.3)
settings = editor.settings()
text = "one "

for stage in stages():
    assert editor.rest() == ""
    assert editor.settings() == settings
    editor.type(f"{stage} ")
    text += f"{stage} "
    editor.type("\x13")
    editor.shows("SAVED")
    with open(os.path.expanduser("~/edited")) as file:
        assert file.read() == text
    editor.type("x")
    editor.rest(0.3)
