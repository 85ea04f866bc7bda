"""Memory that arrives behind a tree that CRIU restored: faults of every part, compared byte for byte.

The trees are four processes with shared memory; each says itself whether its memory is as it was.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from snapshot import programs, sandbox
from snapshot.filling import marker
from snapshot.filling.escrow import Escrow
from snapshot.filling.program import Beginning
from snapshot.model import Process, SnapshotKey, Stored
from snapshot.refusals import FillingLostError, FreezeFailedError
from snapshot.repository import open_repository
from tests.bench.suspend import settings_of
from tests.builders import filling
from tests.builders.filling import (
    MEMORIES,
    all_is_sound,
    ask_to_look,
    bring_back_store,
    fillers,
    guards,
    kill,
    lose_store,
    packs,
    thaw_without_store,
    until_filled,
)
from tests.builders.s3 import running_s3_server
from tests.builders.sandboxes import Box, until

pytestmark = [pytest.mark.criu, pytest.mark.usefixtures("working_criu")]
PYTHON = "/usr/bin/python3"
_CHECKOUT = str(Path(__file__).parents[2])


@pytest.fixture
async def stored(box: Box) -> AsyncIterator[Stored]:
    """The four processes, suspended."""
    await box.start(PYTHON, "-c", MEMORIES)
    await filling.say(box, "ready")
    yield await box.freeze()
    await box.clean_up()
    await until(lambda: fillers() == guards() == [], "nobody stays")


def _beginning(box: Box, stored: Stored) -> Beginning:
    return Beginning(box.settings, stored.manifest, str(box.spec.directory))


async def test_every_process_finds_its_memory(box: Box, stored: Stored) -> None:
    await box.thaw(stored)
    await all_is_sound(box)
    await until_filled(box)
    await box.thaw(await box.freeze())
    await until_filled(box)
    await all_is_sound(box, 1)


async def test_a_filler_that_is_killed_again_and_again_takes_nothing_along(
    box: Box, stored: Stored
) -> None:
    await thaw_without_store(box, stored.manifest)
    ask_to_look(box, 0)
    for _ in range(3):
        await until(fillers, "a filler")
        await kill(fillers())
    assert "look 0" not in box.output()
    bring_back_store(box)
    await all_is_sound(box)
    await until_filled(box)


async def test_a_filler_killed_while_it_fills_is_followed_by_another(
    box: Box, stored: Stored
) -> None:
    """With the store there: whatever it was just doing."""
    outcomes = []
    for _ in range(4):
        seen = len(box.output())
        await box.thaw(stored)
        ask_to_look(box, 0)
        for pid in fillers():
            os.kill(pid, signal.SIGKILL)
        try:
            await until_filled(box)
        except FillingLostError:
            # In the microseconds in which an event may have been lost with it. Nothing ran on.
            outcomes.append("lost")
        else:
            outcomes.append("filled")
            for name in filling.NAMES:
                await box.says(f"{name} look 0 sound", after=seen)
        assert "wrong" not in box.output()
        await box.clean_up()
        box.fillings.clear()
        (box.home / "look0").unlink()
        await until(lambda: fillers() == [], "the filler is gone")
    assert "filled" in outcomes


async def test_a_store_that_is_away_is_waited_for_and_named(box: Box, stored: Stored) -> None:
    thawed = await thaw_without_store(box, stored.manifest)
    held = thawed.filling
    assert held is not None
    ask_to_look(box, 0)
    await until(lambda: "is gone" in held.progress.trouble, "the trouble is told")
    assert held.progress.remaining > 0
    assert sandbox.is_alive(thawed.process)
    assert "look 0" not in box.output()
    bring_back_store(box)
    await all_is_sound(box)
    await until_filled(box)


async def test_a_store_server_that_is_killed_is_waited_for_and_named(
    box: Box, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real one, with nothing on this node. It is started again when everybody waits."""
    with running_s3_server(tmp_path) as server:
        settings = settings_of(tmp_path, server)
        far = replace(box, settings=settings, repository=open_repository(settings))
        await far.start(PYTHON, "-c", MEMORIES)
        await filling.say(far, "ready")
        stored = await far.freeze()
        for pack in Path(settings.cache_directory).iterdir():  # noqa: ASYNC240
            pack.unlink()
        go = Escrow._go

        def kill_server_and_go(escrow: Escrow) -> None:
            server.kill()
            go(escrow)

        monkeypatch.setattr(Escrow, "_go", kill_server_and_go)
        thawed = await far.thaw(stored)
        assert thawed.filling is not None
        held = thawed.filling
        ask_to_look(far, 0)
        await until(lambda: "sent nothing" in held.progress.trouble, "the trouble is told")
        assert held.progress.remaining > 0
        assert "look 0" not in far.output()
        with running_s3_server(tmp_path, again=server):
            await all_is_sound(far)
            await until_filled(far)


async def test_damaged_packs_never_enter_memory(box: Box, stored: Stored) -> None:
    thawed = await thaw_without_store(box, stored.manifest)
    held = thawed.filling
    assert held is not None
    bring_back_store(box)
    whole = {path: path.read_bytes() for path in packs(box).rglob("*") if path.is_file()}
    lose_store(box)
    ask_to_look(box, 0)
    for path, data in whole.items():
        away = box.folder / "away" / path.relative_to(packs(box))
        away.write_bytes(data[:9] + bytes(byte ^ 0x55 for byte in data[9:]))
    bring_back_store(box)
    await until(lambda: "damaged" in held.progress.trouble, "the trouble is told")
    assert "look 0" not in box.output()
    for path, data in whole.items():
        path.write_bytes(data)
    await all_is_sound(box)
    await until_filled(box)


async def test_a_tree_that_is_filling_is_not_frozen(box: Box, stored: Stored) -> None:
    await thaw_without_store(box, stored.manifest)
    key = SnapshotKey("alice", box.spec.directory.name, 1, 2)
    with pytest.raises(FreezeFailedError, match="still arriving"):
        await box.freezer.freeze(
            box.spec,
            box.process,
            key,
            {},
            disconnect=box.disconnect,
            on_step=lambda name, seconds: None,
        )
    bring_back_store(box)
    await until_filled(box)
    await box.thaw(await box.freeze())
    await all_is_sound(box)
    await until_filled(box)


async def test_a_tree_that_ends_while_it_fills_leaves_nobody(box: Box, stored: Stored) -> None:
    thawed = await thaw_without_store(box, stored.manifest)
    assert thawed.filling is not None
    programs.send_signal(thawed.process, signal.SIGKILL)
    await programs.wait_until_ended(thawed.process, 10)
    await until(lambda: fillers() == [], "the filler is gone")
    thawed.filling.close()
    await until(lambda: guards() == [], "the guard is gone")
    assert not marker.is_set(box.spec.directory)
    bring_back_store(box)
    await box.thaw(stored)
    await all_is_sound(box)


async def test_cycles_leave_no_descriptors_and_no_processes(box: Box, stored: Stored) -> None:
    before: list[str] = []
    for _ in range(5):
        await box.thaw(stored)
        await until_filled(box)
        await sandbox.terminate(box.process, 0)
        await until(lambda: fillers() == guards() == [], "nobody stays")
        now = os.listdir("/proc/self/fd")
        assert len(now) <= len(before or now)
        before = now


@dataclass
class Supervisor:
    """A process that resumed the tree without its store, and holds it."""

    child: asyncio.subprocess.Process
    tree: Process

    async def is_killed(self) -> None:
        self.child.kill()
        await self.child.wait()


@asynccontextmanager
async def supervisor(box: Box, stored: Stored) -> AsyncIterator[Supervisor]:
    script = _SUPERVISOR.format(folder=str(box.folder), manifest=stored.manifest)
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, env={**os.environ, "PYTHONPATH": _CHECKOUT}
    )
    try:
        told = box.folder / "thawed"
        await until(lambda: told.exists() or child.returncode is not None, "the tree is there")
        tree = Process(**json.loads(told.read_text()))
        box.started.append(tree)
        yield Supervisor(child, tree)
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()


_SUPERVISOR = """
import asyncio, json
from dataclasses import asdict
from pathlib import Path
from snapshot import linux
from tests.builders import sandboxes
from tests.builders.filling import thaw_without_store

folder = Path({folder!r})
async def main():
    linux.become_subreaper()
    box = sandboxes.existing_box(folder)
    thawed = await thaw_without_store(box, {manifest!r})
    (folder / "part").write_text(json.dumps(asdict(thawed.process)))
    (folder / "part").rename(folder / "thawed")
    await asyncio.Event().wait()
asyncio.run(main())
"""


async def test_a_supervisor_that_is_killed_is_followed_by_another(box: Box, stored: Stored) -> None:
    async with supervisor(box, stored) as first:
        ask_to_look(box, 0)
        await first.is_killed()
        assert sandbox.is_alive(first.tree)
        beginning = _beginning(box, stored)
        found = await Escrow.find(beginning)
        assert found is not None
        box.fillings.append(found)
        # From now on it is as if it had resumed the tree itself: also this filler has a successor.
        await until(lambda: found.progress.total > 0, "it is told")
        await kill(fillers())
        bring_back_store(box)
        await all_is_sound(box)
        await until_filled(box)
        assert await Escrow.find(beginning) is None


async def test_without_a_supervisor_the_filler_ends_what_it_began(box: Box, stored: Stored) -> None:
    async with supervisor(box, stored) as first:
        await first.is_killed()
        bring_back_store(box)
        await until(lambda: not marker.is_set(box.spec.directory), "everything is there")
        await all_is_sound(box)
        assert await Escrow.find(_beginning(box, stored)) is None


async def test_a_tree_that_nobody_can_fill_any_more_is_ended_and_never_reads_zeros(
    box: Box, stored: Stored
) -> None:
    async with supervisor(box, stored) as first:
        ask_to_look(box, 0)
        await first.is_killed()
        await kill(fillers())
        await until(lambda: not sandbox.is_alive(first.tree), "the guard ends the tree", 5)
        assert "look 0" not in box.output()
        beginning = _beginning(box, stored)
        with pytest.raises(FillingLostError):
            await Escrow.find(beginning)
        bring_back_store(box)
        await box.thaw(stored)
        await all_is_sound(box)
        await until_filled(box)
