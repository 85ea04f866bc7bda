"""What a person sees while `hubernate up` runs: one live page in a terminal, lines elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from dataclasses import dataclass, field

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from hub_config.children import Children
from hub_config.secrets_store import SecretFiles
from hub_config.settings import LocalSettings
from scheduler_bridge.client import SchedulerClient
from scheduler_bridge.errors import SchedulerError
from scheduler_bridge.model.phases import Desired, Kind, Phase
from scheduler_bridge.model.workload import Event, FleetView, Workload

log = logging.getLogger(__name__)

REFRESH_SECONDS = 1.0
SHOWN_EVENTS = 8


@dataclass(slots=True)
class View:
    """What is shown, as last heard. `silence` says why it may be old."""

    workloads: tuple[Workload, ...] = ()
    fleet: FleetView | None = None
    events: deque[Event] = field(default_factory=lambda: deque(maxlen=SHOWN_EVENTS))
    silence: str = ""


def log_in_lines(settings: LocalSettings, secret_files: SecretFiles) -> list[str]:
    """Where to go and who to be; the same in both forms."""
    users = ", ".join(settings.users)
    return [
        f"JupyterHub: {settings.public_url}",
        f"log in as {users} with the password {secret_files.demo_password()}",
        f"administrator: {', '.join(settings.admins)} with the password "
        f"{secret_files.admin_password()} (both for this machine only)",
    ]


class Screen:
    """Asks the scheduler every second and draws. Owns its tasks while `show` runs."""

    def __init__(
        self, settings: LocalSettings, secret_files: SecretFiles, children: Children
    ) -> None:
        self._settings, self._secret_files, self._children = settings, secret_files, children
        self._view = View()

    async def show(self, until: asyncio.Event) -> None:
        """Draw until the event is set."""
        token = self._secret_files.service_token("admin")
        scheduler = SchedulerClient(self._settings.scheduler_url, token)
        listening = asyncio.create_task(self._listen(scheduler), name="screen events")
        try:
            with Live(self.page(), console=Console(), auto_refresh=False, screen=True) as live:
                while not until.is_set():
                    await self._look(scheduler)
                    live.update(self.page(), refresh=True)
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(until.wait(), REFRESH_SECONDS)
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)
            await scheduler.aclose()

    async def _look(self, scheduler: SchedulerClient) -> None:
        try:
            async with asyncio.timeout(5):
                self._view.workloads = await scheduler.list()
                self._view.fleet = await scheduler.fleet()
            self._view.silence = ""
        except (SchedulerError, TimeoutError) as error:
            self._view.silence = f"the scheduler does not answer: {error or 'no answer in 5 s'}"

    async def _listen(self, scheduler: SchedulerClient) -> None:
        last = 0
        while True:
            try:
                async for event in scheduler.events(after=last):
                    last = event.id
                    self._view.events.append(event)
            except SchedulerError as error:
                self._view.silence = str(error)
            await asyncio.sleep(REFRESH_SECONDS)

    def page(self, now: float | None = None) -> Group:
        """The whole page from what is known (UNIX seconds)."""
        now = time.time() if now is None else now
        lines = log_in_lines(self._settings, self._secret_files)
        parts: list[RenderableType] = [Panel("\n".join(lines), title="Hubernate")]
        parts.append(self._programs())
        parts += [sessions_table(self._view.workloads, now), jobs_table(self._view.workloads, now)]
        if self._view.fleet is not None:
            parts.append(gpus_text(self._view.fleet, self._view.workloads))
            parts.append(pauses_text(self._view.fleet, now))
        parts.append(events_text(self._view.events))
        if self._view.silence:
            parts.append(Text(self._view.silence, style="red"))
        parts.append(Text("Ctrl-C suspends all sessions and ends", style="dim"))
        return Group(*parts)

    def _programs(self) -> Text:
        text = Text()
        for program in ("store", "scheduler", "hub", "reclaimer"):
            record = self._children.record(program)
            is_up = record is not None and record.is_alive()
            restarts = self._children.restarts.get(program, 0)
            note = f" (restarted {restarts}x)" if restarts else ""
            text.append(f" {program}{note} ", style="green" if is_up else "red")
        return text


def sessions_table(workloads: tuple[Workload, ...], now: float) -> Table:
    """Sessions with the time until they are suspended."""
    table = _table("sessions", ("user/server", "phase", "since", "GPUs", "idle", "note"))
    for work in workloads:
        if work.spec.kind is Kind.SESSION:
            server = f"{work.spec.user}/{work.spec.server or 'default'}"
            since = seconds_text(now - work.phase_since)
            table.add_row(
                server, work.phase.value, since, devices(work), idle_text(work, now), note(work)
            )
    return table


def jobs_table(workloads: tuple[Workload, ...], now: float) -> Table:
    """Jobs, and sessions that wait for a GPU."""
    table = _table("jobs and queue", ("name", "user", "phase", "since", "GPUs", "note"))
    for work in workloads:
        if work.spec.kind is Kind.JOB or work.phase is Phase.QUEUED:
            since = seconds_text(now - work.phase_since)
            row = (work.spec.name, work.spec.user, work.phase.value, since)
            table.add_row(*row, devices(work), note(work))
    return table


def _table(title: str, headings: tuple[str, ...]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table


def idle_text(work: Workload, now: float) -> str:
    """`busy`, or how long it has been idle and when it is suspended."""
    if work.phase is not Phase.RUNNING:
        return ""
    if work.idleness.since is None:
        return work.idleness.reason or "busy"
    idle = seconds_text(now - work.idleness.since)
    if work.idleness.suspend_at is None:
        return f"for {idle}"
    return f"for {idle}, suspended in {seconds_text(max(0.0, work.idleness.suspend_at - now))}"


def note(work: Workload) -> str:
    """What is worth saying about it now."""
    if work.phase is Phase.QUEUED:
        position = f"number {work.position}: " if work.position else ""
        return position + work.wait_reason
    return work.last_error or (work.desired_reason if work.desired is not Desired.RUNNING else "")


def devices(work: Workload) -> str:
    """The devices of the lease, else how many it asks for."""
    if work.lease is None:
        return str(work.spec.gpus * work.spec.nodes)
    return ", ".join(str(gpu.index) for gpu in work.lease.gpus) or "none"


def gpus_text(fleet: FleetView, workloads: tuple[Workload, ...]) -> Text:
    """One word per GPU: who holds it, and whether it is virtual."""
    names = {str(work.id): work.spec.name or work.spec.user for work in workloads}
    text = Text("GPUs ")
    for gpu in (gpu for node in fleet.nodes for gpu in node.gpus):
        holder = fleet.holders.get(gpu.uuid)
        kind = "virtual " if gpu.virtual else ""
        who = names.get(holder, holder) if holder else "free"
        text.append(f" [{kind}{gpu.index}: {who}] ", style="yellow" if holder else "green")
    return text


def pauses_text(fleet: FleetView, now: float) -> Text:
    """The red button, while it is pressed."""
    lines = [
        f"PAUSED: {pause.scope} for another {seconds_text(pause.until - now)} by {pause.actor}: "
        f"{pause.reason}"
        for pause in fleet.pauses
        if pause.until > now
    ]
    return Text("\n".join(lines), style="bold red")


def events_text(events: deque[Event]) -> Text:
    """The latest events, oldest first."""
    return Text("\n".join(event_line(event) for event in events), style="dim")


def event_line(event: Event) -> str:
    """One event for a person."""
    at = time.strftime("%H:%M:%S", time.localtime(event.at))
    who = f"{event.user} {event.workload_id}".strip()
    return f"{at}  {who}  {event.source or '-'} → {event.target or event.kind}  {event.cause}"


async def follow_events(settings: LocalSettings, token: str, until: asyncio.Event) -> None:
    """Where there is no terminal: one line per event from now on, until the event is set."""
    scheduler = SchedulerClient(settings.scheduler_url, token)
    following = asyncio.create_task(_print_events(scheduler, time.time()), name="event lines")
    try:
        await until.wait()
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await scheduler.aclose()


async def _print_events(scheduler: SchedulerClient, begun: float) -> None:
    last = 0
    while True:
        try:
            async for event in scheduler.events(after=last):
                last = event.id
                if event.at >= begun:
                    print(event_line(event), flush=True)
        except SchedulerError as error:
            log.debug("events are not heard for a moment: %s", error)
        await asyncio.sleep(REFRESH_SECONDS)


def seconds_text(seconds: float) -> str:
    """`42s`, `3m10s`, `2h05m`."""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02}m"
