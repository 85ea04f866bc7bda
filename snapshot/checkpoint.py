"""Freezing a tree: each step, and what undoes it.

inspect -> end the network -> dump (CRIU holds the tree) -> store -> manifest: **the commit** -> CRIU
ends the tree -> proof that it is gone. Before the commit every failure lets the tree go on as it
was; after it the snapshot is the truth and the tree must end.
"""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from snapshot import criu, images, network, pageserver, pins, proctree, record, sandbox
from snapshot.dump import Dump, DumpError, repair
from snapshot.errors import SnapshotError
from snapshot.model import Process, SandboxSpec, SnapshotKey, Stored, Tools
from snapshot.plan import Mount
from snapshot.ports import Disconnect, OnStep, Repository, SnapshotWriter
from snapshot.refusals import CannotFreezeError, FreezeFailedError
from snapshot.scratch import Scratch, scratch

HOLD_SECONDS = 300.0
_REMAPS = "remap-fpath.img"
_FILES = "files.img"

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Steps:
    """Measures steps and tells somebody."""

    tell: OnStep
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """A step that is told only if it succeeds."""
        begun = time.monotonic()
        yield
        self.seconds[name] = round(time.monotonic() - begun, 4)
        self.tell(name, self.seconds[name])


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One freeze of one tree."""

    tools: Tools
    repository: Repository
    spec: SandboxSpec
    process: Process
    key: SnapshotKey
    steps: Steps

    async def run(self, facts: dict[str, Any], disconnect: Disconnect) -> Stored:
        """Freeze. Raises `CannotFreezeError` (nothing was touched) or `FreezeFailedError` (the
        tree goes on, disconnected)."""
        with self.steps.step("inspect"):
            if blockers := await asyncio.to_thread(proctree.inspect, self.process):
                raise CannotFreezeError(blockers)
        try:
            mounts = sandbox.recorded_mounts(self.spec)
            with self.steps.step("disconnect"):
                await disconnect()
                closed = await network.destroy_outside_connections(self.process, self.tools)
            return await self._dump_and_commit(facts, mounts, closed)
        except DumpError as error:
            if error.died:
                await self._repair(mounts)
            raise FreezeFailedError(str(error)) from error
        except SnapshotError as error:
            raise FreezeFailedError(error.message, remedy=error.remedy) from error
        except TimeoutError as error:
            raise FreezeFailedError("Storing the session took too long.") from error
        except (network.NetworkError, sandbox.SandboxError, OSError, ValueError) as error:
            raise FreezeFailedError(str(error)) from error

    async def _dump_and_commit(
        self, facts: dict[str, Any], mounts: tuple[Mount, ...], closed: tuple[str, ...]
    ) -> Stored:
        folder = self._pin_folder()
        committed = False
        try:
            with scratch() as images_folder:
                writer = await asyncio.to_thread(self.repository.writer, self.key, facts)
                with writer as writing:
                    async with Dump(self.tools, self.spec, self.process, mounts) as dump:
                        with self.steps.step("dump"):
                            await dump.start(images_folder)
                            received = await dump.until_held(writing.add_pages, HOLD_SECONDS)
                        with self.steps.step("store"):
                            async with asyncio.timeout(HOLD_SECONDS):
                                stored = await asyncio.to_thread(
                                    self._store, writing, images_folder, received, mounts, closed
                                )
                        committed = True
                        with self.steps.step("end"):
                            await self._end(dump)
            await asyncio.to_thread(pins.forget_others, self.spec, folder.name)
            return stored
        finally:
            if not committed:
                await asyncio.to_thread(shutil.rmtree, folder, True)

    def _store(
        self,
        writer: SnapshotWriter,
        scratch_folder: Scratch,
        received: pageserver.Received,
        mounts: tuple[Mount, ...],
        closed: tuple[str, ...],
    ) -> Stored:
        """Everything but the pages, then the commit. The tree is held."""
        for number, (memory, entries) in enumerate(received.maps.items(), start=1):
            pagemap = images.Pagemap(number, tuple(entries))
            writer.add_file(images.pagemap_name(*memory), images.write_pagemap(pagemap))
        names = scratch_folder.file_names()
        for name in names:
            writer.add_file(name, scratch_folder.read(name))
        held = self._hold_files(scratch_folder, names, mounts)
        space = pins.Namespace(self.spec, mounts)
        for pin in held:
            if pin.held == "copy":
                writer.add_file(record.copy_name(pin), pins.read(pin, space))
        about = record.TreeRecord(
            criu=_criu_version(self.spec),
            inner_root=self.spec.inner_root,
            mounts=mounts,
            pin_folder=self._pin_folder().name,
            pins=held,
            devices=tuple(os.path.basename(path) for path in self.spec.devices),
            closed=closed,
            constraints=constraints(),
            timings=dict(self.steps.seconds),
        )
        return writer.commit(record.to_extra(about))

    def _hold_files(
        self, scratch_folder: Scratch, names: list[str], mounts: tuple[Mount, ...]
    ) -> tuple[pins.Pin, ...]:
        files = images.regular_files(scratch_folder.read(_FILES))
        gone: frozenset[int] = frozenset()
        if _REMAPS in names:
            gone = images.remapped_ids(scratch_folder.read(_REMAPS))
        descriptors = [name for name in names if name.startswith("fdinfo-")]
        opened = frozenset[int]().union(
            *(images.open_ids(scratch_folder.read(name)) for name in descriptors)
        )
        wanted = [file for file in files if file.id not in gone]
        space = pins.Namespace(self.spec, mounts)
        return pins.hold(wanted, space, self._pin_folder(), open_files=opened)

    def _pin_folder(self) -> Path:
        return Path(self.spec.directory, "pins", f"{self.key.epoch}-{self.key.sequence}")

    async def _end(self, dump: Dump) -> None:
        """CRIU ends the tree. If CRIU died instead, we do: the snapshot is what counts now."""
        try:
            if not await dump.commit():
                _log.warning("CRIU did not end the tree after the commit; ending it")
        finally:
            await asyncio.shield(sandbox.terminate(self.process, 0))

    async def _repair(self, mounts: tuple[Mount, ...]) -> None:
        try:
            await repair(self.tools, self.spec, self.process, mounts)
        except (DumpError, TimeoutError, OSError):
            _log.exception("the tree goes on, but its inner connections may be stuck")


def constraints() -> dict[str, str]:
    """Facts of this machine that a thaw elsewhere must match."""
    return {"architecture": platform.machine(), "kernel": platform.release()}


def _criu_version(spec: SandboxSpec) -> str:
    """The version that wrote the images, from its log."""
    return criu.logged_version(criu.read_log(Path(spec.directory, criu.DUMP_LOG)))
