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


def nvidia(folder: Path, models: dict[int, str]) -> Path:
    """/proc/driver/nvidia with these GPUs by their minor numbers."""
    (folder / "version").write_text(VERSION)
    for minor, model in models.items():
        place = folder / "gpus" / f"0000:{minor:02x}:00.0"
        place.mkdir(parents=True)
        text = f"Model: \t\t {model}\nIRQ:   \t\t 1\nDevice Minor: \t {minor}\n"
        (place / "information").write_text(text)
    return folder


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


def test_gpus_are_told_in_the_order_of_the_lease(tmp_path: Path) -> None:
    there = nvidia(tmp_path, {0: "NVIDIA A100", 1: "NVIDIA H200"})
    devices = ("/dev/nvidiactl", "/dev/nvidia1", "/dev/nvidia-uvm", "/dev/nvidia0")
    assert host_facts.gpus(devices, there) == {
        "driver": "580.95.05",
        "gpus": "NVIDIA H200, NVIDIA A100",
    }
    assert host_facts.gpus(("/dev/nvidia7",), there)["gpus"] == "an unknown GPU"


def test_without_a_driver_there_are_no_gpus(tmp_path: Path) -> None:
    assert host_facts.gpus(("/dev/vgpu0",), tmp_path) == {"driver": "", "gpus": ""}


def test_a_machine_that_does_not_fit_is_refused_with_reason_and_remedy() -> None:
    with pytest.raises(CannotThawError, match=r"avx9.*and 1 more") as refused:
        host_facts.refuse_unless_compatible(
            {"cpu_flags": "avx9", "kernel": "99.1"}, {"cpu_flags": "avx", "kernel": "6.18"}
        )
    assert "start fresh" in refused.value.remedy
    host_facts.refuse_unless_compatible({"kernel": "6.1"}, {"kernel": "6.18"})
