"""Who can bring a snapshot back, as a table of sentences."""

from __future__ import annotations

import re

import pytest

from snapshot import compat

XEON = {
    "architecture": "x86_64",
    "kernel": "6.18.4-cloud",
    "cpu_flags": "avx avx2 avx512f fpu sse2",
    "xsave_bytes": "2696",
    "xsave_layout": "2@576+256 9@2688+8",
    "criu": "4.2.1",
    "image": "sha256:" + "a" * 64,
    "gpu_driver": "580.95.05",
    "gpu_models": "NVIDIA H200; NVIDIA H200",
}


def test_a_machine_can_bring_back_what_it_froze() -> None:
    assert compat.verdict(XEON, XEON) == ()


@pytest.mark.parametrize(
    ("fact", "here"),
    [
        ("kernel", "6.18.1"),  # an older patch of the same kernel
        ("kernel", "6.18"),
        ("kernel", "7.0"),
        ("criu", "4.2.1"),
        ("criu", "4.10"),
        ("criu", "5.0"),
        ("cpu_flags", "amx_tile avx avx2 avx512f fpu sse2"),
        ("xsave_bytes", "11008"),
        ("xsave_layout", "2@576+256 9@2688+8 17@2752+64"),
    ],
)
def test_newer_and_richer_machines_will_do(fact: str, here: str) -> None:
    assert compat.verdict(XEON, XEON | {fact: here}) == ()


@pytest.mark.parametrize(
    ("fact", "here", "says"),
    [
        ("architecture", "aarch64", "an aarch64|a aarch64"),
        ("kernel", "6.9.12", "Linux 6.18.4-cloud.*older 6.9.12"),
        ("kernel", "5.20", "older"),
        ("criu", "4.2", "cannot read it"),
        ("cpu_flags", "fpu sse2 avx", "lacks: avx2, avx512f"),
        ("xsave_bytes", "832", "2696 bytes.*only 832"),
        ("xsave_layout", "2@576+256 9@2432+8", "state 9@2688"),
        ("gpu_driver", "570.86.15", "driver 580.95.05.*has 570.86.15"),
        ("gpu_driver", "", "has none"),
        ("gpu_models", "NVIDIA H200", "would get NVIDIA H200"),
        ("gpu_models", "", "no GPU"),
        ("image", "", "this machine's own files"),
    ],
)
def test_what_is_missing_is_named(fact: str, here: str, says: str) -> None:
    (found,) = compat.verdict(XEON, XEON | {fact: here})
    assert found.what == fact
    assert re.search(says, found.why)
    assert found.remedy


def test_every_rule_can_fail_and_every_fact_has_a_rule() -> None:
    nowhere = dict.fromkeys(XEON, "") | {"kernel": "1.0", "criu": "1.0", "xsave_bytes": "1"}
    assert {found.what for found in compat.verdict(XEON, nowhere)} == set(XEON)


def test_hints_and_mitigations_are_no_reason() -> None:
    wanted = {"cpu_flags": "avx erms fsrm md_clear hypervisor constant_tsc"}
    assert compat.verdict(wanted, {"cpu_flags": "avx"}) == ()


def test_an_instruction_that_we_have_never_heard_of_counts() -> None:
    (found,) = compat.verdict({"cpu_flags": "avx avx2048"}, {"cpu_flags": "avx"})
    assert "avx2048" in found.why


def test_what_one_side_does_not_say_is_not_judged() -> None:
    assert compat.verdict({}, XEON) == ()
    assert compat.verdict(XEON, {}) == ()


@pytest.mark.parametrize(
    ("kernel", "breaks"), [("6.12.9", False), ("6.13.0", True), ("6.18", True)]
)
def test_a_kernel_that_criu_does_not_know_breaks_everything(kernel: str, breaks: bool) -> None:
    found = compat.verdict({}, {"kernel": kernel, "criu": "3.17.1"})
    assert [it.what for it in found] == (["criu"] if breaks else [])
    assert compat.verdict({}, {"kernel": kernel, "criu": "4.1"}) == ()


def test_an_upgrade_strands_only_by_what_it_changes() -> None:
    other = XEON | {"cpu_flags": "avx"}
    found, unknown = compat.stranded(XEON, other, {"gpu_driver": "590.1"})
    assert [it.what for it in found] == ["gpu_driver"]
    assert unknown == ()
    found, _ = compat.stranded({"kernel": "6.18"}, {"criu": "4.0"}, {"kernel": "6.18"})
    assert [it.what for it in found] == ["criu"]


def test_a_snapshot_without_gpu_state_does_not_care_for_the_driver() -> None:
    plain = {"kernel": "6.18", "criu": "4.2.1"}
    assert compat.stranded(plain, XEON, {"gpu_driver": "590.1"}) == ((), ())


def test_an_old_snapshot_that_does_not_say_is_told_apart() -> None:
    assert compat.stranded({"kernel": "6.18"}, XEON, {"criu": "4.1"}) == ((), ("criu",))


def test_an_upgrade_is_read() -> None:
    digest = "sha256:" + "0" * 64
    said = compat.parse_after(["kernel=6.20.1-cloud, driver=580.1", f"image=reg/x@{digest}"])
    assert said == {"kernel": "6.20.1-cloud", "gpu_driver": "580.1", "image": digest}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("kernal=6.1", "'kernal=6.1' is not understood; known are driver=…, kernel=…, image=…"),
        ("kernel", "not understood"),
        ("", "not understood"),
        ("kernel=six", "malformed; it looks like kernel=6.18.4"),
        ("kernel=6.1;rm", "malformed"),
        ("criu=4", "malformed"),
        ("driver=", "malformed"),
        ("image=latest", "64 hexadecimal digits"),
        ("criu=4.1,criu=4.2", "given twice"),
    ],
)
def test_nonsense_is_refused_with_what_would_be_right(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says.replace("(", r"\(")):
        compat.parse_after([text])
