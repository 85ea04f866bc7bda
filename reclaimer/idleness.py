"""Telemetry samples -> `Busy`, `IdleSince` or `Unknown` (pure).

The rules, in the order in which they are asked:
1. Nothing fresh is known            -> Unknown. Missing telemetry is never idle.
2. A kernel runs a cell              -> Busy, whatever tabs are open or closed.
3. A terminal runs a foreground job  -> Busy; a shell at its prompt is not activity.
4. A field is missing                -> Unknown, naming the field.
5. The tree uses CPU over a window   -> Busy; a counter that went back -> Unknown.
6. Otherwise idle since the last thing that happened: a cell ended, something was typed, CPU was
   used, the session started or came back. Open connections never count.

Texts in `why` and `because` do not change while their cause stays the same: they are published, and
every change of them is written down.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

CLOCK_SLACK_SECONDS: Final = 5.0
"""How far a sample may be dated into the future before its clock is not believed."""

_IN_FRONT: Final = {True: "runs a program", False: "at its prompt", None: "unknown"}

_LONGEST_SPAN: Final = 3.0
"""CPU use is averaged over at most this many windows (but over two samples that are both fresh in
any case); over a longer gap, a burst would drown."""

KERNELS, TERMINALS, INPUT, CPU = "kernels", "terminals", "input", "cpu"
SIGNALS: Final = (KERNELS, TERMINALS, INPUT, CPU)
"""Names of the signals that a policy may count. Kernels are always counted."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """`state` is busy, idle or anything else (unknown); times are UNIX seconds."""

    id: str
    name: str = ""
    state: str = "unknown"
    since: float | None = None
    last_activity: float | None = None


@dataclass(frozen=True, slots=True)
class Terminal:
    """`foreground` True: a program other than the shell is in front; None: it is not known."""

    name: str
    foreground: bool | None = None
    last_activity: float | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """What was seen of a session at one moment (UNIX seconds). None means: not known.

    `last_input` 0.0 means that nothing was typed yet. `cpu_seconds` counts up over the whole tree.
    """

    at: float
    kernels: tuple[Kernel, ...] | None = None
    terminals: tuple[Terminal, ...] | None = None
    last_input: float | None = None
    cpu_seconds: float | None = None
    connections: int | None = None


@dataclass(frozen=True, slots=True)
class Watch:
    """How telemetry is read. Times in seconds; `cpu_cores` is the mean use that counts as work."""

    stale_after: float = 20.0
    cpu_cores: float = 0.1
    cpu_window: float = 30.0
    counted: frozenset[str] = frozenset(SIGNALS)


@dataclass(frozen=True, slots=True)
class Busy:
    """Somebody or something works."""

    why: str
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class IdleSince:
    """Nothing has happened since `since` (UNIX seconds); `because` names what happened last."""

    since: float
    because: str
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Unknown:
    """Nothing may be concluded."""

    why: str


Assessment = Busy | IdleSince | Unknown


@dataclass(frozen=True, slots=True)
class _Cpu:
    """Measured use; None where it is not counted, or where a problem kept it from being measured."""

    cores: float | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True, order=True)
class _Moment:
    at: float
    because: str = field(compare=False)


def assess(
    samples: Sequence[Sample],
    now: float,
    *,
    running_since: float,
    active_until: float = 0.0,
    watch: Watch = Watch(),
) -> Assessment:
    """Judge one session by its samples, oldest first.

    Samples from before `running_since` (start or last resume) say nothing about now and are left
    out. `active_until` is when the caller last knew it to be active: what it has forgotten since
    (a burst of CPU, a job in a terminal) still counts.
    """
    current = [sample for sample in samples if sample.at >= running_since]
    if not current:
        return Unknown("no telemetry has arrived since it started or came back")
    latest = current[-1]
    doubt = _freshness(latest, now, watch)
    if doubt:
        return Unknown(doubt)
    working = _working(latest, watch)
    if working:
        return Busy(working, _evidence(latest, None))
    gap = _missing(latest, watch)
    if gap:
        return Unknown(gap)
    cpu = _cpu_use(current, watch) if CPU in watch.counted else _Cpu()
    if cpu.problem:
        return Unknown(cpu.problem)
    if cpu.cores is not None and cpu.cores >= watch.cpu_cores:
        return Busy(f"its processes use {watch.cpu_cores:g} CPU or more", _evidence(latest, cpu))
    last = max(_moments(latest, watch, running_since, active_until))
    return IdleSince(min(last.at, now), last.because, _evidence(latest, cpu))


def _freshness(latest: Sample, now: float, watch: Watch) -> str:
    if latest.at > now + CLOCK_SLACK_SECONDS:
        return "its telemetry is dated in the future"
    if now - latest.at > watch.stale_after:
        return f"its telemetry stopped more than {watch.stale_after:g} s ago"
    return ""


def _working(latest: Sample, watch: Watch) -> str:
    for kernel in latest.kernels or ():
        if kernel.state == "busy":
            return f"kernel {_kernel_name(kernel)} is running a cell"
    if TERMINALS in watch.counted:
        for terminal in latest.terminals or ():
            if terminal.foreground:
                return f"terminal {terminal.name} runs a program"
    return ""


def _missing(latest: Sample, watch: Watch) -> str:
    """The first thing that a verdict needs and this sample does not say; empty if complete."""
    if latest.kernels is None:
        return "nothing is known of its kernels"
    for kernel in latest.kernels:
        if kernel.state != "idle":
            return f"the state of kernel {_kernel_name(kernel)} is not known"
        if kernel.since is None and kernel.last_activity is None:
            return f"kernel {_kernel_name(kernel)} does not say since when it is idle"
    if TERMINALS in watch.counted:
        if latest.terminals is None:
            return "nothing is known of its terminals"
        for terminal in latest.terminals:
            if terminal.foreground is None:
                return f"it is not known what runs in terminal {terminal.name}"
    if INPUT in watch.counted and latest.last_input is None:
        return "it is not known when something was last typed"
    if CPU in watch.counted and latest.cpu_seconds is None:
        return "the CPU time of its processes is not known"
    return ""


def _cpu_use(current: Sequence[Sample], watch: Watch) -> _Cpu:
    """Mean number of cores used over the window that ends with the latest sample."""
    known = [(s.at, s.cpu_seconds) for s in current if s.cpu_seconds is not None]
    end_at, end = known[-1]
    older = [index for index, (at, _) in enumerate(known) if at <= end_at - watch.cpu_window]
    if not older:
        return _Cpu(problem=f"its CPU use was not watched for {watch.cpu_window:g} s yet")
    window = known[older[-1] :]
    if any(after[1] < before[1] for before, after in pairwise(window)):
        return _Cpu(problem="the CPU time of its processes went backwards")
    start_at, start = window[0]
    if end_at - start_at > max(_LONGEST_SPAN * watch.cpu_window, watch.stale_after):
        return _Cpu(problem="its telemetry has a gap")
    return _Cpu(cores=(end - start) / (end_at - start_at))


def _moments(
    latest: Sample, watch: Watch, running_since: float, active_until: float
) -> list[_Moment]:
    moments = [
        _Moment(running_since, "it started or came back"),
        _Moment(active_until, "it was last seen at work"),
    ]
    for kernel in latest.kernels or ():
        at = max(kernel.since or 0.0, kernel.last_activity or 0.0)
        moments.append(_Moment(at, f"kernel {_kernel_name(kernel)} went quiet"))
    if TERMINALS in watch.counted:
        for terminal in latest.terminals or ():
            at = terminal.last_activity or 0.0
            moments.append(_Moment(at, f"terminal {terminal.name} went quiet"))
    if INPUT in watch.counted:
        moments.append(_Moment(latest.last_input or 0.0, "somebody last typed or clicked"))
    return moments


def _evidence(latest: Sample, cpu: _Cpu | None) -> tuple[str, ...]:
    """One line per signal, with the numbers of this moment."""
    lines = [f"kernel {_kernel_name(k)}: {k.state}" for k in latest.kernels or ()]
    lines += [f"terminal {t.name}: {_IN_FRONT[t.foreground]}" for t in latest.terminals or ()]
    if cpu is not None and cpu.cores is not None:
        lines.append(f"CPU: {cpu.cores:.2f} cores")
    if latest.connections is not None:
        lines.append(f"open connections: {latest.connections} (never counted)")
    return tuple(lines)


def _kernel_name(kernel: Kernel) -> str:
    return f"{kernel.name} ({kernel.id[:8]})" if kernel.name else kernel.id[:8]
