"""Creates the state folder, and refuses one that a newer version wrote."""

from __future__ import annotations

import os
from pathlib import Path

from hub_config.paths import LAYOUT_VERSION, StateFolder
from hub_config.problems import UpRefused


def check_version(folder: StateFolder) -> None:
    """Raises `UpRefused`, touching nothing, when the folder's layout is not ours to write."""
    try:
        text = folder.version_file.read_text().strip()
    except FileNotFoundError:
        return
    try:
        version = int(text)
    except ValueError:
        raise UpRefused(
            f"{folder.version_file} holds {text[:40]!r} instead of a layout number.",
            remedy="Restore the file from a backup, or choose another folder with HUBERNATE_STATE.",
        ) from None
    if version > LAYOUT_VERSION:
        raise UpRefused(
            f"{folder.root} was written by a newer Hubernate (layout {version}; this one knows "
            f"up to {LAYOUT_VERSION}). Nothing was changed.",
            remedy="Use that newer version, or choose another folder with HUBERNATE_STATE.",
        )


def create(folder: StateFolder) -> None:
    """Make every folder with its mode; may be called at every start. Call `check_version` first."""
    _folder(folder.root, 0o755)
    for path in (
        folder.secrets,
        folder.keys,
        folder.hub,
        folder.scheduler,
        folder.store,
        folder.cache,
        folder.logs,
    ):
        _folder(path, 0o700)
    for path in (folder.run, folder.homes):
        _folder(path, 0o711)
    for path in (folder.config, folder.vgpu):
        _folder(path, 0o755)
    if not folder.version_file.exists():
        folder.version_file.write_text(f"{LAYOUT_VERSION}\n")


def unreachable_for_users(path: Path) -> Path | None:
    """The first folder on the way to `path` that other accounts may not pass, if there is one."""
    for part in reversed([path, *path.parents]):
        if part.exists() and not part.stat().st_mode & 0o001:
            return part
    return None


def _folder(path: Path, mode: int) -> None:
    path.mkdir(parents=True, exist_ok=True)
    if path.stat().st_mode & 0o7777 != mode:
        os.chmod(path, mode)
