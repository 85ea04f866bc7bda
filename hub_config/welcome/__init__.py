"""The notebook that leads a person through being suspended and coming back."""

from __future__ import annotations

import errno
import os
from importlib import resources
from pathlib import Path
from typing import Final

NOTEBOOK: Final = "Welcome.ipynb"


def place_welcome(home: Path, uid: int, gid: int) -> bool:
    """Put the notebook into a home, owned by the user. Whether it was put there.

    Whatever has that name already is left alone, a link too. The home belongs to its user, who may
    exchange anything in it meanwhile: the file is made relative to the folder that was opened, never
    through a link, and only if it did not exist. A home that is itself a link, or belongs to
    somebody else, is left alone. Raises `OSError` when the disk refuses.
    """
    try:
        folder = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except (NotADirectoryError, FileNotFoundError):
        return False
    except OSError as error:
        if error.errno == errno.ELOOP:
            return False
        raise
    try:
        if os.fstat(folder).st_uid != uid:
            return False
        return _create(folder, uid, gid)
    finally:
        os.close(folder)


def _create(folder: int, uid: int, gid: int) -> bool:
    content = resources.files("hub_config.welcome").joinpath(NOTEBOOK).read_bytes()
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    try:
        descriptor = os.open(NOTEBOOK, flags, 0o600, dir_fd=folder)
    except FileExistsError:
        return False
    with os.fdopen(descriptor, "wb") as handle:
        handle.write(content)
        os.fchmod(descriptor, 0o644)
        os.fchown(descriptor, uid, gid)
    return True
