"""A supervisor that builds no sandbox: it starts a shell that waits for a file, and reports.

`scheduler_supervisor.py REQUEST URL FOLDER` starts it in the background and prints its process, as
the real launching program does. The job ends with the number written to `FOLDER/<workload>.end`.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from scheduler_bridge.client import SchedulerClient
from scheduler_bridge.clusters.processes import is_alive, started
from scheduler_bridge.errors import SchedulerError, Unavailable
from scheduler_bridge.model.phases import Desired, Phase
from scheduler_bridge.model.workload import Report

_WAIT = 'while [ ! -s "$0" ]; do sleep 0.05; done'


def main() -> None:
    if sys.argv[1] == "--run":
        asyncio.run(run(json.loads(Path(sys.argv[2]).read_bytes()), sys.argv[3], Path(sys.argv[4])))
        return
    argv = [sys.executable, __file__, "--run", *sys.argv[1:]]
    null = subprocess.DEVNULL
    process = subprocess.Popen(argv, start_new_session=True, stdin=null, stdout=null, stderr=null)
    sys.stdout.write(json.dumps({"pid": process.pid, "started": started(process.pid)}) + "\n")


def bring_up(request: dict[str, Any], folder: Path) -> dict[str, dict[str, int]]:
    """Start or find the shell, leave notes of both processes, return the handle."""
    name = request["workload_id"]
    note = folder / f"{name}.json"
    if not request["adopt"]:
        argv = ["sh", "-c", _WAIT, str(folder / f"{name}.end")]
        shell = subprocess.Popen(argv, start_new_session=True)
        note.write_text(json.dumps({"pid": shell.pid, "started": started(shell.pid)}))
    own = {"pid": os.getpid(), "started": started(os.getpid())}
    (folder / f"{name}.supervisor.json").write_text(json.dumps(own))
    return {"supervisor": own, "sandbox": json.loads(note.read_text())}


async def run(request: dict[str, Any], url: str, folder: Path) -> None:
    handle = bring_up(request, folder)
    sandbox, end = handle["sandbox"], folder / f"{request['workload_id']}.end"
    client = SchedulerClient(url)
    lease, credential = request["lease"]["id"], request["credential"]

    async def move(target: Phase, exit_code: int | None = None) -> None:
        while True:
            try:
                await client.move(lease, credential, target, cause="said", exit_code=exit_code)
                return
            except Unavailable:
                await asyncio.sleep(0.05)

    await move(Phase.RUNNING)
    while is_alive(sandbox):
        try:
            report = Report(request["lease"]["epoch"], Phase.RUNNING, handle=handle)
            answer = await client.heartbeat(lease, credential, report, wait=0.2)
        except Unavailable:
            await asyncio.sleep(0.05)
            continue
        except SchedulerError:
            return
        if answer.revoked:
            return
        if answer.desired is not Desired.RUNNING:
            end.write_text("143")
    code = int(end.read_text() or 0) if end.exists() else 137
    if code == 143:
        await move(Phase.QUEUED if answer.desired is Desired.SUSPENDED else Phase.CANCELLED, code)
    else:
        await move(Phase.SUCCEEDED if code == 0 else Phase.FAILED, code)
    await client.aclose()


if __name__ == "__main__":
    main()
