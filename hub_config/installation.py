"""Brings a state folder into the form in which the programs can start: everything but processes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import psutil

from hub_config import state
from hub_config.children import read_records
from hub_config.freezability import why_not_freezable
from hub_config.gpus import DEFAULT_VIRTUAL, RealGpus, read_real_gpus, write_virtual_gpus
from hub_config.paths import StateFolder
from hub_config.policy_copy import ensure_policy, set_idle_after
from hub_config.ports import Holder, taken
from hub_config.problems import UpRefused
from hub_config.retention_file import ensure_retention
from hub_config.secrets_store import SecretFiles
from hub_config.settings import LocalSettings, Ports, read_settings, write_json, write_settings
from hub_config.setup.machine import hidden_inside
from hub_config.store_server import store_settings
from snapshot.model import Bind
from spawner.site import LocalSite, write_site


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the operator asked for on the command line; None keeps what the last run had."""

    port: int | None = None
    virtual_gpus: int | None = None
    idle_after_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Prepared:
    """A state folder that is ready, and what a person should know about it."""

    settings: LocalSettings
    secret_files: SecretFiles
    notes: tuple[str, ...]


def prepare(folder: StateFolder, wishes: Wishes) -> Prepared:
    """Create folders, secrets and configuration. Raises `UpRefused`, having started nothing."""
    refuse_without_root()
    state.check_version(folder)
    state.create(folder)
    if blocked := state.unreachable_for_users(folder.run):
        raise UpRefused(
            f"Sessions run under their users' accounts, and {blocked} is closed to them.",
            remedy="Choose a state folder outside home folders with HUBERNATE_STATE.",
        )
    if hidden := hidden_inside(folder.downloads):
        raise UpRefused(
            f"Sessions have a {hidden} of their own and could not see their programs in "
            f"{folder.downloads}.",
            remedy="Choose another folder with HUBERNATE_STATE, such as /srv/hubernate.",
        )
    settings, notes = decide(folder, wishes)
    refuse_taken_ports(folder, settings.ports)
    secret_files = SecretFiles(folder.secrets)
    secret_files.create_all()
    write_virtual_gpus(folder.vgpu, settings.virtual_gpus)
    ensure_policy(folder.policy_file)
    ensure_retention(folder.retention_file)
    if wishes.idle_after_seconds is not None:
        notes.append(set_idle_after(folder.policy_file, wishes.idle_after_seconds))
    write_settings(settings, folder.settings_file)
    write_json(folder.ports_file, settings.ports.named(), mode=0o644)
    write_site(local_site(settings, secret_files), folder.site_file)
    return Prepared(settings, secret_files, tuple(notes))


def refuse_without_root() -> None:
    """Raises `UpRefused` for anybody but root."""
    if os.geteuid() != 0:
        raise UpRefused(
            "`hubernate up` needs root: it starts sessions under other accounts and freezes them.",
            remedy="Start it with sudo. Without root work `hubernate doctor`, `make check`, and "
            "every command against a Hubernate that runs elsewhere (HUBERNATE_URL).",
        )


def decide(folder: StateFolder, wishes: Wishes) -> tuple[LocalSettings, list[str]]:
    """Settings of this run: what was asked, else what the last run had, else the default."""
    try:
        last: LocalSettings | None = read_settings(folder.settings_file)
    except FileNotFoundError:
        last = None
    notes: list[str] = []
    reason = why_not_freezable(folder)
    if reason:
        notes.append(f"Sessions run, but cannot be suspended here. {reason}")
    port = wishes.port or (last.ports.public if last else Ports().public)
    settings = LocalSettings(
        state=str(folder.root),
        downloads=str(folder.downloads),
        ports=Ports(port),
        virtual_gpus=_virtual_gpus(wishes, last, read_real_gpus(), notes),
        freezable=not reason,
        not_freezable_because=reason,
    )
    return settings, notes


def _virtual_gpus(
    wishes: Wishes, last: LocalSettings | None, real: RealGpus, notes: list[str]
) -> int:
    if real.problem:
        notes.append(f"The GPU driver does not answer ({real.problem}); its GPUs are not used.")
    if wishes.virtual_gpus is not None:
        count = wishes.virtual_gpus
    elif real.models:
        return 0
    else:
        count = last.virtual_gpus if last and last.virtual_gpus else DEFAULT_VIRTUAL
    if count:
        notes.append(
            f"{count} virtual GPU(s): files that are leased and enforced like GPUs and compute "
            "nothing (--gpus N chooses how many)."
        )
    return count


def refuse_taken_ports(folder: StateFolder, ports: Ports) -> None:
    """Raises `UpRefused` naming who holds each port that is not held by our own programs."""
    ours = own_pids(folder)
    strangers = [holder for holder in taken(ports) if holder.pid not in ours]
    if strangers:
        raise UpRefused(
            " ".join(str(holder) for holder in strangers),
            remedy=_port_remedy(strangers, ports),
        )


def _port_remedy(strangers: list[Holder], ports: Ports) -> str:
    pids = sorted({holder.pid for holder in strangers if holder.pid})
    end = f"End PID {', '.join(map(str, pids))}, or choose" if pids else "Choose"
    return f"{end} another block of five ports: hubernate up --port {ports.public + 100}"


def own_pids(folder: StateFolder) -> set[int | None]:
    """Programs that an earlier `up` of this folder left running, with their children."""
    found: set[int | None] = set()
    for record in read_records(folder.children_file).values():
        if record.is_alive():
            found.add(record.pid)
            found |= _children_of(record.pid)
    if proxy := stray_proxy(folder):
        found.add(proxy.pid)
    return found


def _children_of(pid: int) -> set[int]:
    try:
        return {child.pid for child in psutil.Process(pid).children(recursive=True)}
    except psutil.Error:
        return set()


def stray_proxy(folder: StateFolder) -> psutil.Process | None:
    """The proxy that this folder's Hub started and noted, if it still runs."""
    try:
        process = psutil.Process(int((folder.hub / "proxy.pid").read_text().split()[0]))
        command = process.cmdline()
    except (OSError, ValueError, IndexError, psutil.Error):
        return None
    return process if any("configurable-http-proxy" in part for part in command) else None


def local_site(settings: LocalSettings, secret_files: SecretFiles) -> LocalSite:
    """What spawner and job launcher are told about this machine."""
    folder = settings.folder()
    return LocalSite(
        python=str(folder.venv / "bin/python"),
        environment_directory=str(folder.venv),
        run_directory=str(folder.run),
        homes_directory=str(folder.homes),
        users_file=str(folder.users_file),
        scheduler_url=settings.scheduler_url,
        tools=folder.tools(),
        store=store_settings(settings, secret_files),
        reachable_ports=settings.ports.from_sandbox,
        public_url=f"http://127.0.0.1:{settings.ports.public}/services/hubernate",
        binds=checkout_binds(folder),
        freezable=settings.freezable,
        not_freezable_because=settings.not_freezable_because,
    )


def checkout_binds(folder: StateFolder) -> tuple[Bind, ...]:
    """A developer's editable install lies outside the environment: sessions see it read-only."""
    checkout = Path(__file__).resolve().parents[1]
    if checkout.is_relative_to(folder.venv):
        return ()
    return (Bind(str(checkout), str(checkout), read_only=True),)


def existing_settings(folder: StateFolder) -> LocalSettings | None:
    """Settings of the last `up`, or None where there was none."""
    path: Path = folder.settings_file
    return read_settings(path) if path.exists() else None
