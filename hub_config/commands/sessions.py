"""`sessions list`, `sessions show`, `suspend`, `resume`."""

from __future__ import annotations

import time
from typing import Annotated, Final

import typer

from hub_config.commands.check import check
from hub_config.commands.connection import Access, ask
from hub_config.commands.errors import CommandError
from hub_config.commands.force_stop import force_stop
from hub_config.commands.forks import ask_hub_to_fork
from hub_config.commands.names import display_name, resolve
from hub_config.commands.output import (
    ago,
    console,
    gpus_asked,
    moment,
    phase_text,
    place,
    print_json,
    print_table,
    remark,
)
from hub_config.commands.timeline import Step, time_in_phases, timeline
from reclaimer.durations import format_duration
from scheduler_bridge.model.phases import TERMINAL, Desired, Kind, Phase
from scheduler_bridge.model.workload import Event, Workload
from scheduler_bridge.plugin import SchedulerPlugin
from spawner.badge import outlook

WAIT_SECONDS: Final = 1800.0
"""Longest that `suspend` and `resume` watch; what was asked goes on without them."""

POLL_SECONDS: Final = 20.0

Name = Annotated[str, typer.Argument(help="user, user/server, or the id or its beginning")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
NewName = Annotated[
    str, typer.Argument(help="With --fork: the new server's name. Left out, one is chosen.")
]
Fork = Annotated[bool, typer.Option("--fork", help="A second session from the same snapshot.")]
Wait = Annotated[bool, typer.Option(help="Stay until it is done.")]

app = typer.Typer(help="Interactive sessions.", no_args_is_help=True)


def register(parent: typer.Typer) -> None:
    """Add the commands."""
    app.command("check")(check)
    app.command("force-stop")(force_stop)
    parent.add_typer(app, name="sessions")
    parent.command()(suspend)
    parent.command()(resume)


@app.command("list")
def list_sessions(
    everything: Annotated[bool, typer.Option("--all", help="Also those that have ended.")] = False,
    as_json: AsJson = False,
) -> None:
    """List sessions, running and suspended."""
    found = ask(lambda scheduler, _: scheduler.list(kind=Kind.SESSION, live=not everything))
    if as_json:
        print_json(found)
        return
    now = time.time()
    print_table(
        ("SESSION", "PHASE", "FOR", "GPUS", "WHERE", "IDLE", "ID", ""),
        (_row(workload, now) for workload in found),
        empty="No sessions.",
    )


def _row(workload: Workload, now: float) -> tuple[str, ...]:
    return (
        display_name(workload),
        phase_text(workload),
        ago(workload.phase_since, now),
        gpus_asked(workload),
        place(workload),
        ago(workload.idleness.since, now) if workload.phase is Phase.RUNNING else "",
        workload.id,
        remark(workload, now),
    )


@app.command("show")
def show(name: Name, as_json: AsJson = False) -> None:
    """Print everything that happened to one session (or job), and what to do about errors."""
    workload, events = ask(lambda scheduler, _: _find_with_history(scheduler, name))
    now = time.time()
    if as_json:
        spent = time_in_phases(events, now)
        print_json({"workload": workload, "history": events, "seconds_in_phases": spent})
        return
    print_facts(workload, now)
    print_timeline(timeline(events))
    _print_totals(time_in_phases(events, now))


async def _find_with_history(
    scheduler: SchedulerPlugin, name: str
) -> tuple[Workload, tuple[Event, ...]]:
    workload = resolve(name, await scheduler.list(live=False))
    return workload, await scheduler.history(workload.id)


def print_facts(workload: Workload, now: float) -> None:
    """One line per fact; those that say nothing are left out."""
    idle = workload.idleness
    snapshot = workload.snapshot
    facts = {
        str(workload.spec.kind): f"{display_name(workload)} of {workload.spec.user}",
        "id": workload.id,
        "phase": f"{phase_text(workload)}, for {ago(workload.phase_since, now)}",
        "waits": workload.wait_reason if workload.phase is Phase.QUEUED else "",
        "GPUs": f"{gpus_asked(workload)} {place(workload)}".strip(),
        "profile": workload.spec.profile,
        "team": workload.spec.team,
        "idle": _idle_text(workload, now) if workload.phase is Phase.RUNNING else "",
        "idle because": idle.reason if workload.phase is Phase.RUNNING else "",
        "suspend": _outlook_text(workload, now),
        "snapshot": f"{snapshot.key} of {moment(snapshot.created_at)}" if snapshot else "",
        "kept until": _kept_text(workload),
        "exit code": "" if workload.exit_code is None else str(workload.exit_code),
        "last error": workload.last_error,
        "remedy": workload.remedy,
        "log": workload.log_path,
    }
    for label, value in facts.items():
        if value:
            console().print(f"{label:<13} {value}", soft_wrap=True)


def _kept_text(workload: Workload) -> str:
    """When its memory is deleted, and by which rule."""
    expiry = workload.deletion
    return f"{moment(expiry.at)}: {expiry.reason} (rule {expiry.rule})" if expiry else ""


def _outlook_text(workload: Workload, now: float) -> str:
    """Whether it could be suspended, with all reasons why not, one a line."""
    if workload.phase is not Phase.RUNNING or workload.signals_at is None:
        return ""
    found = outlook(workload.signals, age_seconds=now - workload.signals_at)
    return "\n              ".join((found.headline, *found.reasons))


def _idle_text(workload: Workload, now: float) -> str:
    idle = workload.idleness
    if idle.since is None:
        return "no, or not known"
    text = f"for {ago(idle.since, now)}"
    if idle.suspend_at is not None:
        text += f", suspends in {format_duration(idle.suspend_at - now)}"
    return text


def print_timeline(steps: tuple[Step, ...]) -> None:
    """One line per event."""
    typer.echo("")
    print_table(
        ("WHEN", "WHAT", "LASTED", "BY", "WHY"),
        ((moment(s.at), _what(s), _lasted(s.seconds), s.actor, s.cause) for s in steps),
        empty="Nothing has happened to it yet.",
    )


def _what(step: Step) -> str:
    return step.what if step.times == 1 else f"{step.what}, {step.times} times"


def _lasted(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{seconds:.2f}s" if seconds < 10 else format_duration(seconds)


def _print_totals(spent: dict[str, float]) -> None:
    if spent:
        listed = ", ".join(f"{phase} {_lasted(seconds)}" for phase, seconds in spent.items())
        typer.echo(f"\nIn all: {listed}")


def suspend(
    name: Name,
    reason: Annotated[str, typer.Option(help="Shown to its user.")] = "asked on the command line",
    wait: Wait = True,
    as_json: AsJson = False,
) -> None:
    """Freeze a session with its memory and give its GPUs back."""
    workload = ask(lambda scheduler, access: _suspend(scheduler, access, name, reason, wait))
    _print_result(workload, as_json)


async def _suspend(
    scheduler: SchedulerPlugin, access: Access, name: str, reason: str, wait: bool
) -> Workload:
    workload = await _session(scheduler, name)
    if workload.phase in (Phase.SUSPENDED, Phase.PARKED):
        return workload
    asked = await scheduler.desire(
        workload.id, Desired.SUSPENDED, actor=access.actor, reason=reason
    )
    if not wait:
        return asked
    ended = await _watch(scheduler, asked, until=(Phase.SUSPENDED, Phase.PARKED))
    if ended.phase not in (Phase.SUSPENDED, Phase.PARKED):
        raise CommandError(
            f"{display_name(ended)} was not suspended and is {ended.phase}: {_why_not(ended)}",
            remedy=ended.remedy,
        )
    return ended


def resume(
    name: Name,
    new_name: NewName = "",
    fork: Fork = False,
    wait: Wait = True,
    as_json: AsJson = False,
) -> None:
    """Bring a suspended session back as it was. With --fork, as one more session of its owner; the
    first one stays suspended."""
    if new_name and not fork:
        raise CommandError("a new name is for --fork.", remedy="Add --fork, or leave it out.")
    if fork:
        workload = ask(lambda scheduler, access: _fork(scheduler, access, name, new_name, wait))
    else:
        workload = ask(lambda scheduler, access: _resume(scheduler, access, name, wait))
    _print_result(workload, as_json)


async def _fork(
    scheduler: SchedulerPlugin, access: Access, name: str, new_name: str, wait: bool
) -> Workload:
    source = await _session(scheduler, name)
    made = await scheduler.get(await ask_hub_to_fork(access, source, new_name))
    return await _until_resumed(scheduler, made) if wait else made


async def _resume(scheduler: SchedulerPlugin, access: Access, name: str, wait: bool) -> Workload:
    workload = await _session(scheduler, name)
    asked = await scheduler.desire(
        workload.id, Desired.RUNNING, actor=access.actor, reason="resume asked on the command line"
    )
    return await _until_resumed(scheduler, asked) if wait else asked


async def _until_resumed(scheduler: SchedulerPlugin, asked: Workload) -> Workload:
    ended = await _watch(scheduler, asked, until=(Phase.RUNNING,))
    if ended.phase is not Phase.RUNNING:
        raise CommandError(
            f"{display_name(ended)} was not resumed and is {ended.phase}: {_why_not(ended)}",
            remedy=ended.remedy,
        )
    return ended


def _why_not(workload: Workload) -> str:
    """One sentence about a wish that was not fulfilled."""
    reason = workload.last_error or workload.desired_reason or "the wish was withdrawn"
    return f"{reason.rstrip('.')}."


async def _session(scheduler: SchedulerPlugin, name: str) -> Workload:
    workload = resolve(name, await scheduler.list(kind=Kind.SESSION, live=False))
    if workload.phase in TERMINAL:
        raise CommandError(
            f"session {display_name(workload)} has ended ({workload.phase}).",
            remedy="Start a new one on the Hub's page.",
        )
    return workload


async def _watch(
    scheduler: SchedulerPlugin, workload: Workload, *, until: tuple[Phase, ...]
) -> Workload:
    """Follow it until one of the phases, its end, or until the wish is no longer there."""
    # A fork is there before the Hub, which starts it, has said that it should run.
    wanted = Desired.RUNNING if Phase.RUNNING in until else workload.desired
    wished = workload.desired is wanted
    deadline = time.monotonic() + WAIT_SECONDS
    told = ""
    while workload.phase not in until and workload.phase not in TERMINAL:
        wished = wished or workload.desired is wanted
        if wished and workload.desired is not wanted:
            return workload
        if time.monotonic() > deadline:
            raise CommandError(
                f"{display_name(workload)} is still {workload.phase} after "
                f"{format_duration(WAIT_SECONDS)}.",
                remedy=f"It goes on; see `hubernate sessions show {workload.id}`.",
            )
        told = _tell(workload, told)
        workload = await scheduler.wait(workload.id, version=workload.version, timeout=POLL_SECONDS)
    return workload


def _tell(workload: Workload, told: str) -> str:
    """Say on standard error where it stands, once for each change."""
    text = phase_text(workload)
    if workload.wait_reason:
        text += f": {workload.wait_reason}"
    if text != told:
        typer.echo(f"{display_name(workload)}: {text}", err=True)
    return text


def _print_result(workload: Workload, as_json: bool) -> None:
    if as_json:
        print_json(workload)
    else:
        typer.echo(f"{display_name(workload)} is {phase_text(workload)} ({workload.id})")
