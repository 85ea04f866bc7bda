"""Plain progress lines with elapsed seconds, and commands whose output goes to a log."""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import monotonic

from hub_config.setup.problems import SetupFailed

BEAT_SECONDS = 5.0
MB = 1_000_000


class Progress:
    """Writes `[  12.3 s] text`. Safe from several threads."""

    def __init__(self, logs: Path) -> None:
        self._begun = monotonic()
        self._lock = threading.Lock()
        self._logs = logs

    def say(self, text: str) -> None:
        """One line for a person."""
        with self._lock:
            print(f"[{monotonic() - self._begun:6.1f} s] {text}", file=sys.stderr, flush=True)

    def run(
        self,
        name: str,
        argv: Sequence[str | Path],
        *,
        environment: Mapping[str, str],
        cwd: Path | None = None,
        grows: Path | None = None,
        timeout: float = 1800.0,
    ) -> None:
        """Run a command, its output in a log; a line every few seconds, with the size of `grows`.

        Raises `SetupFailed` with the end of the log when it fails or exceeds `timeout` seconds."""
        self._logs.mkdir(parents=True, exist_ok=True)
        log = self._logs / f"setup-{name}.log"
        begun = monotonic()
        with log.open("ab") as output:
            already = output.tell()
            try:
                process = subprocess.Popen(
                    [str(part) for part in argv],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env=dict(environment),
                    cwd=cwd,
                )
            except OSError as error:
                raise SetupFailed(f"{name}: {argv[0]} could not be started: {error}") from error
            code = self._await(name, process, begun, timeout, grows)
        if code != 0:
            raise SetupFailed(
                f"{name}: `{Path(argv[0]).name}` failed with exit status {code}:\n{_tail(log, already)}",
                remedy=f"The whole output is in {log}.",
            )

    def _await(
        self,
        name: str,
        process: subprocess.Popen[bytes],
        begun: float,
        timeout: float,
        grows: Path | None,
    ) -> int:
        while True:
            try:
                return process.wait(BEAT_SECONDS)
            except subprocess.TimeoutExpired:
                seconds = monotonic() - begun
            except KeyboardInterrupt:
                process.terminate()
                process.wait()
                raise
            if seconds > timeout:
                process.kill()
                process.wait()
                raise SetupFailed(
                    f"{name}: gave up after {seconds:.0f} s.",
                    remedy="Check the network to the package registries and start again.",
                )
            size = f", {folder_bytes(grows) / MB:.0f} MB so far" if grows else ""
            self.say(f"  {name}: still working ({seconds:.0f} s{size})")


def folder_bytes(folder: Path) -> int:
    """Bytes of the regular files in a folder that may be changing: whatever vanishes while it is
    looked at, a folder too, counts for nothing."""
    total = 0
    for parent, _, names in os.walk(folder):  # leaves out what it cannot list
        for name in names:
            with contextlib.suppress(OSError):
                found = os.lstat(os.path.join(parent, name))
                total += found.st_size if stat.S_ISREG(found.st_mode) else 0
    return total


def _tail(log: Path, start: int, *, lines: int = 15) -> str:
    """The last lines that were written after `start` bytes."""
    with log.open("rb") as handle:
        handle.seek(start)
        written = handle.read().decode(errors="replace")
    return "\n".join(written.splitlines()[-lines:])
