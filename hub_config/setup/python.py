"""uv, and the virtual environment from the lock file, at a place that session users can read."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from hub_config.setup.debian import PrivateApt
from hub_config.setup.problems import SetupFailed
from hub_config.setup.progress import Progress
from hub_config.setup.stamps import Stamps, digest

UV_VERSION = "0.13.9"
OLDEST = (3, 11)
SEEN_INSIDE = tuple(map(Path, ("/usr", "/opt", "/srv")))
"""Folders of the machine that a session sees."""

PACKAGES = ("hub_config", "spawner", "snapshot", "reclaimer", "scheduler_bridge")
_ASK = (
    "import json, os, sys, sysconfig; print(json.dumps([list(sys.version_info[:3]), "
    "os.path.realpath(sys.executable), sysconfig.get_path('stdlib')]))"
)


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python that may become the virtual environment's base."""

    path: Path
    version: tuple[int, int, int]


def find_interpreter(
    candidates: Iterable[Path] | None = None, *, seen_inside: tuple[Path, ...] = SEEN_INSIDE
) -> Interpreter:
    """The first Python >= 3.11 that other accounts can execute and that sessions see.

    One below a home folder (a pyenv of root, say) cannot serve sessions."""
    rejected = []
    for path in candidates if candidates is not None else _candidates():
        found, reason = _examine(path, seen_inside)
        if found is not None:
            return found
        if reason:
            rejected.append(f"{path}: {reason}")
    raise SetupFailed(
        "No Python that session users could run. " + "; ".join(rejected),
        remedy="Install one outside home folders: apt-get install python3",
    )


def _candidates() -> Iterator[Path]:
    seen: set[Path] = set()
    for name in ("python3", *(f"python3.{minor}" for minor in range(14, 10, -1))):
        for folder in ("/usr/bin", "/usr/local/bin", *os.environ.get("PATH", "").split(":")):
            path = Path(folder) / name
            if folder and path not in seen and os.access(path, os.X_OK):
                seen.add(path)
                yield path


def _examine(path: Path, seen_inside: tuple[Path, ...]) -> tuple[Interpreter | None, str]:
    try:
        answer = subprocess.run(
            [path, "-I", "-c", _ASK], capture_output=True, text=True, timeout=20, check=True
        )
        version, real, library = json.loads(answer.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None, "does not start"
    if tuple(version[:2]) < OLDEST:
        return None, f"is {'.'.join(map(str, version))}"
    for needed in (path, Path(real), Path(library)):
        if blocked := first_closed(needed):
            return None, f"{blocked} is closed to other accounts"
    for needed in (Path(real), Path(library).resolve()):
        if not any(needed.is_relative_to(folder) for folder in seen_inside):
            return None, f"sessions do not see {needed.parent}"
    return Interpreter(path, (version[0], version[1], version[2])), ""


def first_closed(path: Path) -> Path | None:
    """The first part of a path that other accounts may not pass or execute."""
    for part in reversed([path, *path.parents]):
        if not part.stat().st_mode & 0o001:
            return part
    return None


@dataclass(frozen=True, slots=True)
class Environment:
    """The virtual environment of one checkout in one downloads folder."""

    checkout: Path
    downloads: Path
    progress: Progress
    stamps: Stamps

    @property
    def venv(self) -> Path:
        return self.downloads / "venv"

    @property
    def uv(self) -> Path:
        return self.downloads / "uv/bin/uv"

    def ensure(self, *, dev: bool) -> None:
        """Bring the environment to the lock file's state. With `dev` once, it stays with `dev`, and
        one in use for development always has it."""
        interpreter = find_interpreter()
        editable = is_editable(self.venv, self.checkout)
        dev = dev or editable or bool(self.stamps.read("venv").get("dev"))
        wanted = self._digest(interpreter, dev=dev, editable=editable)
        if self.stamps.is_current("venv", wanted, self.venv / "bin/hubernate"):
            return
        self._ensure_uv()
        self.stamps.forget("venv")
        self.progress.say(f"venv: packages from uv.lock for {interpreter.path} ...")
        self._sync(interpreter, dev=dev, editable=editable)
        if blocked := first_closed(self.venv / "bin/python"):
            raise SetupFailed(
                f"Session users cannot reach the virtual environment: {blocked} is closed to them.",
                remedy="Choose a state folder outside home folders with HUBERNATE_STATE.",
            )
        self.stamps.write("venv", wanted, dev=dev, editable=editable)

    def _digest(self, interpreter: Interpreter, *, dev: bool, editable: bool) -> str:
        files = [self.checkout / "uv.lock", self.checkout / "pyproject.toml"]
        if not editable:
            files += source_files(self.checkout)
        names = [str(path.relative_to(self.checkout)) for path in files]
        version = ".".join(map(str, interpreter.version))
        flags = [str(interpreter.path), version, UV_VERSION, f"dev={dev}", f"editable={editable}"]
        return digest([*flags, str(self.checkout), *names], files)

    def _sync(self, interpreter: Interpreter, *, dev: bool, editable: bool) -> None:
        argv: list[str | Path] = [self.uv, "sync", "--frozen", "--no-progress"]
        argv += ["--python", interpreter.path]
        argv += [] if dev else ["--no-dev"]
        argv += [] if editable else ["--no-editable"]
        environment = os.environ | {
            "UV_PROJECT_ENVIRONMENT": str(self.venv),
            "UV_PYTHON_DOWNLOADS": "never",
            "UV_CACHE_DIR": str(self.downloads / "uv/cache"),
            # Session users may not write into the environment: without this, each of their
            # processes would compile every module that it imports.
            "UV_COMPILE_BYTECODE": "1",
        }
        environment.pop("VIRTUAL_ENV", None)
        self.progress.run(
            "venv", argv, environment=environment, cwd=self.checkout, grows=self.downloads / "uv"
        )

    def _ensure_uv(self) -> None:
        target = self.downloads / "uv"
        if self.stamps.is_current("uv", UV_VERSION, self.uv):
            return
        self.progress.say(f"uv: version {UV_VERSION} from PyPI ...")
        with tempfile.TemporaryDirectory(prefix="hubernate-pip-") as scratch:
            pip = find_pip() or _pip_from_debian(Path(scratch), self.progress)
            shutil.rmtree(target / "bin", ignore_errors=True)
            argv = [*pip, "install", "--quiet", "--no-cache-dir", "--upgrade"]
            argv += ["--target", str(target), f"uv=={UV_VERSION}"]
            self.progress.run("uv", argv, environment=_pip_environment())
        self.stamps.write("uv", UV_VERSION)


def source_files(checkout: Path) -> list[Path]:
    """Everything that becomes part of the installed project, sorted."""
    return sorted(
        path
        for package in PACKAGES
        for path in (checkout / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    )


def is_editable(venv: Path, checkout: Path) -> bool:
    """Whether the project is, or shall be, used in place: a developer's environment stays one."""
    choice = os.environ.get("HUBERNATE_EDITABLE")
    if choice is not None:
        return choice not in ("", "0")
    for path in venv.glob("lib/python3.*/site-packages/hubernate-*.dist-info/direct_url.json"):
        origin = json.loads(path.read_text())
        in_place = origin.get("dir_info", {}).get("editable", False)
        if in_place and origin.get("url") == checkout.as_uri():
            return True
    return False


def find_pip() -> list[str] | None:
    """A pip for this interpreter: installed, or the wheel that ensurepip carries."""
    asked = subprocess.run(
        [sys.executable, "-m", "pip", "--version"], capture_output=True, check=False, timeout=60
    )
    if asked.returncode == 0:
        return [sys.executable, "-m", "pip"]
    # Debian leaves the whole of ensurepip out; elsewhere it carries a wheel.
    bundle = importlib.util.find_spec("ensurepip")
    folders = [Path("/usr/share/python-wheels")]
    folders += [Path(bundle.origin).parent / "_bundled"] if bundle and bundle.origin else []
    wheel = pip_wheel(folders)
    return None if wheel is None else [sys.executable, str(wheel / "pip")]


def pip_wheel(folders: Iterable[Path]) -> Path | None:
    """A wheel of pip in one of the folders; an interpreter can run what is inside it."""
    wheels = sorted(wheel for folder in folders for wheel in folder.glob("pip-*.whl"))
    return wheels[-1] if wheels else None


def _pip_from_debian(scratch: Path, progress: Progress) -> list[str]:
    """Debian ships Python without pip; its wheel is fetched and used from a temporary folder."""
    apt = PrivateApt(scratch / "apt", progress)
    apt.update()
    apt.unpack(["python3-pip-whl"], scratch / "files")
    wheel = pip_wheel([scratch / "files/usr/share/python-wheels"])
    if wheel is None:
        raise SetupFailed("No pip was found.", remedy="apt-get install python3-venv")
    return [sys.executable, str(wheel / "pip")]


def _pip_environment() -> dict[str, str]:
    return os.environ | {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_ROOT_USER_ACTION": "ignore"}
