"""What set-up says about machines, before it downloads anything."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hub_config.setup.machine import (
    GIB,
    Facts,
    Level,
    judge,
    missing_capabilities,
    read_facts,
    read_os_release,
)

GOOD = Facts(
    architecture="x86_64",
    distribution="debian",
    release="13",
    pretty_name="Debian GNU/Linux 13 (trixie)",
    kernel="6.12.0-1-amd64",
    is_root=True,
    missing_capabilities=(),
    namespaces_refused="",
    disk_free_bytes=100 * GIB,
    memory_bytes=16 * GIB,
    has_apt=True,
    state=Path("/var/lib/hubernate"),
)


def levels(facts: Facts, *, runs_sessions: bool = True) -> dict[str, Level]:
    findings = judge(facts, downloads_bytes=GIB, runs_sessions=runs_sessions)
    return {finding.subject: finding.level for finding in findings}


def test_a_supported_machine_is_all_well() -> None:
    assert set(levels(GOOD).values()) == {Level.OK}
    assert set(levels(replace(GOOD, release="12", kernel="6.1.0-9")).values()) == {Level.OK}


@pytest.mark.parametrize(
    ("change", "subject", "level"),
    [
        ({"architecture": "aarch64"}, "architecture", Level.STOP),
        ({"distribution": "ubuntu", "release": "24.04"}, "distribution", Level.WARN),
        ({"distribution": "debian", "release": "11"}, "distribution", Level.WARN),
        ({"kernel": "5.10.0-28-amd64"}, "kernel", Level.WARN),
        ({"kernel": "6.18.44-custom+"}, "kernel", Level.OK),
        ({"is_root": False}, "root", Level.STOP),
        ({"missing_capabilities": ("CAP_SYS_ADMIN",)}, "freezable", Level.WARN),
        ({"namespaces_refused": "Operation not permitted"}, "freezable", Level.WARN),
        ({"disk_free_bytes": 2 * GIB}, "disk", Level.WARN),
        ({"disk_free_bytes": GIB // 2}, "disk", Level.STOP),
        ({"memory_bytes": 2 * GIB}, "memory", Level.WARN),
        ({"state": Path("/tmp/x")}, "folder", Level.STOP),
        ({"state": Path("/var/tmp/x")}, "folder", Level.STOP),
        ({"state": Path("/tmporary")}, "folder", Level.OK),
    ],
)
def test_what_is_wrong_is_named(change: dict[str, object], subject: str, level: Level) -> None:
    assert levels(replace(GOOD, **change))[subject] is level  # type: ignore[arg-type]


def test_every_problem_that_can_be_cured_says_how() -> None:
    bad = replace(
        GOOD,
        architecture="aarch64",
        distribution="ubuntu",
        is_root=False,
        missing_capabilities=("CAP_SYS_ADMIN",),
        disk_free_bytes=0,
    )
    findings = judge(bad, downloads_bytes=GIB, runs_sessions=True)
    bad_ones = [finding for finding in findings if finding.level is not Level.OK]
    assert len(bad_ones) == 6
    assert all(finding.remedy for finding in bad_ones)


def test_checking_the_source_needs_no_root() -> None:
    assert levels(replace(GOOD, is_root=False), runs_sessions=False)["root"] is Level.OK


def test_capabilities_are_read_from_the_kernel() -> None:
    assert missing_capabilities("CapEff:\t000001ffffffffff\n") == ()
    missing = missing_capabilities("CapEff:\t000001ffffdfffff\n")
    assert missing == ("CAP_SYS_ADMIN",)
    assert "CAP_SYS_PTRACE" in missing_capabilities("")


def test_this_machine_is_read_at_once(tmp_path: Path) -> None:
    facts = read_facts(tmp_path / "not" / "there" / "yet")
    assert facts.architecture
    assert facts.memory_bytes > 0
    assert facts.disk_free_bytes > 0


def test_a_machine_without_a_release_file(tmp_path: Path) -> None:
    assert read_os_release(tmp_path / "none") == {}
