"""The scheduler and the machine that thaws judge a snapshot alike: one table through both."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hub_config.node_facts import node_facts
from scheduler_bridge.policy import demands
from scheduler_bridge.policy.values import GpuKind, NodeState
from snapshot import compat, host_facts
from snapshot.gpu import model
from snapshot.gpu.model import Device, GpuRecord, SavedGpu, Survey
from snapshot.instructions import NOT_INSTRUCTIONS
from snapshot.model import Tools

HERE = {
    "architecture": "x86_64",
    "cpu_flags": "avx avx2 fpu",
    "xsave_bytes": "832",
    "xsave_layout": "2@576+256",
    "kernel": "6.12.9-cloud",
    "criu": "4.2",
    "gpu_driver": "580.65.06",
    "image": "",
}
CASES = [
    ("the same machine", {}, {}, True),
    ("another architecture", {"architecture": "aarch64"}, {}, False),
    ("an instruction that is missing", {"cpu_flags": "avx avx512f"}, {}, False),
    ("more instructions than needed", {"cpu_flags": "avx"}, {}, True),
    ("a flag that is no instruction", {"cpu_flags": "avx hypervisor"}, {}, True),
    ("more registers", {"xsave_bytes": "2696"}, {}, False),
    ("fewer registers", {"xsave_bytes": "576"}, {}, True),
    ("another layout", {"xsave_layout": "2@576+256 9@832+8"}, {}, False),
    ("an older kernel", {"kernel": "6.18.1"}, {}, False),
    ("a newer kernel", {"kernel": "6.1.0-deb"}, {}, True),
    ("a patch level of the kernel", {"kernel": "6.12.77"}, {}, True),
    ("an older CRIU", {"criu": "4.2.1"}, {}, False),
    ("the same CRIU with zeros", {"criu": "4.2.0"}, {}, True),
    ("another driver", {"gpu_driver": "590.10"}, {}, False),
    ("a driver where there is none", {"gpu_driver": "580.65.06"}, {"gpu_driver": ""}, False),
    ("an image", {"image": "sha256:" + "a" * 64}, {}, False),
    ("Linux 6.13 with CRIU 4.0", {"criu": "4.0", "kernel": "6.1"}, {"kernel": "6.13", "criu": "4.0"},
     False),
    ("Linux 6.13 with CRIU 4.1", {"criu": "4.0", "kernel": "6.1"}, {"kernel": "6.13", "criu": "4.1"},
     True),
    ("nonsense for a version", {"kernel": "newest"}, {}, True),
]  # fmt: skip


@pytest.mark.parametrize(
    ("wanted", "here", "fits"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_both_say_the_same(wanted: dict[str, str], here: dict[str, str], fits: bool) -> None:
    host = HERE | here
    snapshot = {k: v for k, v in host.items() if k in HERE} | wanted
    assert (compat.verdict(snapshot, host) == ()) is fits
    assert (demands.lacking(snapshot, 0, node(host)) == {}) is fits


FACTS = st.fixed_dictionaries(
    {},
    optional={
        "architecture": st.sampled_from(["x86_64", "aarch64"]),
        "cpu_flags": st.sampled_from(["", "avx", "avx avx2", "avx hypervisor", "hypervisor"]),
        "xsave_bytes": st.sampled_from(["576", "832", "2696"]),
        "xsave_layout": st.sampled_from(["", "2@576+256", "2@576+256 9@832+8"]),
        "kernel": st.sampled_from(["6.1", "6.12.4-x", "6.13", "6.18.0", "no"]),
        "criu": st.sampled_from(["4.0", "4.1", "4.2", "4.2.1"]),
        "gpu_driver": st.sampled_from(["", "580.65", "590.1"]),
        "image": st.sampled_from(["", "sha256:1"]),
        "another": st.sampled_from(["a", "b"]),
    },
)


@given(FACTS, FACTS)
@settings(deadline=None)
def test_whatever_the_facts_both_name_the_same(
    wanted: dict[str, str], here: dict[str, str]
) -> None:
    """An empty snapshot demands nothing of the scheduler; the machine itself may still be broken."""
    if not wanted:
        return
    reasons = compat.verdict(wanted, here)
    assert bool(demands.lacking(wanted, 0, node(here))) is bool(reasons)


def node(host: dict[str, str]) -> NodeState:
    """The machine as `hub_config.node_facts` tells it."""
    facts = dict(host)
    if "cpu_flags" in facts:
        facts["cpu_flags"] = " ".join(NOT_INSTRUCTIONS.union(facts["cpu_flags"].split()))
    return NodeState("n", (), facts=facts)


def test_the_facts_that_are_told_are_those_that_are_compared() -> None:
    told = node_facts(Tools(criu=("/bin/sh", "-c", "echo Version: 4.2"), pasta=(), init=()))
    assert {rule.fact for rule in demands.RULES} >= told.keys() >= {"kernel", "architecture"}
    assert told["criu"] == "4.2"
    assert {rule.fact for rule in compat.RULES} - {"gpu_models"} == {
        rule.fact for rule in demands.RULES
    }
    assert demands.lacking(host_facts.machine(), 0, NodeState("here", (), facts=told)) == {}


@dataclass(frozen=True)
class Card:
    uuid: str
    model: str = "NVIDIA H200"
    gigabytes: int = 140

    @property
    def size(self) -> int:
        return self.gigabytes * 10**9


A, B = Card("GPU-a"), Card("GPU-b")
L4 = Card("GPU-c", "NVIDIA L4", 24)
GPU_CASES = [
    ("the same GPU", [A], [A], "580.65", True),
    ("another GPU of the model", [A], [B], "580.65", True),
    ("another GPU before driver 580", [A], [B], "575.10", False),
    ("the same GPU before driver 580", [A], [A], "575.10", True),
    ("another model", [A], [L4], "580.65", False),
    ("two in the other order", [A, L4], [L4, A], "580.65", False),
    ("two in order", [A, L4], [B, L4], "580.65", True),
    ("too little memory", [A], [Card("GPU-d", gigabytes=70)], "580.65", False),
    ("one too few", [A, B], [A], "580.65", False),
]  # fmt: skip


@pytest.mark.parametrize(
    ("had", "lease", "driver", "fits"), [c[1:] for c in GPU_CASES], ids=[c[0] for c in GPU_CASES]
)
def test_gpus_are_chosen_as_the_driver_wants_them(
    had: list[Card], lease: list[Card], driver: str, fits: bool
) -> None:
    """A lease of all the machine's GPUs, with what `snapshot.gpu` says of it. The session held
    100 GB of a big GPU, 20 GB of a small one."""
    saved = GpuRecord(
        driver,
        tuple(SavedGpu(c.uuid, c.model, min(c.gigabytes - 4, 100) * 10**9) for c in had),
        (1,),
    )
    here = Survey(
        driver,
        tuple(Device(n, c.uuid, c.model, c.size, c.size) for n, c in enumerate(lease)),
    )
    assert (model.why_not_here(saved, here) is None) is fits
    state = NodeState(
        "n",
        tuple(c.uuid for c in lease),
        facts={"gpu_driver": driver},
        kinds={c.uuid: GpuKind(c.model, c.size) for c in lease},
    )
    chosen = demands.choose(model.constraints(saved), len(had), state, state.gpus)
    assert (chosen == tuple(c.uuid for c in lease)) is fits
    assert (demands.lacking(model.constraints(saved), len(had), state) == {}) is fits
