"""A real snapshot store in a folder of the command line's state, and small snapshots in it."""

from __future__ import annotations

from hub_config.paths import StateFolder
from snapshot.model import SnapshotKey, StoreSettings
from snapshot.repository import Repository, open_repository
from spawner.site import LocalSite, write_site


def store_at(state: StateFolder) -> Repository:
    """Set the state folder up with a store in `objects`."""
    for folder in (state.root / "objects", state.keys):
        folder.mkdir(mode=0o700)
    settings = StoreSettings(
        "directory", str(state.root / "objects"), keys_directory=str(state.keys)
    )
    site = LocalSite(
        python="python",
        environment_directory="",
        run_directory="",
        homes_directory="",
        users_file="",
        scheduler_url="",
        tools=state.tools(),
        store=settings,
    )
    write_site(site, state.site_file)
    return open_repository(settings)


def keep(store: Repository, owner: str, sequence: int = 1, *, session: str = "") -> str:
    """Store a small snapshot; returns its key."""
    with store.writer(SnapshotKey(owner, session or f"s-{owner}", 1, sequence), {}) as writer:
        writer.add_file("core", f"memory of {owner} {sequence}".encode() * 1000)
        return writer.commit({}).manifest
