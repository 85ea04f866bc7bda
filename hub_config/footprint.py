"""Everything that Hubernate uses of a machine outside its checkout and its state folder (pure)."""

from __future__ import annotations

from dataclasses import dataclass

FIRST_MANAGED_UID = 210_000
FIRST_INNER_ROOT = 1_000_000


@dataclass(frozen=True, slots=True)
class Use:
    """One thing: what, what for, and how to take it back."""

    what: str
    purpose: str
    undo: str


FOOTPRINT = (
    Use(
        f"user ids {FIRST_MANAGED_UID} and up",
        "accounts of Hub users who have none on this machine; numbers only, nothing is written to "
        "/etc/passwd",
        "remove the state folder; nothing else knows them",
    ),
    Use(
        f"user ids {FIRST_INNER_ROOT} and up",
        "the root of each sandbox, one id per session or job, without any right outside",
        "nothing to undo: no file outside a sandbox has them",
    ),
    Use(
        "five TCP ports on 127.0.0.1 (8000 to 8004), and one per running session",
        "Hub, proxy, scheduler, store and sessions",
        "hubernate down",
    ),
    Use(
        "mount, network and user namespaces",
        "one set per sandbox; they vanish with its last process",
        "hubernate down",
    ),
    Use(
        "control groups hubernate/… below /sys/fs/cgroup",
        "memory and processors of sessions whose profile limits them; gone with the session",
        "nothing to undo: what is left is an empty folder until the next reboot",
    ),
    Use(
        "sysctl vm.unprivileged_userfaultfd: 1 while a session is being restored",
        "memory that arrives after the session runs again; sessions themselves are kept from it. The "
        "old value is put back with the last restore, or at the next start if one was killed",
        "nothing to undo; where it may not be set, sessions wait for all of their memory",
    ),
    Use(
        "system packages: none for running; chromium, fonts-dejavu-core, gcc, libc6-dev, postgresql for "
        "tests",
        "make test installs them with apt where they are missing, and says so",
        "apt-get remove --autoremove chromium fonts-dejavu-core gcc libc6-dev postgresql",
    ),
    Use(
        "the state folder (HUBERNATE_STATE, else /var/lib/hubernate)",
        "programs, secrets, snapshots, homes, logs",
        "hubernate down, then remove the folder: homes and snapshots go with it",
    ),
)
