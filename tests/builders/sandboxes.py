"""Real sandboxes on this machine, for tests. Needs root.

    async with sandboxes(tmp_path) as box:
        process = await box.start("/usr/bin/python3", "-c", PROGRAM)
        await box.says("ready")

Only processes that the builder itself started or was handed are ended at the end, each by PID and
start time.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hub_config.paths import DEFAULT_STATE, StateFolder
from snapshot import linux, network, sandbox
from snapshot.filling.escrow import Escrow
from snapshot.freezer import LazySource, LocalFreezer
from snapshot.model import (
    Bind,
    Filling,
    Identity,
    NetworkSpec,
    Process,
    SandboxSpec,
    SnapshotKey,
    Stored,
    StoreSettings,
    Thawed,
    Tools,
)
from snapshot.ports import Repository
from snapshot.repository import open_repository

WAIT_SECONDS = 30.0
ALICE = Identity("alice", 210_001, 210_001)


def installed_tools() -> Tools:
    """The tools of this machine's state folder."""
    downloads = Path(os.environ.get("HUBERNATE_DOWNLOADS") or DEFAULT_STATE)
    return StateFolder(downloads, downloads).tools()


async def until(holds: Callable[[], Any], what: str, seconds: float = WAIT_SECONDS) -> Any:
    """Wait for a condition and return its value. Raises `AssertionError` naming `what`."""
    deadline = time.monotonic() + seconds
    while not (value := holds()):
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}"
        await asyncio.sleep(0.01)
    return value


@dataclass
class Box:
    """One sandbox folder with a home, and a directory store for its snapshots."""

    folder: Path
    spec: SandboxSpec
    tools: Tools
    repository: Repository
    settings: StoreSettings
    started: list[Process] = field(default_factory=list)
    links: list[network.Link] = field(default_factory=list)
    fillings: list[Filling] = field(default_factory=list)
    sequence: int = 0

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def freezer(self) -> LocalFreezer:
        return LocalFreezer(self.tools, self.repository, lazy=LazySource(self.settings))

    @property
    def process(self) -> Process:
        """The first process of the newest tree."""
        return self.started[-1]

    async def start(self, *argv: str, **changes: Any) -> Process:
        """Start a program; `changes` replace fields of the spec for good."""
        self.spec = replace(self.spec, argv=argv, **changes)
        process = await sandbox.start(self.spec, self.tools)
        self.started.append(process)
        return process

    async def connect(self) -> network.Link:
        """Connect the newest tree on a free port."""
        link = await network.connect(self.process, self.spec, self.tools, choose_port=True)
        self.links.append(link)
        return link

    def output(self) -> str:
        """What the program has printed so far."""
        path = Path(self.spec.directory, "run/output.log")
        return path.read_text(errors="replace") if path.exists() else ""

    async def says(self, text: str, *, after: int = 0) -> str:
        """Wait until the output from offset `after` on holds `text`; returns that output."""
        await until(lambda: text in self.output()[after:], f"the program says {text!r}")
        return self.output()[after:]

    async def disconnect(self) -> None:
        """End the network of the newest tree."""
        if link := network.find(self.spec):
            await link.close()

    async def freeze(self, freezer: LocalFreezer | None = None) -> Stored:
        """Freeze the newest tree under the next sequence number."""
        await self.filled()
        self.sequence += 1
        key = SnapshotKey("alice", self.spec.directory.name, 1, self.sequence)
        return await (freezer or self.freezer).freeze(
            self.spec,
            self.process,
            key,
            {"asked by": "test"},
            disconnect=self.disconnect,
            on_step=lambda name, seconds: None,
        )

    async def thaw(self, stored: Stored) -> Thawed:
        """Bring a tree back and take charge of it."""
        thawed = await self.freezer.thaw(
            self.spec, stored.manifest, on_step=lambda name, seconds: None
        )
        self.started.append(thawed.process)
        if thawed.filling is not None:
            thawed.filling.keep()
            self.fillings.append(thawed.filling)
        return thawed

    async def filled(self) -> None:
        """Wait until all memory of the newest tree is there."""
        for filling in self.fillings:
            await filling.until_filled()
            filling.close()
        self.fillings.clear()

    async def clean_up(self) -> None:
        """End what was started here, and nothing else."""
        for link in self.links:
            await link.close()
        for process in self.started:
            if sandbox.is_alive(process):
                await sandbox.terminate(process, 0)
        for filling in self.fillings:
            filling.close()
            if isinstance(filling, Escrow):
                await filling.abandon()  # its programs still tidy up in the folder


def make_box(folder: Path, *, number: int = 0) -> Box:
    """A box below `folder` whose account is alice (uid 210001 + `number`)."""
    identity = replace(ALICE, uid=ALICE.uid + number, gid=ALICE.gid + number)
    home = folder / "home"
    home.mkdir(parents=True)
    home.chmod(0o700)
    os.chown(home, identity.uid, identity.gid)
    return existing_box(folder, number=number)


def existing_box(folder: Path, *, number: int = 0) -> Box:
    """The box that another process made below `folder`."""
    identity = replace(ALICE, uid=ALICE.uid + number, gid=ALICE.gid + number)
    home = folder / "home"
    spec = SandboxSpec(
        directory=folder / "box",
        identity=identity,
        inner_root=1_500_000 + number,
        argv=(),
        environment={},
        folder="/home/alice",
        binds=(Bind(str(home), "/home/alice"),),
        network=NetworkSpec(),
    )
    settings = StoreSettings(
        "directory", str(folder / "store"), keys_directory=str(folder / "keys")
    )
    return Box(folder, spec, installed_tools(), open_repository(settings), settings)


@asynccontextmanager
async def sandboxes(folder: Path, *, number: int = 0) -> AsyncIterator[Box]:
    """A box, cleaned up at the end. This process becomes a subreaper, as a supervisor is."""
    linux.become_subreaper()
    box = make_box(folder, number=number)
    try:
        yield box
    finally:
        await box.clean_up()
        # other tests' orphans belong to init, which waits for them
        linux.become_subreaper(wanted=False)
