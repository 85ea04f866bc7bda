"""`hubernate doctor`: what is wrong here, what to do about it, and what is used of the machine."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass

import httpx
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hub_config.children import read_records
from hub_config.footprint import FOOTPRINT, Use
from hub_config.freezability import why_not_freezable
from hub_config.gpus import read_real_gpus
from hub_config.installation import existing_settings, own_pids
from hub_config.key_record import key_finding
from hub_config.paths import LAYOUT_VERSION, StateFolder
from hub_config.ports import taken
from hub_config.problems import UpRefused
from hub_config.settings import LocalSettings, Ports
from hub_config.setup.machine import Finding, Level, judge, read_facts
from hub_config.setup.node import OLDEST_NODE, node_version
from hub_config.state import check_version, unreachable_for_users
from hub_config.store_server import stored_bytes
from snapshot import cgroups
from snapshot.filling import window

GIB = 2**30
LITTLE_SPACE = 2 * GIB


@dataclass(frozen=True, slots=True)
class Report:
    """All findings, and everything used outside the checkout and the state folder."""

    findings: tuple[Finding, ...]
    uses: tuple[Use, ...]

    @property
    def is_well(self) -> bool:
        """Whether nothing keeps Hubernate from working."""
        return all(finding.level is not Level.STOP for finding in self.findings)


def examine(folder: StateFolder) -> Report:
    """Look at everything; changes nothing, needs no root (but sees more with it)."""
    facts = read_facts(folder.root)
    machine = judge(facts, downloads_bytes=0, runs_sessions=True)
    settings = _settings(folder)
    checks: tuple[Callable[[], Finding], ...] = (
        lambda: _freezing(folder),
        lambda: _limits(),
        lambda: _arriving_memory(),
        lambda: _gpus(settings),
        lambda: _node(folder),
        lambda: _browser(),
        lambda: _state(folder),
        lambda: _ports(folder, settings),
        lambda: _programs(folder),
        lambda: _store(folder, settings),
        lambda: _space(folder),
        lambda: key_finding(folder.keys),
    )
    # The kernel's and root's part of "freezable" is in the answer to whether suspending works.
    kept = tuple(finding for finding in machine if finding.subject != "freezable")
    return Report(kept + tuple(check() for check in checks), FOOTPRINT)


def print_report(report: Report, *, as_json: bool) -> None:
    """For people or for programs."""
    if as_json:
        print(json.dumps(asdict(report) | {"is_well": report.is_well}, indent=2))
        return
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False, markup=False)
    console.print(_findings_table(report.findings))
    console.print(_uses_table(report.uses))


def _findings_table(findings: tuple[Finding, ...]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("", "what", "found", "what to do"):
        table.add_column(heading, overflow="fold")
    styles = {Level.OK: "green", Level.WARN: "yellow", Level.STOP: "bold red"}
    for finding in findings:
        mark = Text(finding.level.value, style=styles[finding.level])
        table.add_row(mark, finding.subject, Text(finding.text), Text(finding.remedy))
    return table


def _uses_table(uses: tuple[Use, ...]) -> Table:
    title = "used outside the checkout and the state folder"
    table = Table(box=None, pad_edge=False, header_style="bold", title=title, title_justify="left")
    for heading in ("what", "what for", "how to undo"):
        table.add_column(heading, overflow="fold")
    for use in uses:
        table.add_row(Text(use.what), Text(use.purpose), Text(use.undo))
    return table


def _settings(folder: StateFolder) -> LocalSettings | None:
    try:
        return existing_settings(folder)
    except (PermissionError, ValueError):
        return None


def _freezing(folder: StateFolder) -> Finding:
    reason = why_not_freezable(folder)
    if not reason:
        return Finding("suspend", Level.OK, "sessions can be suspended and resumed here")
    text = f"sessions cannot be suspended here. {reason}"
    return Finding("suspend", Level.WARN, text, "Start as root on x86_64 Debian 12 or 13: make up")


def _limits() -> Finding:
    reason = cgroups.why_not()
    if not reason:
        return Finding("limits", Level.OK, "memory and processors of a profile are kept to")
    text = f"sessions may use more memory and processors than their profile says. {reason}"
    return Finding("limits", Level.WARN, text, "Start as root, with control groups writable.")


def _arriving_memory() -> Finding:
    if window.is_possible():
        return Finding("resumes", Level.OK, "sessions run before all of their memory is there")
    text = "sessions come back only once all of their memory is there"
    remedy = (
        f"Root with {window.SETTING} writable, on a kernel with userfaultfd, brings them sooner."
    )
    return Finding("resumes", Level.WARN, text, remedy)


def _gpus(settings: LocalSettings | None) -> Finding:
    real = read_real_gpus()
    if real.problem:
        remedy = "Check the driver with nvidia-smi; a reboot after a driver update often helps."
        return Finding("GPUs", Level.WARN, f"the driver does not answer: {real.problem}", remedy)
    if real.models:
        return Finding("GPUs", Level.OK, ", ".join(real.models))
    count = settings.virtual_gpus if settings else 0
    text = f"no GPU here; {count} virtual" if count else "no GPU here"
    return Finding("GPUs", Level.OK, text, "hubernate up --gpus N makes virtual ones (files).")


def _node(folder: StateFolder) -> Finding:
    node = folder.node()
    version = node_version(node) if node else 0
    if version >= OLDEST_NODE and (folder.proxy / "node_modules").exists():
        return Finding("proxy", Level.OK, f"Node.js {version} at {node}")
    text = f"Node.js {version or 'not found'}; {OLDEST_NODE} or newer and our proxy are needed"
    return Finding("proxy", Level.STOP, text, "make up brings both")


def _browser() -> Finding:
    found = shutil.which("chromium")
    if found:
        return Finding("browser", Level.OK, f"{found} (only for tests)")
    return Finding("browser", Level.OK, "no Chromium; only tests need it, and make test brings it")


def _state(folder: StateFolder) -> Finding:
    if not folder.root.exists():
        return Finding("state folder", Level.OK, f"{folder.root} does not exist yet")
    try:
        check_version(folder)
    except UpRefused as error:
        return Finding("state folder", Level.STOP, error.message, error.remedy)
    needed = (folder.venv / "bin", folder.run)
    blocked = next(filter(None, map(unreachable_for_users, needed)), None)
    if blocked is not None:
        remedy = "Choose a state folder outside home folders with HUBERNATE_STATE."
        return Finding(
            "state folder", Level.STOP, f"session users cannot pass through {blocked}", remedy
        )
    return Finding("state folder", Level.OK, f"{folder.root}, layout {LAYOUT_VERSION}")


def _ports(folder: StateFolder, settings: LocalSettings | None) -> Finding:
    ports = settings.ports if settings else Ports()
    ours = own_pids(folder) if os.access(folder.run, os.R_OK) else set()
    strangers = [holder for holder in taken(ports) if holder.pid is None or holder.pid not in ours]
    span = f"{ports.public} to {ports.store}"
    if not strangers:
        return Finding("ports", Level.OK, f"{span} are free or ours")
    remedy = f"End that program, or choose others: hubernate up --port {ports.public + 100}"
    return Finding("ports", Level.STOP, " ".join(map(str, strangers)), remedy)


def _programs(folder: StateFolder) -> Finding:
    try:
        records = read_records(folder.children_file)
    except PermissionError:
        return Finding("programs", Level.OK, "only root can see them")
    alive = [f"{name} (PID {record.pid})" for name, record in records.items() if record.is_alive()]
    dead = [name for name, record in records.items() if not record.is_alive()]
    if not alive:
        return Finding("programs", Level.OK, "nothing runs", "make up starts it")
    if dead:
        text = f"not running: {', '.join(dead)}"
        remedy = f"hubernate up starts them again; their logs are in {folder.logs}"
        return Finding("programs", Level.WARN, text, remedy)
    return Finding("programs", Level.OK, ", ".join(alive))


def _store(folder: StateFolder, settings: LocalSettings | None) -> Finding:
    if settings is None or not os.access(folder.store, os.R_OK):
        return Finding("store", Level.OK, "not there yet, or not visible without root")
    size = f"{stored_bytes(folder.store) / GIB:.2f} GiB in {folder.store}"
    try:
        anonymous = httpx.get(settings.store_url, timeout=3.0).status_code
    except httpx.HTTPError:
        return Finding("store", Level.OK, f"{size}; its server is not running")
    if anonymous < 400:
        return Finding(
            "store",
            Level.STOP,
            f"the server on port {settings.ports.store} answers without a key.",
            "hubernate down; what listens there is not Hubernate's store.",
        )
    return Finding("store", Level.OK, f"{size}; the server refuses unsigned requests")


def _space(folder: StateFolder) -> Finding:
    existing = next(path for path in (folder.root, *folder.root.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    text = f"{free / GIB:.1f} GiB free for snapshots"
    if free > LITTLE_SPACE:
        return Finding("space", Level.OK, text)
    remedy = "Free space, or remove snapshots: hubernate snapshots gc"
    return Finding("space", Level.WARN, f"{text}: a suspend may be refused.", remedy)
