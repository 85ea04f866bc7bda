"""Freezing a tree: each step, and what undoes it.

inspect -> GPU state to host memory -> end the network -> dump (CRIU holds the tree) -> store ->
manifest: **the commit** -> end the held tree -> proof that it is gone. Before the commit every
failure lets the tree go on as it was; after it the snapshot is the truth and the tree must end.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from snapshot import (
    criu,
    host_facts,
    images,
    layer,
    network,
    pageserver,
    pins,
    record,
    remaps,
    sandbox,
    skeleton,
    trial,
    watches,
)
from snapshot.dump import Dump, DumpError
from snapshot.errors import SnapshotError
from snapshot.filling.lazy import WORKING_SET_FILE
from snapshot.gpu import model as gpu_model
from snapshot.gpu.freezing import Taking
from snapshot.model import Process, SandboxSpec, SnapshotKey, Stored, Tools
from snapshot.network import NetworkError
from snapshot.plan import Mount
from snapshot.ports import Disconnect, OnStep, Repository, SnapshotWriter
from snapshot.refusals import CannotFreezeError, FreezeFailedError
from snapshot.sandbox import SandboxError
from snapshot.scratch import Scratch, scratch

HOLD_SECONDS = 300.0
GIVE_UP_SECONDS = 5.0
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
    gpu_libraries: str = ""

    async def run(self, facts: dict[str, Any], disconnect: Disconnect) -> Stored:
        """Freeze. Raises `CannotFreezeError` (nothing was touched) or `FreezeFailedError` (the
        tree goes on, disconnected)."""
        try:
            async with Taking(self.spec, self.process, self.gpu_libraries) as gpu:
                with self.steps.step("inspect"):
                    await self._inspect(gpu)
                mounts = sandbox.recorded_mounts(self.spec)
                if gpu.record:
                    with self.steps.step("gpu"):
                        await gpu.take()
                with self.steps.step("disconnect"):
                    await disconnect()
                    closed = await network.destroy_outside_connections(self.process, self.tools)
                return await self._dump_and_commit(facts, mounts, closed, gpu)
        except CannotFreezeError:
            raise
        except SnapshotError as error:
            raise FreezeFailedError(error.message, remedy=error.remedy) from error
        except TimeoutError as error:
            raise FreezeFailedError("Storing the session took too long.") from error
        except (DumpError, NetworkError, SandboxError, OSError, ValueError) as error:
            raise FreezeFailedError(str(error)) from error

    async def _inspect(self, gpu: Taking) -> None:
        blockers = await asyncio.to_thread(
            trial.inspect_before_dump, self.process, gpu_saved=gpu.in_charge
        )
        blockers = (*skeleton.closed_folders(self.spec, self.process), *blockers)
        if blockers := blockers or await gpu.look():
            raise CannotFreezeError(blockers)

    async def _dump_and_commit(
        self,
        facts: dict[str, Any],
        mounts: tuple[Mount, ...],
        closed: tuple[str, ...],
        gpu: Taking,
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
                            about = await asyncio.to_thread(
                                self._add_files, writing, images_folder, received, mounts, closed
                            )
                            about = self._about_gpu(about, gpu.record)
                            stored = await self._commit(dump, writing, record.to_extra(about))
                        committed = True
                        gpu.keep()
                        with self.steps.step("end"):
                            await self._end(dump)
            await asyncio.to_thread(pins.forget_others, self.spec, folder.name)
            space = pins.Namespace(self.spec, mounts)
            await asyncio.to_thread(remaps.take_away, about.pins, space)
            return stored
        finally:
            if not committed:
                await asyncio.to_thread(shutil.rmtree, folder, True)

    async def _commit(self, dump: Dump, writer: SnapshotWriter, extra: dict[str, Any]) -> Stored:
        """Commit, while CRIU holds the tree and within the time that it may.

        When that ends early, the writer is told to give up. A commit that was faster counts, unless
        CRIU died: then the tree has gone on since, and is newer than the snapshot.
        """
        committing = asyncio.ensure_future(asyncio.to_thread(writer.commit, extra))
        committing.add_done_callback(_take_note)
        try:
            async with asyncio.timeout(HOLD_SECONDS):
                await dump.while_held(committing)
            return committing.result()
        except (asyncio.CancelledError, TimeoutError):
            if await self._give_up(committing, writer):
                return committing.result()
            raise
        except DumpError:
            await self._give_up(committing, writer)
            raise

    async def _give_up(self, committing: asyncio.Future[Stored], writer: SnapshotWriter) -> bool:
        """Stop a commit; True if it was done before."""
        giving_up = asyncio.ensure_future(asyncio.to_thread(writer.abort))
        giving_up.add_done_callback(_take_note)
        await asyncio.wait({committing}, timeout=GIVE_UP_SECONDS)
        return committing.done() and committing.exception() is None

    def _add_files(
        self,
        writer: SnapshotWriter,
        scratch_folder: Scratch,
        received: pageserver.Received,
        mounts: tuple[Mount, ...],
        closed: tuple[str, ...],
    ) -> record.TreeRecord:
        """Give the writer everything but the pages, while the tree is held."""
        for number, (memory, entries) in enumerate(received.maps.items(), start=1):
            pagemap = images.Pagemap(number, images.merged(entries))
            writer.add_file(images.pagemap_name(*memory), images.write_pagemap(pagemap))
        names = scratch_folder.file_names()
        for name in names:
            writer.add_file(name, scratch_folder.read(name))
        recorded = self.spec.directory / WORKING_SET_FILE
        if recorded.exists():
            writer.add_file(WORKING_SET_FILE, recorded.read_bytes())
        layers = layer.capture(self.spec, mounts, writer)
        held = self._hold_files(scratch_folder, names, mounts)
        space = pins.Namespace(self.spec, mounts)
        for pin in held:
            if pin.held == "copy":
                writer.add_file(record.copy_name(pin), pins.read(pin, space))
        return record.TreeRecord(
            criu=_criu_version(self.spec),
            inner_root=self.spec.inner_root,
            mounts=mounts,
            pin_folder=self._pin_folder().name,
            pins=held,
            devices=tuple(os.path.basename(path) for path in self.spec.devices),
            closed=closed,
            constraints=host_facts.constraints(self.spec, _criu_version(self.spec)),
            timings=dict(self.steps.seconds),
            layers=layers,
        )

    def _about_gpu(
        self, about: record.TreeRecord, gpu: gpu_model.GpuRecord | None
    ) -> record.TreeRecord:
        """The record with the GPU state, and what it demands of the machine to thaw on."""
        demands = about.constraints | gpu_model.constraints(gpu)
        return replace(about, gpu=gpu, constraints=demands)

    def _hold_files(
        self, scratch_folder: Scratch, names: list[str], mounts: tuple[Mount, ...]
    ) -> tuple[pins.Pin, ...]:
        content = scratch_folder.read(_FILES)
        files = (*images.regular_files(content), *watches.to_hold(content))
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
        """End the tree and wait for the proof: the snapshot is what counts now."""
        try:
            await asyncio.shield(dump.commit())
        finally:
            await asyncio.shield(sandbox.terminate(self.process, 0))


def _take_note(done: asyncio.Future[Any]) -> None:
    """Look at the outcome of a thread that may outlive its caller, so that asyncio is content."""
    if not done.cancelled() and (error := done.exception()):
        _log.info("the store said: %s", error)


def _criu_version(spec: SandboxSpec) -> str:
    """The version that wrote the images, from its log."""
    return criu.logged_version(criu.read_log(Path(spec.directory, criu.DUMP_LOG)))
