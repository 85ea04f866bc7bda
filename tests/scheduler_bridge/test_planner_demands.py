"""Where a suspended session may come back: sentences as tests."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_bridge.policy.demands import lacking
from scheduler_bridge.policy.planner import plan
from scheduler_bridge.policy.values import (
    FleetState,
    GpuKind,
    NodeState,
    Pending,
    Plan,
    Rules,
    Running,
    WaitReason,
)
from scheduler_bridge.policy.wording import wait_remedy, wait_sentence
from tests.scheduler_bridge.fleets import idle, pending, running

H200, L4 = "NVIDIA H200", "NVIDIA L4"
DRIVER = {"gpu_driver": "580.65"}


def node(name: str, *models: str, driver: str = "580.65", ready: bool = True) -> NodeState:
    """A machine whose GPUs are called like it: n0g0, n0g1, …"""
    gpus = tuple(f"{name}g{g}" for g in range(len(models)))
    kinds = {gpu: GpuKind(model, 100) for gpu, model in zip(gpus, models, strict=True)}
    return NodeState(name, gpus, ready, {"gpu_driver": driver, "kernel": "6.12"}, kinds)


def back(*models: str, **more: Any) -> Pending:
    """A session that computed on these models."""
    demands = {"gpu_models": "; ".join(models), **DRIVER, **more} if models else more
    return pending("back", gpus=len(models), returning=True, demands=demands)


def decide(nodes: list[NodeState], *queue: Pending, runs: list[Running] | None = None) -> Plan:
    holders = {gpu: item.id for item in runs or [] for gpu in item.gpus}
    return plan(FleetState(tuple(nodes), holders), queue, runs or [], Rules(), 1000.0)


def placed(decided: Plan) -> tuple[str, ...]:
    (placement,) = decided.placements
    return placement.gpus


def said(decided: Plan) -> tuple[WaitReason, str]:
    (wait,) = decided.waits
    assert wait_remedy(wait.reason)
    return wait.reason, wait_sentence(wait.reason, wait.evidence)


def test_it_goes_where_the_driver_is_although_another_machine_is_tighter() -> None:
    nodes = [node("n0", H200, driver="590.1"), node("n1", H200, H200)]
    assert placed(decide(nodes, back(H200))) == ("n1g0",)


def test_who_demands_nothing_still_takes_the_tightest() -> None:
    nodes = [node("n0", H200, driver="590.1"), node("n1", H200, H200)]
    assert placed(decide(nodes, pending("new"))) == ("n0g0",)


def test_it_gets_the_models_that_it_had_in_their_order() -> None:
    nodes = [node("n0", L4, H200, L4, H200)]
    assert placed(decide(nodes, back(H200, L4))) == ("n0g1", "n0g2")
    assert placed(decide(nodes, back(H200, H200))) == ("n0g1", "n0g3")


def test_it_gets_the_very_same_gpu_where_the_driver_cannot_move() -> None:
    assert placed(decide([node("n0", H200, H200)], back(H200, gpu_uuids="n0g1"))) == ("n0g1",)


def test_its_gpus_have_the_memory_that_it_held() -> None:
    big = node("n0", H200, H200)
    kinds = {"n0g0": GpuKind(H200, 10), "n0g1": GpuKind(H200, 90)}
    big = NodeState("n0", big.gpus, True, big.facts, kinds)
    assert placed(decide([big], back(H200, gpu_bytes="80"))) == ("n0g1",)


def test_a_session_without_gpu_state_takes_any_gpu_of_a_machine_that_fits() -> None:
    item = pending("back", gpus=1, returning=True, demands={"kernel": "6.10"})
    assert placed(decide([node("n0", L4)], item)) == ("n0g0",)


def test_what_is_not_known_is_not_judged() -> None:
    assert placed(decide([NodeState("n0", ("a",))], back(H200, criu="9.9"))) == ("a",)


def test_idle_work_yields_only_on_a_machine_that_fits() -> None:
    nodes = [node("n0", H200, driver="590.1"), node("n1", H200)]
    runs = [idle("other", "n0g0", since=1.0), idle("this", "n1g0", since=9.0)]
    decided = decide(nodes, back(H200), runs=runs)
    assert [p.victim for p in decided.preemptions] == ["this"]
    assert decided.earmarks == {"n1g0": "back"}


def test_it_is_not_in_the_way_of_who_can_use_what_it_cannot() -> None:
    nodes = [node("n0", H200, driver="590.1"), node("n1", H200)]
    decided = decide(nodes, back(H200), pending("new", since=5), runs=[running("r", "n1g0")])
    assert placed(decided) == ("n0g0",)


WORDS = [
    (
        "the fitting machine is taken",
        [node("n0", H200, driver="590.1"), node("n1", H200)],
        [running("r", "n1g0")],
        back(H200),
        WaitReason.FITTING_NODE,
        "It waits for a machine with NVIDIA driver 580.65: n1.",
    ),
    (
        "the fitting machine is not ready",
        [node("n0", L4, driver="590.1"), node("n1", H200, ready=False)],
        [],
        back(H200),
        WaitReason.FITTING_NODE,
        "It waits for a machine with NVIDIA H200 and NVIDIA driver 580.65: n1.",
    ),
    (
        "the fitting GPU of the machine is taken",
        [node("n0", L4, H200)],
        [running("r", "n0g1")],
        back(H200),
        WaitReason.FITTING_NODE,
        "It waits for a machine with NVIDIA H200: n0.",
    ),
    (
        "everything is taken",
        [node("n0", H200, driver="590.1"), node("n1", H200)],
        [running("q", "n0g0"), running("r", "n1g0")],
        back(H200),
        WaitReason.NO_FREE_GPUS,
        "It needs 1 GPU and none of the fleet's is free.",
    ),
    (
        "the driver was replaced everywhere",
        [node("n0", H200, driver="590.1")],
        [],
        back(H200),
        WaitReason.NO_NODE_FITS,
        "No machine of this installation can bring it back: it needs NVIDIA driver 580.65 "
        "(n0 has 590.1).",
    ),
    (
        "one lacks the driver, others the models",
        [node("n0", H200, H200, driver="590.1"), *(node(f"n{n}", L4, H200) for n in range(1, 6))],
        [],
        back(H200, H200),
        WaitReason.NO_NODE_FITS,
        "No machine of this installation can bring it back: it needs NVIDIA driver 580.65 "
        "(n0 has 590.1) and 2 × NVIDIA H200 (n1 has NVIDIA L4 and NVIDIA H200, n2 has NVIDIA L4 and "
        "NVIDIA H200, n3 has NVIDIA L4 and NVIDIA H200 and 2 more).",
    ),
    (
        "an instruction is missing",
        [NodeState("n0", (), facts={"cpu_flags": "fpu"})],
        [],
        back(cpu_flags="avx512f fpu"),
        WaitReason.NO_NODE_FITS,
        "No machine of this installation can bring it back: it needs a processor with avx512f "
        "(not n0).",
    ),
    (
        "no machine is ready, and none could",
        [node("n0", H200, driver="590.1", ready=False)],
        [],
        back(H200),
        WaitReason.NO_NODE_FITS,
        "No machine of this installation can bring it back: it needs NVIDIA driver 580.65 "
        "(n0 has 590.1).",
    ),
    (
        "too large with or without demands",
        [node("n0", H200, driver="590.1")],
        [],
        back(H200, H200),
        WaitReason.TOO_LARGE,
        "It needs more than any machine has now (1 GPU at most).",
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("nodes", "runs", "item", "reason", "sentence"),
    [w[1:] for w in WORDS],
    ids=[w[0] for w in WORDS],
)
def test_why_it_waits(
    nodes: list[NodeState], runs: list[Running], item: Pending, reason: WaitReason, sentence: str
) -> None:
    assert said(decide(nodes, item, runs=runs)) == (reason, sentence)


FACTS = st.fixed_dictionaries(
    {},
    optional={
        "gpu_driver": st.sampled_from(["580.65", "590.1"]),
        "kernel": st.sampled_from(["6.1", "6.12", "6.18"]),
    },
)
MODELS = st.sampled_from([H200, L4])


@st.composite
def machines(draw: st.DrawFn) -> list[NodeState]:
    found = []
    for n in range(draw(st.integers(1, 3))):
        gpus = tuple(f"n{n}g{g}" for g in range(draw(st.integers(0, 3))))
        kinds = {gpu: GpuKind(draw(MODELS), draw(st.sampled_from([10, 90]))) for gpu in gpus}
        found.append(NodeState(f"n{n}", gpus, draw(st.booleans()), draw(FACTS), kinds))
    return found


@st.composite
def comers(draw: st.DrawFn) -> list[Pending]:
    found = []
    for n in range(draw(st.integers(1, 4))):
        models = draw(st.lists(MODELS, max_size=2))
        demands = draw(FACTS)
        if models:
            demands |= {"gpu_models": "; ".join(models), "gpu_bytes": "50," * len(models)}
        found.append(pending(f"b{n}", len(models), returning=True, demands=demands, since=float(n)))
    return found


@given(machines(), comers())
@settings(max_examples=200, deadline=None)
def test_nobody_is_placed_where_it_cannot_run(nodes: list[NodeState], queue: list[Pending]) -> None:
    decided = decide(nodes, *queue)
    by_name = {state.name: state for state in nodes}
    items = {item.id: item for item in queue}
    for placement in decided.placements:
        (assignment,) = placement.assignments
        state, item = by_name[assignment.node], items[placement.id]
        assert lacking(item.demands, item.gpus, state) == {}
        if item.gpus:
            kinds = [state.kinds[gpu] for gpu in assignment.gpus]
            assert "; ".join(kind.model for kind in kinds) == item.demands["gpu_models"]
            assert all((kind.memory_bytes or 0) >= 50 for kind in kinds)


@given(machines(), comers())
@settings(max_examples=200, deadline=None)
def test_what_is_said_to_fit_nowhere_would_not_fit_alone(
    nodes: list[NodeState], queue: list[Pending]
) -> None:
    """And what no machine fits is said, whoever else is there."""
    ready = [NodeState(n.name, n.gpus, True, n.facts, n.kinds) for n in nodes]
    never = {w.id for w in decide(nodes, *queue).waits if w.reason is WaitReason.NO_NODE_FITS}
    for item in queue:
        alone = decide(ready, item)
        if item.id in never:
            assert not alone.placements
        elif not alone.placements:
            assert alone.waits[0].reason is WaitReason.TOO_LARGE
