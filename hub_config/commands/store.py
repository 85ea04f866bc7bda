"""The snapshot store of this machine, for commands of its administrator."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from hub_config.commands.connection import ask, need_admin
from hub_config.commands.errors import CommandError
from hub_config.paths import StateFolder, state_folder
from scheduler_bridge.errors import SchedulerError
from scheduler_bridge.model.workload import Workload
from snapshot.errors import SnapshotError

if TYPE_CHECKING:
    from snapshot.repository import Repository


@contextmanager
def repository_here() -> Iterator[Repository]:
    """The store of this installation. What goes wrong in it becomes a `CommandError`."""
    from snapshot.repository import open_repository  # loads the store's client
    from spawner.site import read_site

    _, state = need_admin("the store")
    try:
        site = read_site(state.site_file)
    except (OSError, ValueError) as error:
        raise CommandError(
            f"{state.site_file} cannot be read.", remedy="Run `hubernate up` first."
        ) from error
    with plain_errors():
        yield open_repository(site.store)


@contextmanager
def plain_errors() -> Iterator[None]:
    """Errors of the snapshot engine as a `CommandError`."""
    try:
        yield
    except SnapshotError as error:
        raise CommandError(error.message, remedy=error.remedy) from error


def in_use() -> tuple[dict[str, Workload], str]:
    """Live workloads by the snapshot that they would come back from, and why that is not known."""
    try:
        workloads = ask(lambda scheduler, _: scheduler.list())
    except (CommandError, SchedulerError) as error:
        return {}, str(error)
    return {w.snapshot.key: w for w in workloads if w.snapshot is not None}, ""


def state_here(what: str) -> StateFolder:
    """The state folder of this machine's administrator, also where nothing was set up yet."""
    if os.geteuid() != 0:
        raise CommandError(f"{what} is for root on the machine where the Hub runs.")
    return state_folder()
