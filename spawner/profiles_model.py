"""Profiles: the sizes of session that people choose from (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

GIB: Final = 2**30


@dataclass(frozen=True, slots=True)
class Profile:
    """One choice in the form. `gpus` 0 is a session without GPU. `gpu_model` empty: any model.

    `cpus` and `memory_bytes` limit what a session may use (0: the machine's own limits). Changes
    take effect at a session's next start or resume. Sessions of a size that `never_suspends` run
    until they are stopped, and keep their GPUs while idle.
    """

    slug: str
    title: str
    description: str
    gpus: int = 0
    cpus: float = 0.0
    memory_bytes: int = 0
    gpu_model: str = ""
    never_suspends: bool = False

    @property
    def why_not_freezable(self) -> str:
        """Empty where sessions of this size may be suspended, else the reason in one sentence."""
        if not self.never_suspends:
            return ""
        return f"Sessions of the size {self.title} are never suspended (suspend: never)."

    def limits_as_environment(self) -> dict[str, str]:
        """The variables in which JupyterHub's spawners tell programs inside of their limits."""
        memory = {"MEM_LIMIT": str(self.memory_bytes)} if self.memory_bytes else {}
        return memory | ({"CPU_LIMIT": str(self.cpus)} if self.cpus else {})


DEFAULT_PROFILES: Final = (
    Profile("cpu", "CPU only", "For writing, plotting and light work. Never waits for a GPU."),
    Profile("gpu-1", "1 GPU", "One whole GPU for you alone.", gpus=1),
    Profile("gpu-2", "2 GPUs", "Two GPUs of one machine.", gpus=2),
    Profile("gpu-4", "4 GPUs", "Four GPUs of one machine, for parallel training.", gpus=4),
)


class BadProfiles(ValueError):
    """The profile table contradicts itself; the message names the profile and the field."""


def check_profiles(profiles: tuple[Profile, ...]) -> None:
    """Raise `BadProfiles` for an empty table, a doubled or empty slug, or a negative number."""
    if not profiles:
        raise BadProfiles("The profile table is empty: at least one profile is needed.")
    seen: set[str] = set()
    for profile in profiles:
        if not profile.slug or profile.slug in seen:
            raise BadProfiles(f"Profile slug {profile.slug!r} is empty or used twice.")
        seen.add(profile.slug)
        for field, value in (
            ("gpus", profile.gpus),
            ("cpus", profile.cpus),
            ("memory_bytes", profile.memory_bytes),
        ):
            if value < 0:
                raise BadProfiles(f"Profile {profile.slug!r}: {field} is {value}, below 0.")
