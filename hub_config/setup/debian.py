"""Debian packages for our own use: fetched, verified and unpacked without touching the machine's.

A private apt configuration has its own sources, lists, caches and an empty package database, so
that apt itself computes the whole dependency closure. The mirror is the one that the machine
already uses, the signatures are checked with the keyring that it already trusts.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hub_config.setup.problems import SetupFailed
from hub_config.setup.progress import Progress

SUITE = "sid"
KEYRINGS = tuple(
    Path(f"/usr/share/keyrings/debian-archive-keyring.{ending}") for ending in ("pgp", "gpg")
)
UNWANTED = ("debconf_", "gcc-")
"""Dependencies for installing a package, not for running what is in it."""

_CONFIGURATION = """\
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
#clear APT::Architectures;
#clear DPkg::Pre-Install-Pkgs;
#clear DPkg::Post-Invoke;
Dir::State "{folder}/state";
Dir::State::lists "{folder}/state/lists";
Dir::State::status "{folder}/state/status";
Dir::Cache "{folder}/cache";
Dir::Cache::archives "{folder}/cache/archives";
Dir::Log "{folder}/log";
Dir::Etc::sourcelist "{folder}/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
APT::Architecture "amd64";
APT::Architectures {{ "amd64"; }};
APT::Default-Release "";
APT::Sandbox::User "root";
APT::Get::AllowUnauthenticated "false";
Acquire::AllowInsecureRepositories "false";
Acquire::Languages "none";
"""


@dataclass(frozen=True, slots=True)
class PrivateApt:
    """An apt of our own in one folder. Removing the folder removes every trace."""

    folder: Path
    progress: Progress

    @property
    def configuration(self) -> Path:
        return self.folder / "apt.conf"

    @property
    def archives(self) -> Path:
        """Downloaded packages."""
        return self.folder / "cache/archives"

    def update(self) -> None:
        """Write the configuration and fetch the package lists (about 11 MB)."""
        for part in ("state/lists/partial", "cache/archives/partial", "log"):
            (self.folder / part).mkdir(parents=True, exist_ok=True)
        (self.folder / "state/status").touch()
        keyring = next((path for path in KEYRINGS if path.exists()), None)
        if keyring is None:
            raise SetupFailed(
                "Debian's archive keyring is missing, so nothing from there can be verified.",
                remedy="apt-get install debian-archive-keyring",
            )
        source = f"deb [signed-by={keyring}] {mirror()} {SUITE} main\n"
        (self.folder / "sources.list").write_text(source)
        self.configuration.write_text(_CONFIGURATION.format(folder=self.folder))
        self._apt("update")

    def unpack(self, packages: Sequence[str], target: Path) -> dict[str, str]:
        """Download packages with everything they depend on and unpack them into `target`.

        Returns the versions that came, by package."""
        self._apt("install", "--download-only", "-y", "--no-install-recommends", *packages)
        target.mkdir(parents=True, exist_ok=True)
        versions = {}
        for archive in sorted(self.archives.glob("*.deb")):
            if archive.name.startswith(UNWANTED):
                continue
            self.progress.run(
                "tools", ["dpkg-deb", "-x", archive, target], environment=_environment()
            )
            name, version = archive.name.split("_")[:2]
            versions[name] = version.replace("%3a", ":")
        return versions

    def _apt(self, *arguments: str) -> None:
        argv = ["apt-get", "-c", str(self.configuration), "-qq", *arguments]
        self.progress.run("tools", argv, environment=_environment(), grows=self.folder)


def mirror() -> str:
    """The Debian mirror that the machine's own apt uses for its own release.

    Raises `SetupFailed` where apt knows none: set-up guesses no addresses."""
    listed = subprocess.run(
        [
            "apt-get",
            "indextargets",
            "--format",
            "$(REPO_URI)|$(ORIGIN)|$(RELEASE)|$(COMPONENT)",
            "Created-By: Packages",
        ],
        capture_output=True,
        text=True,
        env=_environment(),
        check=False,
    )
    found = choose_mirror(listed.stdout.splitlines(), _codename())
    if found is None:
        raise SetupFailed(
            "The machine's apt knows no mirror with Debian's own release in it.",
            remedy="Add Debian's `main` to /etc/apt/sources.list.d, or install criu 4.2 or newer, "
            "passt, iproute2 and tini-static yourself.",
        )
    return found


def choose_mirror(lines: Iterable[str], codename: str) -> str | None:
    """The mirror of Debian's `main` among `uri|origin|release|component` lines.

    Others publish a `main` of the same release too. Where lists were never fetched the origin is
    unknown: then the address that ends like Debian's own archive wins."""
    ranked = []
    for line in lines:
        uri, origin, release, component = [*line.split("|"), "", "", ""][:4]
        known = release in (codename, "stable", "testing", "unstable", SUITE)
        if component != "main" or not known or origin not in ("Debian", ""):
            continue
        looks_like = uri.rstrip("/").endswith("/debian")
        if origin == "Debian" or looks_like:
            ranked.append((origin != "Debian", not looks_like, release != codename, uri))
    return min(ranked)[-1] if ranked else None


def _codename() -> str:
    text = Path("/etc/os-release").read_text()
    found = re.search(r"^VERSION_CODENAME=\"?([a-z]+)", text, re.MULTILINE)
    return found[1] if found else "stable"


def _environment() -> dict[str, str]:
    # Messages are shown to people as they are, and parsed nowhere; the names of packages are.
    return os.environ | {"LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}


def install_on_machine(name: str, packages: Sequence[str], progress: Progress) -> None:
    """Install packages with the machine's own apt: a change outside the state folder, said aloud.
    `name` is the step's, for its log."""
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise SetupFailed(
            f"Missing on this machine: {', '.join(packages)}.",
            remedy=f"As root: apt-get install --no-install-recommends {' '.join(packages)}",
        )
    progress.say(f"installing on this machine with apt: {', '.join(packages)}")
    progress.run(name, ["apt-get", "-qq", "update"], environment=_environment())
    argv = ["apt-get", "-qq", "install", "-y", "--no-install-recommends", *packages]
    progress.run(name, argv, environment=_environment())
