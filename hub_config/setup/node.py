"""configurable-http-proxy, at the version of our lock file, with npm of the wheel or the machine."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from hub_config.paths import StateFolder
from hub_config.setup.problems import SetupFailed
from hub_config.setup.progress import Progress
from hub_config.setup.stamps import Stamps, digest

LOCKED = Path(__file__).parent / "proxy"
OLDEST_NODE = 20


@dataclass(frozen=True, slots=True)
class ProxyFolder:
    """node_modules of the proxy in one downloads folder."""

    folder: StateFolder
    progress: Progress
    stamps: Stamps

    def ensure(self) -> None:
        """Install the locked packages; their own install scripts are not run."""
        files = [LOCKED / "package.json", LOCKED / "package-lock.json"]
        wanted = digest(["1"], files)
        program = self.folder.proxy / "node_modules/configurable-http-proxy/package.json"
        if self.stamps.is_current("proxy", wanted, program):
            return
        node = self.folder.node()
        if node is None:
            raise SetupFailed(
                f"No Node.js {OLDEST_NODE} or newer was found.", remedy="apt-get install nodejs npm"
            )
        self.progress.say("proxy: configurable-http-proxy from npm ...")
        self.stamps.forget("proxy")
        self.folder.proxy.mkdir(parents=True, exist_ok=True)
        for path in files:
            shutil.copy2(path, self.folder.proxy / path.name)
        self._install(node)
        self.stamps.write("proxy", wanted, node=str(node))

    def _install(self, node: Path) -> None:
        cache = self.folder.proxy / ".npm-cache"
        argv = [*npm_command(node), "ci", "--ignore-scripts", "--omit=dev", "--no-audit"]
        argv += ["--no-fund", "--loglevel=error", "--cache", str(cache)]
        path = f"{node.parent}:{os.environ.get('PATH', '')}"
        self.progress.run(
            "proxy", argv, environment=os.environ | {"PATH": path}, cwd=self.folder.proxy
        )
        shutil.rmtree(cache, ignore_errors=True)


def npm_command(node: Path) -> list[str]:
    """npm beside this Node (in the wheel it lies there as a script), else the one on PATH."""
    script = node.parent.parent / "lib/node_modules/npm/bin/npm-cli.js"
    if script.exists():
        return [str(node), str(script)]
    found = shutil.which("npm")
    if found is None:
        raise SetupFailed("npm was not found beside Node.js.", remedy="apt-get install npm")
    return [found]


def node_version(node: Path) -> int:
    """Node's major version; 0 when it does not start."""
    try:
        answer = subprocess.run(
            [node, "--version"], capture_output=True, text=True, check=False, timeout=20
        )
    except OSError:
        return 0
    digits = answer.stdout.strip().lstrip("v").split(".")[0]
    return int(digits) if digits.isdigit() else 0
