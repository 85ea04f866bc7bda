"""Thawing a tree: authenticate -> lay out images in memory -> adapt -> CRIU.

Whatever fails, nothing of the tree is left running and the snapshot is as it was.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import functools
import json
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from snapshot import (
    criu,
    groups,
    host_facts,
    images,
    layer_apply,
    locks,
    pins,
    plan,
    proc,
    programs,
    record,
    remaps,
    revision,
    sandbox,
    skeleton,
    watches,
)
from snapshot.checkpoint import Steps
from snapshot.errors import SnapshotError, TamperedError
from snapshot.filling import marker, window
from snapshot.filling.escrow import CRIU_SOCKET, Escrow
from snapshot.filling.lazy import eager_part, wiped_in
from snapshot.filling.program import Beginning, Spare
from snapshot.gpu.thawing import BringingBack
from snapshot.half_built import half_built
from snapshot.model import Process, SandboxSpec, StoreSettings, Thawed, Tools
from snapshot.ports import Repository, Snapshot
from snapshot.printable import printable
from snapshot.refusals import CannotThawError, SnapshotRefusedError
from snapshot.scratch import Scratch, scratch

RESTORE_SECONDS = 120.0
PID_FILE = "restored.pid"
LOCK_FILE = "restore.lock"
LONGEST_NOTE = 400
_FILES = "files.img"
_ADAPTED = (_FILES, locks.FILE)  # written once it is known what the world is like by now
_USER_NAMESPACE = "userns-"
_PAGEMAP = "pagemap-"
_LARGE = ("tmpfs-", "ghost-")
"""Images that hold files' content: one at a time in our memory."""

START_FRESH = "Start a fresh session; the snapshot is kept."
RESUME_AGAIN = "Resume it again; the snapshot is as it was."


@dataclass(frozen=True, slots=True)
class LazySource:
    """What a filler needs: where snapshots are, and a process that waits to be one."""

    settings: StoreSettings
    spare: Spare | None = None


@dataclass(frozen=True, slots=True)
class Restore:
    """One thaw of one snapshot."""

    tools: Tools
    repository: Repository
    spec: SandboxSpec
    steps: Steps
    gpu_libraries: str = ""
    lazy: LazySource | None = None

    async def run(self, manifest_key: str) -> Thawed:
        """Thaw. Raises `SnapshotRefusedError` or `CannotThawError`."""
        try:
            with self._alone(), scratch() as folder:
                return await self._run_lazily(manifest_key, folder)
        except TamperedError as error:
            raise SnapshotRefusedError(error.message, remedy=START_FRESH) from error
        except (CannotThawError, SnapshotRefusedError):
            raise
        except SnapshotError as error:
            raise CannotThawError(error.message, remedy=error.remedy) from error
        except pins.PinError as error:
            remedy = f"Put {error.path} back, or start a fresh session."
            raise CannotThawError(str(error), remedy=remedy) from error
        except TimeoutError as error:
            raise CannotThawError("Bringing the session back took too long.") from error
        except (OSError, ValueError, sandbox.SandboxError) as error:
            raise CannotThawError(f"The session could not be brought back: {error}") from error

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Nobody else brings this sandbox back, and nothing of it lives: two trees of one snapshot
        would write the same files."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        lock = os.open(Path(self.spec.directory, LOCK_FILE), flags, 0o600)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise CannotThawError(
                    "The session is being brought back already.", remedy="Wait until it is there."
                ) from None
            if living := half_built(self.spec.directory):
                raise CannotThawError(
                    f"The session has processes on this machine already ({_numbers(living)}).",
                    remedy="Use it as it is, or stop it first.",
                )
            yield
        finally:
            os.close(lock)

    async def _run_lazily(self, manifest_key: str, folder: Scratch) -> Thawed:
        """With memory that comes later, where this machine can do that."""
        self._pid_file().unlink(missing_ok=True)  # from now on it names a tree of this restore
        marker.clear(self.spec.directory)
        filling = None
        if self.lazy is not None and window.is_possible():
            beginning = Beginning(self.lazy.settings, manifest_key, str(self.spec.directory))
            filling = Escrow.begin(beginning, self.lazy.spare)
        try:
            return await self._run(manifest_key, folder, filling)
        except BaseException:
            await asyncio.shield(self._undo(filling))
            raise

    async def _undo(self, filling: Escrow | None) -> None:
        """End the tree if it runs already, and only then let go of what holds its memory: a tree
        that nobody holds reads zeros."""
        pid = proc.read_text(str(self._pid_file())).strip()
        if pid and int(pid) in proc.children(os.getpid()):
            await sandbox.terminate(proc.identify(int(pid)) or Process(int(pid), 0), 0)
        if filling is not None:
            await filling.abandon()

    async def _run(self, manifest_key: str, folder: Scratch, filling: Escrow | None) -> Thawed:
        with self.steps.step("open"):
            snapshot, here = await asyncio.gather(
                asyncio.to_thread(self.repository.open, manifest_key),
                host_facts.look(self.spec, self.tools),
            )
            about = _record(snapshot)
            gpu = BringingBack(about.gpu, self.spec, self.gpu_libraries)
            here = here | await gpu.look()
            host_facts.refuse_unless_compatible(about.constraints, here)
            gpu.check()
        with self.steps.step("read"):
            await asyncio.to_thread(
                lay_out,
                snapshot,
                folder,
                lazy=filling is not None,
                inner_root=self.spec.inner_root,
            )
        with self.steps.step("adapt"):
            order, notes = await asyncio.to_thread(
                self._prepare, snapshot, about, folder, filling is not None
            )
        with self.steps.step("restore"):
            process = await self._restore(order, folder, filling)
        if about.gpu:
            with self.steps.step("gpu"):
                await gpu.bring_back(process)
        notes = tuple(printable(note, LONGEST_NOTE) for note in notes)
        return Thawed(process, notes, dict(self.steps.seconds), dict(snapshot.facts), filling)

    def _prepare(
        self, snapshot: Snapshot, about: record.TreeRecord, folder: Scratch, lazy: bool
    ) -> tuple[plan.LaunchOrder, tuple[str, ...]]:
        """Make this machine ready, and the images fit to it."""
        host = skeleton.look_at_host(self.spec)
        mounts = self._mounts(about, host)
        skeleton.build(self.spec, host, mounts)
        skeleton.install_init(self.spec, self.tools.init)
        skeleton.install_groups(self.spec, _known_groups(snapshot))
        files = layer_apply.put_back(about, self.spec, mounts, snapshot.read_file)
        notes = (*files, *self._adapt(snapshot, about, folder, mounts))
        argv = criu.restore_arguments(
            self.tools,
            folder.path,
            mounts,
            root=f"{self.spec.directory}/root",
            pid_file=self._pid_file(),
            log=Path(self.spec.directory, criu.RESTORE_LOG),
            lazy=lazy,
        )
        sandbox.record_mounts(self.spec, mounts)
        return plan.launch_order(self.spec, host, mounts, argv), notes

    def _mounts(self, about: record.TreeRecord, host: plan.HostFacts) -> tuple[plan.Mount, ...]:
        """The mounts of the frozen tree, from where this machine has them.

        The tree needs each of them; a folder that this machine lacks is shown empty.
        """
        here = {mount.target: mount for mount in plan.mounts(self.spec, host)}
        found = []
        for mount in about.mounts:
            staging = f"{self.spec.directory}/ext/{mount.key}"
            source = here[mount.target].source if mount.target in here else mount.source
            # its own folders are made next, where the tree comes back for the first time
            is_own = source.startswith(f"{self.spec.directory}/")
            if not is_own and not os.path.exists(source):
                source = str(skeleton.empty_folder(self.spec))
            found.append(replace(mount, source=source, staging=staging))
        return tuple(found)

    def _adapt(
        self,
        snapshot: Snapshot,
        about: record.TreeRecord,
        folder: Scratch,
        mounts: tuple[plan.Mount, ...],
    ) -> tuple[str, ...]:
        pin_folder = Path(self.spec.directory, "pins", about.pin_folder)
        for pin in about.pins:
            if pin.held == "copy":
                pins.put_back(pin, snapshot.read_file(record.copy_name(pin)), pin_folder)
        space = pins.Namespace(self.spec, mounts)
        renewed = remaps.renew(about.pins, space, pin_folder, sandbox=self.spec.directory.name)
        others = [pin for pin in about.pins if pin.id not in renewed]
        adaptation = pins.adapt(others, space, pin_folder)
        content = revision.revised(_FILES, snapshot.read_file(_FILES))
        devices = _device_changes(content, about.devices, self.spec.devices)
        content = images.change_regular_files(content, adaptation.changes | devices | renewed)
        content, lost = watches.adapt(
            content, about.pins, adaptation.changes, lambda path: space.stat(path) is not None
        )
        folder.write(_FILES, content)
        return (*adaptation.notes, *lost, *_adapt_locks(snapshot, folder, content, space))

    def _pid_file(self) -> Path:
        return Path(self.spec.directory, PID_FILE)

    async def _restore(
        self, order: plan.LaunchOrder, folder: Scratch, filling: Escrow | None
    ) -> Process:
        environment = skeleton.restore_environment(self.spec)
        if filling is None:
            return await self._identify(await _run_criu(order, folder, environment))
        with window.allowed():
            async with _served(filling, folder) as serving:
                launched = functools.partial(filling.restoring, pid_file=self._pid_file())
                status = await _run_criu(order, folder, environment, launched)
        process = await self._identify(status)
        serving.result()
        filling.runs(process)
        return process

    async def _identify(self, status: int) -> Process:
        """The restored tree's first process, by CRIU's exit status and what it wrote."""
        pid = proc.read_text(str(self._pid_file())).strip()
        if status < 0:
            raise CannotThawError("CRIU was killed.", remedy=RESUME_AGAIN)
        if status != 0 or not pid:
            said = await asyncio.to_thread(
                criu.read_log, Path(self.spec.directory, criu.RESTORE_LOG)
            )
            raise CannotThawError(criu.explain(said), remedy=START_FRESH)
        return proc.identify(int(pid)) or Process(int(pid), 0)


@contextlib.asynccontextmanager
async def _served(filling: Escrow, folder: Scratch) -> AsyncIterator[asyncio.Future[None]]:
    """Take the userfaultfds that CRIU sends meanwhile; what came of it is in the future."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with listener:
        listener.bind(f"{folder.path}/{CRIU_SOCKET}")
        listener.listen(1)
        serving = asyncio.ensure_future(asyncio.to_thread(filling.serve_criu, listener))
        try:
            yield serving
        finally:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            await asyncio.wait({serving})
            serving.exception()  # looked at: where CRIU failed, why that ended says nothing


def _numbers(processes: Sequence[Process]) -> str:
    """A few of them, for people."""
    return ", ".join(str(each.pid) for each in processes[:3])


def _record(snapshot: Snapshot) -> record.TreeRecord:
    try:
        return record.from_extra(snapshot.extra)
    except ValidationError as error:
        raise SnapshotRefusedError(
            "The snapshot does not say what is in it.", remedy=START_FRESH
        ) from error


def lay_out(
    snapshot: Snapshot, folder: Scratch, *, lazy: bool = False, inner_root: int | None = None
) -> None:
    """Write the images as CRIU expects them, except `files.img`. `lazy`: without the pages that
    come later, nor any mention of them. `inner_root` is the sandbox's, which is another one in a
    fork or on another machine. Raises what the snapshot does."""

    def write(name: str, content: bytes) -> None:
        content = revision.revised(name, content)
        if inner_root is not None and name.startswith(_USER_NAMESPACE):
            content = groups.owned_by(content, inner_root)
        folder.write(name, content)

    names = [
        name for name in snapshot.file_names() if name.endswith(".img") and name not in _ADAPTED
    ]
    large = [name for name in names if name.startswith(_LARGE)]
    small = snapshot.read_files(name for name in names if name not in large)
    _lay_out_pages(snapshot, folder, small, lazy=lazy)
    for name, content in small.items():
        if not name.startswith(_PAGEMAP):
            write(name, content)
    for name in large:
        write(name, snapshot.read_file(name))


def _lay_out_pages(
    snapshot: Snapshot, folder: Scratch, files: dict[str, bytes], *, lazy: bool
) -> None:
    with contextlib.ExitStack() as opened:
        wanted = []
        for name in (name for name in files if name.startswith(_PAGEMAP)):
            pagemap = images.read_pagemap(files[name])
            kind, id = images.parse_pagemap_name(name)
            if lazy and kind == "task":
                pagemap = eager_part(pagemap, wiped_in(files, id))
            folder.write(name, images.write_pagemap(pagemap))
            pages = folder.open(f"pages-{pagemap.pages_id}.img", os.O_RDWR | os.O_CREAT | os.O_EXCL)
            opened.callback(os.close, pages)
            os.ftruncate(pages, pagemap.file_bytes())
            wanted.append((kind, id, pagemap.runs(), pages))
        snapshot.copy_spaces([each for each in wanted if each[2]])


def _adapt_locks(
    snapshot: Snapshot, folder: Scratch, files: bytes, space: pins.Namespace
) -> tuple[str, ...]:
    if locks.FILE not in snapshot.file_names():
        return ()
    content, notes = locks.adapt(snapshot.read_file, files, space)
    folder.write(locks.FILE, content)
    return notes


def _known_groups(snapshot: Snapshot) -> frozenset[int]:
    """The group ids that the frozen tree's user namespace has."""
    names = [name for name in snapshot.file_names() if name.startswith(_USER_NAMESPACE)]
    return frozenset[int]().union(*(groups.known(snapshot.read_file(name)) for name in names))


def _device_changes(
    files: bytes, before: Iterable[str], now: Iterable[str]
) -> dict[int, images.Change]:
    """Open device files of the old lease become those of the new one, in order."""
    new = sorted(os.path.basename(path) for path in now)
    renamed = {
        plan.inner_device(old): plan.inner_device(name)
        for old, name in zip(sorted(before), new, strict=False)
    }
    return {
        file.id: images.Change(unchecked=True, name=renamed[file.name])
        for file in images.regular_files(files)
        if file.name in renamed
    }


async def _run_criu(
    order: plan.LaunchOrder,
    folder: Scratch,
    environment: dict[str, str],
    launched: Callable[[int], None] = lambda pid: None,
) -> int:
    """CRIU's exit status. Whatever it left half-built is ended when it does not succeed."""
    launcher = await asyncio.create_subprocess_exec(
        *programs.launcher("restore"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        env=environment,
        pass_fds=(folder.descriptor,),
        start_new_session=True,
    )
    status = -1
    try:
        launched(launcher.pid)
        async with asyncio.timeout(RESTORE_SECONDS):
            await launcher.communicate(_json(order))
        status = launcher.returncode if launcher.returncode is not None else -1
        return status
    finally:
        if status != 0:
            await asyncio.shield(_clean_up(launcher, Path(order.directory)))


async def _clean_up(launcher: asyncio.subprocess.Process, directory: Path) -> None:
    """End CRIU and everything that it has made, also where CRIU was killed and has none of it as
    children any more: it would hold what the restore waits for."""
    begun = [found for pid in proc.children(launcher.pid) if (found := proc.identify(pid))]
    with contextlib.suppress(ProcessLookupError):
        launcher.kill()
    await launcher.wait()
    begun += await asyncio.to_thread(half_built, directory)
    for process in begun:
        programs.send_signal(process, signal.SIGKILL)
    for process in begun:
        await programs.wait_until_ended(process, sandbox.END_SECONDS)


def _json(order: plan.LaunchOrder) -> bytes:
    values: dict[str, Any] = asdict(order)
    return json.dumps(values, default=str).encode()
