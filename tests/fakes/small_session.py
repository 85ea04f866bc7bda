"""Program of `ProcessHost`: answers every GET with its process id, and obeys files in its folder."""

from __future__ import annotations

import os
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from snapshot.model import Process
from spawner.supervisor.status import Outcome, Status, write_status


def started(pid: int) -> int:
    """Field 22 of /proc/PID/stat."""
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19])


class Answer(BaseHTTPRequestHandler):
    """200 to everything."""

    def do_GET(self) -> None:
        body = str(os.getpid()).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        return


def serve() -> ThreadingHTTPServer:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def main(folder: Path, workload_id: str) -> None:
    server = serve()
    me = Process(os.getpid(), started(os.getpid()))
    parent = os.getppid()

    def tell(phase: str, **more: object) -> None:
        write_status(folder, Status(workload_id, phase, me, me, server.server_address[1], **more))  # type: ignore[arg-type]

    tell("running")
    while os.getppid() == parent or (folder / "outlives").exists():
        if (folder / "stop").exists():
            tell("stopped", outcome=Outcome.STOPPED)
            return
        if (folder / "move").exists():
            (folder / "move").unlink()
            server.shutdown()
            server.server_close()
            server = serve()
            tell("running")
        if (folder / "suspend").exists():
            tell("suspending")
            refusal = folder / "refuse"
            if refusal.exists():
                (folder / "suspend").unlink()
                (folder / "refused").touch()
                tell("running", error=refusal.read_text(), remedy="Close it.")
                continue
            while (folder / "slow").exists():
                time.sleep(0.02)
            tell("suspended", outcome=Outcome.SUSPENDED, snapshot="manifest-1")
            return
        time.sleep(0.02)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
