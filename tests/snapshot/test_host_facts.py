"""The facts of this machine, and of one with GPUs as its driver describes them."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from snapshot import compat, cpuid, host_facts
from snapshot.refusals import CannotThawError

VERSION = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (a@b)\n"
    "GCC version:  gcc version 12.2.0\n"
)


def test_this_machine_can_bring_back_what_it_freezes() -> None:
    facts = host_facts.machine()
    assert facts["kernel"] == platform.release()
    assert compat.verdict(facts, facts) == ()
    if platform.machine() == "x86_64":
        assert "sse2" in facts["cpu_flags"].split()
        assert not {"hypervisor", "erms", "md_clear"} & set(facts["cpu_flags"].split())


@pytest.mark.skipif(platform.machine() != "x86_64", reason="other processors have no such area")
def test_the_register_save_area_is_as_the_architecture_says() -> None:
    area = cpuid.save_area()
    assert area is not None
    assert area.states[0] == (2, 576, 256)  # AVX, on every processor that has it
    assert area.size >= max(at + size for _, at, size in area.states)
    assert area == cpuid.save_area()


def test_the_drivers_version_is_read(tmp_path: Path) -> None:
    said = tmp_path / "version"
    assert host_facts.driver(said) == ""
    said.write_text(VERSION)
    assert host_facts.driver(said) == "580.95.05"


def test_a_machine_that_does_not_fit_is_refused_with_reason_and_remedy() -> None:
    with pytest.raises(CannotThawError, match=r"avx9.*and 1 more") as refused:
        host_facts.refuse_unless_compatible(
            {"cpu_flags": "avx9", "kernel": "99.1"}, {"cpu_flags": "avx", "kernel": "6.18"}
        )
    assert "start fresh" in refused.value.remedy
    host_facts.refuse_unless_compatible({"kernel": "6.1"}, {"kernel": "6.18"})
