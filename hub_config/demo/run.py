"""`hubernate demo`: plays the story and beside it the same minute with a plain culler."""

from __future__ import annotations

import asyncio
import secrets
import shutil
import tempfile
from pathlib import Path
from time import monotonic

from hub_config.demo.browserless import StoryError, log_in
from hub_config.demo.plain import lose_a_variable, plain_hub
from hub_config.demo.stage import free_port_block, installation
from hub_config.demo.story import Report, play
from hub_config.paths import StateFolder

IDLE_SECONDS = 8


async def _ours(folder: Path, downloads: Path, report: Report) -> None:
    started = monotonic()
    async with installation(folder, downloads=downloads, idle_after=IDLE_SECONDS) as stage:
        report.add("hubernate up answers", monotonic() - started, stage.url)
        alice = await log_in(stage.url, "alice", stage.password())
        await play(stage, alice, report)
        await alice.http.aclose()


async def _plain(folder: Path, proxy: list[str]) -> str:
    password = secrets.token_urlsafe(12)
    port = free_port_block() + 5
    async with plain_hub(
        folder, port=port, proxy_command=proxy, timeout_seconds=IDLE_SECONDS, password=password
    ) as url:
        return await lose_a_variable(url, password)


async def _both(root: Path, downloads: Path, proxy: list[str]) -> None:
    report = Report()
    print("Hubernate, the story in one minute (1 virtual GPU: a file, no GPU is computed on):")
    await _ours(root / "state", downloads, report)
    print("\nThe same with JupyterHub and jupyterhub-idle-culler:")
    started = monotonic()
    lost = await _plain(root / "p", proxy)
    report.add("culled, then opened again", monotonic() - started, lost)


def run_demo(state: StateFolder, proxy_command: list[str]) -> int:
    """Play; 0 only if everything held. Leaves nothing behind but the downloads."""
    root = Path(tempfile.mkdtemp(prefix="hubernate-demo-"))
    root.chmod(0o711)
    started = monotonic()
    try:
        asyncio.run(_both(root, state.downloads, proxy_command))
    except (StoryError, TimeoutError) as error:
        print(f"\nThe story broke: {error or 'a scene took too long'}")
        print(f"Kept for inspection: {root}")
        return 1
    print(f"\nAll held, in {monotonic() - started:.0f} s.")
    shutil.rmtree(root, ignore_errors=True)
    return 0
