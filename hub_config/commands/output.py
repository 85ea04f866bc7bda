"""Tables for people, JSON for programs."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import typer
from pydantic import TypeAdapter
from rich.console import Console
from rich.table import Table
from rich.text import Text

from reclaimer.durations import format_duration
from scheduler_bridge.model.phases import HOLDS_LEASE, Desired, Phase
from scheduler_bridge.model.workload import Gpu, Workload

_ANY: TypeAdapter[Any] = TypeAdapter(Any)
PIPE_WIDTH = 200
"""Columns where no terminal sets a limit, so that nothing is cut off in a file."""


def console() -> Console:
    """Where results go. Names from outside are never read as markup."""
    width = None if sys.stdout.isatty() else PIPE_WIDTH
    return Console(markup=False, highlight=False, emoji=False, width=width, soft_wrap=False)


def print_json(value: Any) -> None:
    """One indented JSON document of values of the model."""
    typer.echo(json.dumps(_ANY.dump_python(value, mode="json"), indent=2))


def print_table(headings: Sequence[str], rows: Iterable[Sequence[str]], *, empty: str) -> None:
    """A table without lines, or one sentence when there is nothing."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(heading, overflow="fold")
    count = 0
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
        count += 1
    if count:
        console().print(table)
    else:
        typer.echo(empty)


def moment(at: float | None) -> str:
    """Local date and time, without what goes without saying."""
    if at is None:
        return ""
    when = datetime.fromtimestamp(at)
    if when.date() == datetime.fromtimestamp(time.time()).date():
        return when.strftime("%H:%M:%S")
    return when.strftime("%Y-%m-%d %H:%M:%S")


def size(count: int) -> str:
    """Bytes as people read them: `0 B`, `12.3 MiB`."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def day(at: float) -> str:
    """The local date."""
    return datetime.fromtimestamp(at).strftime("%Y-%m-%d")


def ago(at: float | None, now: float) -> str:
    """How long ago, `` if unknown."""
    return "" if at is None else format_duration(now - at)


def gpus_asked(workload: Workload) -> str:
    """`2`, or `2 x 4` for a gang of four nodes with two each."""
    spec = workload.spec
    return f"{spec.gpus}" if spec.nodes == 1 else f"{spec.gpus} x {spec.nodes}"


def gpu_names(gpus: Iterable[Gpu]) -> str:
    """Devices with their node; virtual ones say so."""
    return ", ".join(f"{g.node}:{g.index}{' (virtual)' if g.virtual else ''}" for g in gpus)


def place(workload: Workload) -> str:
    """Where it runs, while it does."""
    lease = workload.lease
    if lease is None or workload.phase not in HOLDS_LEASE:
        return ""
    return gpu_names(lease.gpus) or lease.node


def phase_text(workload: Workload) -> str:
    """The phase, and what was asked for if that is still to come."""
    phase = str(workload.phase)
    if workload.phase is Phase.QUEUED and workload.position is not None:
        return f"{phase}, number {workload.position}"
    if workload.desired is Desired.SUSPENDED and workload.phase is Phase.RUNNING:
        return f"{phase}, suspend asked"
    return phase


def remark(workload: Workload, now: float) -> str:
    """The one sentence that says most about it now."""
    idleness = workload.idleness
    if workload.phase is Phase.QUEUED:
        return workload.wait_reason
    if workload.phase is Phase.RUNNING and idleness.suspend_at is not None:
        return f"suspends in {format_duration(idleness.suspend_at - now)}: {idleness.reason}"
    if workload.last_error:
        return f"{workload.last_error} {workload.remedy}".strip()
    if workload.deletion is not None:
        return f"memory is kept until {day(workload.deletion.at)}: {workload.deletion.reason}"
    return idleness.reason if workload.phase is Phase.RUNNING else ""
