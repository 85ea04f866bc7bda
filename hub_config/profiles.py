"""The profile table of one installation: the defaults, or what the operator wrote.

`profiles.yaml` in the configuration folder replaces the defaults. An example with every field:

    profiles:
      - slug: cpu
        title: CPU only
        description: For writing and light work.
      - slug: a100
        title: 1 A100
        description: One whole A100.
        gpus: 1
        gpu_model: NVIDIA A100-SXM4-80GB
        cpus: 8
        memory_gib: 64
        suspend: never          # or allowed, which is the default

`cpus` and `memory_gib` are limits, kept by the kernel's control groups: a session never gets more
processor time, and in one that takes more memory a process is ended. Without them it may use the
whole machine.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from spawner.profiles_model import (
    DEFAULT_PROFILES,
    GIB,
    BadProfiles,
    Profile,
    check_profiles,
)

PROFILES_FILE: Final = "profiles.yaml"
_FIELDS: Final = frozenset(
    {"slug", "title", "description", "gpus", "gpu_model", "cpus", "memory_gib", "suspend"}
)
_SUSPEND: Final = ("allowed", "never")


def profiles_for(largest_machine: int | None) -> tuple[Profile, ...]:
    """The default table without the sizes that no machine here has (None: unknown, all of them)."""
    return tuple(
        profile
        for profile in DEFAULT_PROFILES
        if largest_machine is None or profile.gpus <= largest_machine
    )


def load_profiles(path: Path, *, largest_machine: int | None = None) -> tuple[Profile, ...]:
    """The operator's table if the file exists, else the defaults. Raises `BadProfiles` naming file,
    entry, key and what is allowed."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        return profiles_for(largest_machine)
    try:
        document = YAML(typ="safe").load(text)
    except YAMLError as problem:
        raise BadProfiles(f"{path}: {problem}") from problem
    entries = document.get("profiles") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise BadProfiles(f"{path}: there must be one key, profiles, with a list.")
    profiles = tuple(_profile(entry, f"{path}, entry {n}") for n, entry in enumerate(entries, 1))
    check_profiles(profiles)
    return profiles


def _profile(entry: Any, where: str) -> Profile:
    if not isinstance(entry, dict):
        raise BadProfiles(f"{where}: an entry is a mapping with the keys {_allowed()}.")
    unknown = sorted(str(key) for key in set(entry) - _FIELDS)
    if unknown:
        raise BadProfiles(f"{where}: unknown key {unknown[0]!r}. Allowed are {_allowed()}.")
    slug = _text(entry, "slug", where)
    if not slug:
        raise BadProfiles(f"{where}: slug is missing.")
    return Profile(
        slug=slug,
        title=_text(entry, "title", where) or slug,
        description=_text(entry, "description", where),
        gpus=_whole(entry, "gpus", where),
        cpus=float(_number(entry, "cpus", where)),
        memory_bytes=int(_number(entry, "memory_gib", where) * GIB),
        gpu_model=_text(entry, "gpu_model", where),
        never_suspends=_choice(entry, "suspend", _SUSPEND, where) == "never",
    )


def _allowed() -> str:
    return ", ".join(sorted(_FIELDS))


def _text(entry: dict[str, Any], key: str, where: str) -> str:
    value = entry.get(key, "")
    if not isinstance(value, str):
        raise BadProfiles(f"{where}: {key} must be a text, not {value!r}.")
    return value


def _choice(entry: dict[str, Any], key: str, allowed: tuple[str, ...], where: str) -> str:
    """One of the allowed words, the first if the key is not there."""
    value = entry.get(key, allowed[0])
    if value not in allowed:
        raise BadProfiles(f"{where}: {key} must be {' or '.join(allowed)}, not {value!r}.")
    return str(value)


def _number(entry: dict[str, Any], key: str, where: str) -> float:
    value = entry.get(key, 0)
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise BadProfiles(f"{where}: {key} must be a number, 0 or more, not {value!r}.")
    return value


def _whole(entry: dict[str, Any], key: str, where: str) -> int:
    value = _number(entry, key, where)
    if not isinstance(value, int):
        raise BadProfiles(f"{where}: {key} must be a whole number, not {value!r}.")
    return value
