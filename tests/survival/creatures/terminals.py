"""A terminal as a page or a window has it: its far end, where keys go in and the screen comes out."""

import fcntl
import os
import pty
import select
import struct
import termios
import time

PROMPT = "ready> "


class Terminal:
    """A program on a terminal of its own, 90 columns by 30 lines."""

    def __init__(self, *argv: str) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ.update(TERM="xterm", PS1=PROMPT, HISTFILE="")
            os.execv(argv[0], argv)
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 90, 0, 0))

    def type(self, keys: str) -> None:
        os.write(self.fd, keys.encode())

    def shows(self, text: str, seconds: float = 20) -> str:
        """Read the screen's output until it holds `text`."""
        seen, deadline = "", time.monotonic() + seconds
        while text not in seen:
            assert time.monotonic() < deadline, f"no {text!r} in {seen!r}"
            seen += self.rest(0.05)
        return seen

    def rest(self, seconds: float = 0.0) -> str:
        """What is there to read by now."""
        seen = b""
        while select.select([self.fd], [], [], seconds)[0]:
            seen += os.read(self.fd, 4096)
            seconds = 0.0
        return seen.decode(errors="replace")

    def settings(self) -> tuple[object, ...]:
        """Everything of the terminal that a program may have set."""
        size = fcntl.ioctl(self.fd, termios.TIOCGWINSZ, bytes(8))
        return os.tcgetpgrp(self.fd), termios.tcgetattr(self.fd), size
