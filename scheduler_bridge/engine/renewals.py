"""Heartbeats: leases are renewed by them, and holders learn from the answer what is wanted.

A renewal is not written down. Every holder gets a whole lease time after a restart, which is longer than
any renewal that was lost could have given it, so the store would only hear what it need not know.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Final

from scheduler_bridge.engine import holders
from scheduler_bridge.engine.books import Books
from scheduler_bridge.engine.holders import Standing
from scheduler_bridge.engine.presence import Presence
from scheduler_bridge.engine.settings import Settings
from scheduler_bridge.model.phases import Desired, Phase
from scheduler_bridge.model.workload import Instruction, Report
from scheduler_bridge.store.base import LeaseRecord

REPEAT_AFTER_SECONDS: Final = 5.0


def renew_all(books: Books, settings: Settings) -> None:
    """After a restart: nobody could renew while we were away, and renewals before that are not known.
    Every holder gets a whole lease time. Call before anything judges by when a lease ends."""
    until = books.clock.now() + settings.lease_seconds
    for record in list(books.leases.values()):
        if record.lease.expires_at < until:
            lease = replace(record.lease, expires_at=until)
            books.leases[lease.id] = replace(record, lease=lease)
            workload = books.workloads.get(lease.workload_id)
            if workload is not None and workload.lease and workload.lease.id == lease.id:
                books.workloads[workload.id] = replace(workload, lease=lease)


class Renewals:
    """Keeps in memory what each holder was told."""

    def __init__(self, books: Books, settings: Settings, presence: Presence) -> None:
        self._books = books
        self._settings = settings
        self._presence = presence
        self._told: dict[str, tuple[Desired, float]] = {}

    async def beat(
        self, lease_id: str, credential: str, report: Report, *, wait: float
    ) -> Instruction:
        """Renew, and answer as soon as there is news, after `wait` seconds at the latest.
        Raises `NotFound`, `NotAllowed`."""
        loop = asyncio.get_running_loop()
        end = loop.time() + min(wait, self._settings.max_wait)
        record, standing = holders.identify(self._books, lease_id, credential)
        self._presence.hear(record, standing)
        if standing is Standing.CURRENT and report.epoch == record.lease.epoch:
            self._renew(record, report)
        while True:
            record, standing = holders.identify(self._books, lease_id, credential)
            if standing is not Standing.CURRENT or report.epoch != record.lease.epoch:
                return holders.revocation(record, self._books.clock.now())
            workload = self._books.get(record.lease.workload_id)
            news = self._is_news(lease_id, workload.desired, report.phase, loop.time())
            if news or not await self._books.bells.wait(workload.id, end - loop.time()):
                self._told[lease_id] = (workload.desired, loop.time())
                return holders.instruction(workload, record)

    def forget(self, lease_id: str) -> None:
        """The lease was given back."""
        self._told.pop(lease_id, None)

    def _is_news(self, lease_id: str, desired: Desired, phase: Phase, now: float) -> bool:
        """Whether to answer at once: there is something to do that the holder may not know. What it
        was told a moment ago is not repeated, or a busy holder would ask without end."""
        if not holders.differs(desired, phase):
            return False
        told, at = self._told.get(lease_id, (None, 0.0))
        return told is not desired or now - at >= REPEAT_AFTER_SECONDS

    def _renew(self, record: LeaseRecord, report: Report) -> None:
        """Times and telemetry stay in memory; the store hears where the holder's processes are."""
        now = self._books.clock.now()
        lease = replace(record.lease, expires_at=now + self._settings.lease_seconds)
        told = holders.with_handle(record, report.handle)
        workload = self._books.get(lease.workload_id)
        if report.signals:
            workload = replace(workload, signals=report.signals, signals_at=now)
        save = told.handle != record.handle
        self._books.observe(replace(workload, lease=lease), replace(told, lease=lease), save=save)
        if workload.phase is Phase.LOST:
            self._find_again(workload.id)

    def _find_again(self, workload_id: str) -> None:
        with self._books.draft() as draft:
            draft.move(
                draft.workload(workload_id),
                Phase.RUNNING,
                cause="its supervisor reports again",
                actor="scheduler",
            )
