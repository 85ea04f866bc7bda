"""What a session has on this machine besides its home and its snapshot, once more for a fork.

That is its /tmp, its /run/hubernate and the second names of files that it has open. The first two
belong to the user, who may have laid anything there: they are copied with the user's rights only.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Final

from snapshot.model import Identity
from snapshot.plan import EXIT_FILE, TMP, TMP_MODE
from spawner.supervisor.inside import GPUS_FILE, IDENTITY_FILE, RESUME_FILE, opened

RUN: Final = "run"
PINS: Final = "pins"
COPY_SECONDS: Final = 600.0
_OWN_FOLDERS: Final = ((TMP, TMP_MODE), (RUN, 0o700))
_NOT_THE_FORKS: Final = (IDENTITY_FILE, RESUME_FILE, GPUS_FILE, EXIT_FILE)


class ForkFailedError(Exception):
    """The folders could not be copied; the message says why. Nothing is left."""


def copy_folders(source: Path, target: Path, identity: Identity) -> None:
    """Lay out `target`, which must not exist, as the fork of the suspended session in `source`.
    Blocking. Raises `ForkFailedError`."""
    try:
        target.mkdir(mode=0o711)
    except OSError as error:
        raise ForkFailedError(f"There is no place for a fork: {error}") from error
    try:
        target.chmod(0o711)
        for name, mode in _OWN_FOLDERS:
            _copy_own(source / name, target / name, mode, identity)
        with opened(target / RUN) as folder:
            for name in _NOT_THE_FORKS:
                with suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=folder)
        _link_pins(source / PINS, target / PINS)
    except (OSError, subprocess.SubprocessError) as error:
        shutil.rmtree(target, ignore_errors=True)
        raise ForkFailedError(f"The session's own files could not be copied: {error}") from error


def _copy_own(source: Path, target: Path, mode: int, identity: Identity) -> None:
    target.mkdir(mode=0o700)
    os.chown(target, identity.uid, identity.gid)
    if source.is_dir():
        _copy_as(identity, source, target)
    with opened(target) as folder:
        os.fchmod(folder, mode)


def _copy_as(identity: Identity, source: Path, target: Path) -> None:
    """With times, links, owners and sparse parts: open files are known again by size and time."""
    finished = subprocess.run(
        ["cp", "--archive", "--reflink=auto", "--", f"{source}/.", f"{target}/"],
        user=identity.uid,
        group=identity.gid,
        extra_groups=list(identity.groups),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        cwd="/",
        env={"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"},
        timeout=COPY_SECONDS,
        check=False,
        text=True,
        errors="replace",
    )
    if finished.returncode != 0:
        said = finished.stderr.strip().splitlines()[:1] or ["cp gave no reason"]
        raise OSError(said[0][:300])


def _link_pins(source: Path, target: Path) -> None:
    """The same files under second names of the fork's own. Only root writes there."""
    target.mkdir(mode=0o755)
    target.chmod(0o755)
    if not source.is_dir():
        return
    for freeze in source.iterdir():
        place = target / freeze.name
        place.mkdir(mode=0o755)
        place.chmod(0o755)
        for pin in freeze.iterdir():
            os.link(pin, place / pin.name, follow_symlinks=False)
