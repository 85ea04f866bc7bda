"""Limits of memory and processors: where groups are made, and that the kernel keeps them."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from snapshot import cgroups
from snapshot.cgroups import CgroupError, Limits, Place, choose, places, settings
from tests.builders.sandboxes import Box, until

PYTHON = "/usr/bin/python3"

UNIFIED = "30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate"
HYBRID = """\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 /docker/x /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
37 31 0:34 / /sys/fs/cgroup/freezer rw,relatime - cgroup cgroup rw,freezer
"""


@pytest.mark.parametrize(
    ("mounts", "own", "expected"),
    [
        (
            UNIFIED,
            "0::/user.slice/session-1.scope",
            (Place("/sys/fs/cgroup", 2, ("memory", "cpu", "pids")),),
        ),
        (
            HYBRID,
            "9:freezer:/\n4:memory:/docker/x/y\n2:cpu,cpuacct:/system\n",
            (
                Place("/sys/fs/cgroup/cpu,cpuacct/system", 1, ("cpu",)),
                Place("/sys/fs/cgroup/memory/y", 1, ("memory",)),
            ),
        ),
        (HYBRID, "4:memory:/elsewhere\n", ()),
        ("31 23 0:28 / /sys rw - sysfs sysfs rw", "0::/", ()),
    ],
    ids=["one hierarchy", "separate ones", "out of sight", "none"],
)
def test_where_groups_can_be_made(mounts: str, own: str, expected: tuple[Place, ...]) -> None:
    assert places(mounts, own) == expected


@pytest.mark.parametrize(
    ("limits", "place", "files"),
    [
        (
            Limits(2**30, 1.5),
            Place("/", 2, ("memory", "cpu")),
            {"memory.max": str(2**30), "memory.swap.max": "0", "cpu.max": "150000 100000"},
        ),
        (
            Limits(2**30, 1.5),
            Place("/", 1, ("memory",)),
            {
                "memory.limit_in_bytes": str(2**30),
                "memory.memsw.limit_in_bytes": str(2**30),
            },
        ),
        (
            Limits(2**30, 0.001),
            Place("/", 1, ("cpu",)),
            {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "1000"},
        ),
        (Limits(0, 0.0), Place("/", 2, ("memory", "cpu")), {}),
        (Limits(0, 0.0, 7), Place("/", 2, ("pids",)), {"pids.max": "7"}),
        (Limits(0, 0.0, 7), Place("/", 1, ("cpu",)), {}),
    ],
)
def test_what_is_written_into_a_group(limits: Limits, place: Place, files: dict[str, str]) -> None:
    assert settings(limits, place) == files


def groups_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cgroup").read_text()


def number(group: Path, *names: str) -> int:
    """The content of the first file that exists."""
    return int(next((group / name).read_text() for name in names if (group / name).exists()))


@pytest.fixture
async def limited(box: Box) -> AsyncIterator[Box]:
    """A sandbox of 300 MiB and half a processor."""
    reason = cgroups.why_not()
    if reason:
        pytest.skip(reason)
    box.spec.directory.mkdir(mode=0o711, parents=True, exist_ok=True)
    cgroups.apply(box.spec.directory, Limits(300 * 2**20, 0.5))
    yield box
    await box.clean_up()
    cgroups.remove(box.spec.directory)


HUNGRY = """
import os, time
child = os.fork()
if child == 0:
    held = bytearray(os.urandom(1)) * 2**29
    os._exit(0)
print("ended by", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
while True:
    pass
"""


async def test_who_takes_too_much_memory_is_ended_and_nobody_else(limited: Box) -> None:
    process = await limited.start(PYTHON, "-c", HUNGRY)
    await limited.says("ended by -9")
    groups = cgroups.joined(limited.spec.directory)
    assert all(group.name in groups_of(process.pid) for group in groups)
    (cpu,) = [group for group in groups if (group / "cpu.stat").exists()]

    def is_slowed() -> bool:
        return "nr_throttled 0" not in (cpu / "cpu.stat").read_text()

    await until(is_slowed, "half a processor is all it gets")


@pytest.mark.usefixtures("working_criu")
async def test_a_tree_comes_back_within_its_limits(limited: Box) -> None:
    program = (
        "import time; held = bytearray(b'x') * 2**26; print('up', flush=True); time.sleep(999)"
    )
    await limited.start(PYTHON, "-c", program)
    await limited.says("up")
    stored = await limited.freeze()
    directory = limited.spec.directory
    cgroups.remove(directory)
    assert not any(group.exists() for group in cgroups.joined(directory))
    cgroups.apply(directory, Limits(300 * 2**20, 0.5))
    thawed = await limited.thaw(stored)
    groups = cgroups.joined(directory)
    assert groups and all(group.name in groups_of(thawed.process.pid) for group in groups)
    memory = next(group for group in groups if list(group.glob("memory.*")))

    def has_its_memory() -> bool:
        return number(memory, "memory.current", "memory.usage_in_bytes") > 2**26

    await until(has_its_memory, "the memory that came back counts")


BOMB = """
import os, time
for count in range(200):
    try:
        if os.fork() == 0:
            time.sleep(999)
    except BlockingIOError:
        print("refused after", count, flush=True)
        break
time.sleep(999)
"""


async def test_who_starts_too_many_processes_is_refused(limited: Box) -> None:
    directory = limited.spec.directory
    cgroups.apply(directory, Limits(300 * 2**20, 0.5, processes=50))
    found = [group for group in cgroups.joined(directory) if (group / "pids.max").exists()]
    if not found:
        pytest.skip("There is no control group for pids here.")
    await limited.start(PYTHON, "-c", BOMB)
    await limited.says("refused after 4")
    assert 40 < number(found[0], "pids.current") <= 50


def test_a_kernel_that_can_have_few_processes_keeps_half_of_them() -> None:
    most = min(int(Path("/proc/sys/kernel", n).read_text()) for n in ("pid_max", "threads-max"))
    assert cgroups.most_processes(10) == 10
    assert cgroups.most_processes(10**9) == most // 2


async def test_groups_are_made_again_changed_and_taken_away(limited: Box) -> None:
    directory = limited.spec.directory
    first = cgroups.joined(directory)
    cgroups.apply(directory, Limits(400 * 2**20, 0.5))
    assert cgroups.joined(directory) == first
    memory = next(group for group in first if list(group.glob("memory.*")))
    assert number(memory, "memory.max", "memory.limit_in_bytes") == 400 * 2**20
    cgroups.remove(directory)
    cgroups.remove(directory)
    assert cgroups.joined(directory) == () and not any(group.exists() for group in first)


async def test_what_others_left_behind_is_taken_away_and_what_lives_or_begins_is_not(
    limited: Box,
) -> None:
    await limited.start(PYTHON, "-c", "import time; time.sleep(999)")
    mine = cgroups.joined(limited.spec.directory)
    left, young = ([group.with_name(name) for group in mine] for name in ("left", "young"))
    for group in (*left, *young):
        group.mkdir()
    for group in (*left, *mine):
        os.utime(group, (1.0, 1.0))
    other = limited.folder / "other"
    other.mkdir()
    cgroups.apply(other, Limits(2**30, 1.0))
    assert not any(group.exists() for group in left)
    assert all(group.exists() for group in (*young, *mine))
    cgroups.remove(other)
    for group in young:
        group.rmdir()


def test_a_sandbox_without_limits_has_no_groups(tmp_path: Path) -> None:
    cgroups.apply(tmp_path, Limits())
    assert cgroups.joined(tmp_path) == ()


BOTH = (
    Place("/u", 2, ("memory", "cpu", "pids")),
    Place("/m", 1, ("memory",)),
    Place("/c", 1, ("cpu",)),
)
PIDS = Place("/p", 1, ("pids",))


@pytest.mark.parametrize(
    ("limits", "found", "unified_has", "expected"),
    [
        (Limits(1, 1), BOTH, ("memory", "cpu", "io"), ["/u"]),
        (Limits(1, 1), BOTH, ("hugetlb",), ["/m", "/c"]),
        (Limits(1, 0), BOTH, (), ["/m"]),
        (Limits(0, 1), BOTH, ("cpu",), ["/u"]),
        (Limits(1, 1, 9), (*BOTH, PIDS), ("memory", "cpu", "pids"), ["/u"]),
        (Limits(1, 1, 9), (*BOTH, PIDS), ("memory", "cpu"), ["/m", "/c", "/p"]),
        (Limits(1, 1, 9), BOTH, ("memory", "cpu"), ["/u"]),
        (Limits(1, 1, 9), BOTH, (), ["/m", "/c"]),
        (Limits(0, 0, 9), (*BOTH, PIDS), (), ["/p"]),
        (Limits(0, 0, 9), BOTH, (), []),
    ],
)
def test_which_hierarchy_is_used(
    limits: Limits, found: tuple[Place, ...], unified_has: tuple[str, ...], expected: list[str]
) -> None:
    chosen = choose(limits, found, unified_has=unified_has)
    assert [place.folder for place in chosen] == expected


@pytest.mark.parametrize(
    ("found", "missing"), [((), "cpu and memory"), (BOTH[:2], "cpu"), (BOTH[:1], "cpu and memory")]
)
def test_a_machine_without_groups_says_so(found: tuple[Place, ...], missing: str) -> None:
    with pytest.raises(CgroupError, match=f"no control group for {missing} here"):
        choose(Limits(1, 1), found, unified_has=("hugetlb",))
