"""Budgets, guarantees, protection, reservations: sentences as tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scheduler_bridge.policy.columns import Columns, group_of
from scheduler_bridge.policy.passing import Decided, Desk
from scheduler_bridge.policy.planner import plan
from scheduler_bridge.policy.values import (
    FleetState,
    GpuKind,
    NodeState,
    Plan,
    PreemptionReason,
    Rules,
    Running,
    TeamRules,
    WaitReason,
)
from tests.scheduler_bridge.fleets import fleet, idle, job, pending, running

NOW = 100_000.0
HOUR = 3600.0


def teams(**more: TeamRules) -> Rules:
    return Rules(teams=more)


def decide(
    *sizes: int, queue: Any, runs: Any = (), rules: Rules | None = None, **more: Any
) -> Plan:
    runs = tuple(runs)
    return plan(fleet(*sizes, running=runs, **more), queue, runs, rules or Rules(), NOW)


def placed(decided: Plan) -> list[str]:
    return [p.id for p in decided.placements]


def reasons(decided: Plan) -> dict[str, WaitReason]:
    return {w.id: w.reason for w in decided.waits}


def victims(decided: Plan) -> list[tuple[str, PreemptionReason]]:
    return [(p.victim, p.reason) for p in decided.preemptions]


def allocated(name: str, gpus: int = 1, **more: Any) -> Any:
    return pending(name, gpus, **{"min_runtime": HOUR, **more})


# -- order -----------------------------------------------------------------------------------


def test_allocated_work_goes_before_what_runs_on_slack() -> None:
    queue = [pending("slack", since=1), allocated("paid", since=2, team="blue")]
    assert placed(decide(1, queue=queue)) == ["paid"]


def test_the_team_that_is_owed_most_goes_first() -> None:
    rules = teams(red=TeamRules(balance=10.0, share=0.5), blue=TeamRules(balance=20.0, share=0.5))
    queue = [allocated("red", since=1), allocated("blue", since=2, team="blue")]
    assert placed(decide(1, queue=queue, rules=rules)) == ["blue"]


def test_what_is_owed_is_seen_against_the_share() -> None:
    """A small team that got nothing is worse off than a large one that misses a little."""
    rules = teams(red=TeamRules(balance=20.0, share=0.8), blue=TeamRules(balance=10.0, share=0.1))
    queue = [allocated("red", since=1), allocated("blue", since=2, team="blue")]
    assert placed(decide(1, queue=queue, rules=rules)) == ["blue"]


def test_what_a_pass_gives_counts_at_once() -> None:
    rules = teams(red=TeamRules(balance=200.0, share=0.5), blue=TeamRules(balance=100.0, share=0.5))
    queue = [
        *(allocated(f"red{n}", since=n) for n in range(3)),
        *(allocated(f"blue{n}", since=n, team="blue") for n in range(3)),
    ]
    assert placed(decide(4, queue=queue, rules=rules)) == ["red0", "blue0", "red1", "blue1"]


def test_who_was_placed_before_goes_first_among_equals() -> None:
    queue = [allocated("new", since=1), allocated("again", since=2, attempts=1)]
    assert placed(decide(1, queue=queue)) == ["again"]


# -- guarantees ------------------------------------------------------------------------------

GUARANTEED = teams(red=TeamRules(guaranteed=2), blue=TeamRules())


def test_what_is_guaranteed_is_not_given_to_others_protected_work() -> None:
    decided = decide(2, queue=[allocated("blue", team="blue")], rules=GUARANTEED)
    assert reasons(decided) == {"blue": WaitReason.GUARANTEED}
    assert decided.waits[0].evidence["teams"] == ["red"]
    assert decided.waits[0].evidence["gpus"] == 2


def test_it_is_lent_to_work_without_protection() -> None:
    assert placed(decide(2, queue=[pending("blue", team="blue")], rules=GUARANTEED)) == ["blue"]


def test_no_more_of_it_is_lent_than_the_limit() -> None:
    rules = teams(red=TeamRules(guaranteed=2, lending_limit=1), blue=TeamRules())
    queue = [pending(f"blue{n}", team="blue", since=n) for n in range(2)]
    decided = decide(2, queue=queue, rules=rules)
    assert placed(decided) == ["blue0"]
    assert reasons(decided) == {"blue1": WaitReason.GUARANTEED}


def test_a_guaranteed_claim_gets_it_back_in_the_same_pass() -> None:
    runs = [job("lent", "n0g0", team="blue", is_allocated=False), running("busy", "n0g1")]
    decided = decide(2, queue=[allocated("claim", team="red")], runs=runs, rules=GUARANTEED)
    assert victims(decided) == [("lent", PreemptionReason.UNALLOCATED)]
    assert decided.earmarks == {"n0g0": "claim"}


def test_a_claim_takes_borrowed_gpus_once_their_protection_is_over() -> None:
    def borrowed(**more: Any) -> list[Running]:
        return [job("borrowed", "n0g0", team="blue", **more)]

    rules = teams(red=TeamRules(guaranteed=1), blue=TeamRules(guaranteed=0))
    claim = [allocated("claim")]
    protected = decide(1, queue=claim, runs=borrowed(yields_from=NOW + 1), rules=rules)
    assert victims(protected) == []
    decided = decide(1, queue=claim, runs=borrowed(), rules=rules)
    assert victims(decided) == [("borrowed", PreemptionReason.GUARANTEE)]


def test_what_a_team_holds_within_its_own_guarantee_is_not_taken() -> None:
    rules = teams(red=TeamRules(guaranteed=1), blue=TeamRules(guaranteed=1))
    runs = [job("own", "n0g0", team="blue")]
    assert victims(decide(1, queue=[allocated("claim")], runs=runs, rules=rules)) == []


def test_nobody_yields_for_work_that_their_guarantee_would_then_keep_out() -> None:
    rules = Rules(teams={"red": TeamRules(guaranteed=1)})
    runs = [idle("own", "n0g0", team="red")]
    decided = decide(1, queue=[allocated("other", team="blue")], runs=runs, rules=rules)
    assert victims(decided) == []


def test_nobody_yields_below_one_limit_for_work_that_another_keeps_out() -> None:
    rules = Rules(teams={"red": TeamRules(limit=2, priority_limits={3: 1})})
    runs = [idle("idle", "n0g0"), running("urgent", "n0g1", priority=3)]
    queue = [pending("one more", priority=3)]
    assert victims(decide(3, queue=queue, runs=runs, rules=rules)) == []
    runs[1] = running("normal", "n0g1")
    assert victims(decide(3, queue=queue, runs=runs, rules=rules))


def test_guaranteed_claims_go_before_what_is_owed() -> None:
    rules = teams(
        red=TeamRules(guaranteed=1, balance=-50.0, share=0.5),
        blue=TeamRules(balance=50.0, share=0.5),
    )
    queue = [allocated("owed", team="blue"), allocated("claim", since=5)]
    assert placed(decide(1, queue=queue, rules=rules)) == ["claim"]


# -- limits ----------------------------------------------------------------------------------


def test_a_team_borrows_no_more_than_it_may() -> None:
    rules = teams(red=TeamRules(guaranteed=1, borrowing_limit=1))
    decided = decide(4, queue=[pending(f"p{n}", since=n) for n in range(3)], rules=rules)
    assert placed(decided) == ["p0", "p1"]
    assert reasons(decided) == {"p2": WaitReason.TEAM_LIMIT}


def test_a_limit_for_urgent_work_leaves_the_rest_alone() -> None:
    rules = teams(red=TeamRules(priority_limits={3: 1}))
    queue = [pending("u1", priority=3), pending("u2", priority=3, since=1), pending("n", since=2)]
    decided = decide(4, queue=queue, rules=rules)
    assert placed(decided) == ["u1", "n"]
    assert reasons(decided) == {"u2": WaitReason.PRIORITY_LIMIT}


# -- turns -----------------------------------------------------------------------------------


def test_slack_yields_to_paid_work_of_any_team() -> None:
    runs = [job("slack", "n0g0", team="blue", priority=3, is_allocated=False)]
    assert victims(decide(1, queue=[allocated("paid")], runs=runs)) == [
        ("slack", PreemptionReason.UNALLOCATED)
    ]
    assert victims(decide(1, queue=[pending("other slack")], runs=runs)) == []


TURNS = [
    ("its protection is not over", {"yields_from": NOW + 1}, 1e6, False),
    ("the other is owed hardly more", {}, 800.0, False),
    ("the other is owed more", {}, 1000.0, True),
    ("it was preempted often today", {"preemptions": 6}, 1e6, False),
]


@pytest.mark.parametrize(("when", "more", "owed", "ends"), TURNS, ids=[t[0] for t in TURNS])
def test_a_turn_ends(when: str, more: dict[str, Any], owed: float, ends: bool) -> None:
    rules = teams(red=TeamRules(balance=owed, share=0.5), blue=TeamRules(share=0.5))
    runs = [job("turn", "n0g0", team="blue", **more)]
    found = victims(decide(1, queue=[allocated("next")], runs=runs, rules=rules))
    assert found == ([("turn", PreemptionReason.TURN_ENDED)] if ends else [])


def test_inside_a_team_a_turn_ends_for_who_waited_for_all_of_it() -> None:
    runs = [job("turn", "n0g0", since=NOW - HOUR)]
    waited = decide(1, queue=[allocated("next", since=NOW - 2 * HOUR)], runs=runs)
    assert victims(waited) == [("turn", PreemptionReason.TURN_ENDED)]
    assert victims(decide(1, queue=[allocated("late", since=NOW - 60)], runs=runs)) == []


def test_a_turn_ends_right_after_a_checkpoint() -> None:
    """What is lost with it is at most a hundredth of it."""
    rules = teams(red=TeamRules(balance=1e6, share=0.5), blue=TeamRules(share=0.5))

    def after(seconds: float) -> list[tuple[str, PreemptionReason]]:
        runs = [job("turn", "n0g0", team="blue", since=NOW - 8 * HOUR, saved_at=NOW - seconds)]
        return victims(decide(1, queue=[allocated("next")], runs=runs, rules=rules))

    assert after(250) == [("turn", PreemptionReason.TURN_ENDED)]
    assert after(300) == []


def test_debug_work_neither_ends_turns_nor_has_them_ended() -> None:
    rules = teams(red=TeamRules(balance=1e6, share=0.5), blue=TeamRules(share=0.5))
    runs = [job("turn", "n0g0", team="blue", saved_at=NOW)]
    short = pending("short", min_runtime=900.0)
    assert victims(decide(1, queue=[short], runs=runs, rules=rules)) == []
    since = NOW - 1000
    debug = [job("debug", "n0g0", team="blue", since=since, yields_from=since + 900, saved_at=NOW)]
    assert victims(decide(1, queue=[allocated("next")], runs=debug, rules=rules)) == []


def test_slack_has_a_moment_before_it_yields_but_not_to_who_is_guaranteed() -> None:
    runs = [job("slack", "n0g0", team="blue", since=NOW - 200, is_allocated=False)]
    assert victims(decide(1, queue=[allocated("paid")], runs=runs)) == []
    rules = teams(red=TeamRules(guaranteed=1))
    assert victims(decide(1, queue=[allocated("claim")], runs=runs, rules=rules)) == [
        ("slack", PreemptionReason.UNALLOCATED)
    ]


def test_nobody_takes_turns_at_making_the_other_yield() -> None:
    runs = [job("other", "n0g0", priority=0)]
    assert victims(decide(1, queue=[allocated("a")], runs=runs))
    assert victims(decide(1, queue=[allocated("a", yielded_to=("other",))], runs=runs)) == []


def test_a_pass_costs_others_no_more_than_the_budget() -> None:
    runs = [
        job(
            f"v{n}", f"n0g{n}", team="blue", since=NOW - 1000, saved_at=NOW - 80, is_allocated=False
        )
        for n in range(3)
    ]
    queue = [allocated(f"a{n}", since=n) for n in range(3)]

    def asked(budget: float) -> int:
        return len(victims(decide(3, queue=queue, runs=runs, rules=Rules(loss_budget=budget))))

    assert [asked(99.0), asked(100.0), asked(250.0), asked(300.0)] == [0, 1, 2, 3]


def slack(count: int) -> list[Running]:
    common = {"team": "blue", "since": NOW - 1000, "saved_at": NOW - 80, "is_allocated": False}
    return [job(f"v{n}", f"n0g{n}", **common) for n in range(count)]


def test_all_victims_together_cost_no_more_than_the_budget() -> None:
    two = [allocated("two", gpus=2)]
    assert not victims(decide(2, queue=two, runs=slack(2), rules=Rules(loss_budget=199.0)))
    assert len(victims(decide(2, queue=two, runs=slack(2), rules=Rules(loss_budget=200.0)))) == 2


def test_while_preemption_is_paused_nothing_is_lost() -> None:
    columns = Columns(fleet(2).nodes)
    for it in slack(2):
        columns.start(it, ((0, 1),))
    columns.submit(allocated("two", gpus=2))
    assert Desk(columns, Rules(), NOW).run().lost == 200.0
    assert Desk(columns, Rules(preemption=False), NOW).run().lost == 0.0


def test_a_gang_may_take_more_than_is_saved_up_if_anything_is() -> None:
    runs = [replace(slack(1)[0], id=f"v{n}", gpus=(f"n{n}g0",)) for n in range(3)]
    gang = [allocated("gang", nodes=3)]
    assert not victims(decide(1, 1, 1, queue=gang, runs=runs, rules=Rules(loss_budget=0.0)))
    assert len(victims(decide(1, 1, 1, queue=gang, runs=runs, rules=Rules(loss_budget=1.0)))) == 3


def test_turns_end_for_a_gang_whatever_was_saved_when() -> None:
    """Its machines never have their checkpoints at the same moment, but their protection ends."""
    rules = teams(red=TeamRules(balance=1e6, share=0.5), blue=TeamRules(share=0.5))
    old = {"team": "blue", "since": NOW - 8 * HOUR, "saved_at": NOW - 2000}
    runs = [job(f"v{n}", f"n{n}g0", **old) for n in range(2)]
    gang = [allocated("gang", nodes=2)]
    assert len(victims(decide(1, 1, queue=gang, runs=runs, rules=rules))) == 2
    assert victims(decide(1, 1, queue=[allocated("one")], runs=runs, rules=rules)) == []
    runs[1] = replace(runs[1], yields_from=NOW + 700)
    decided = decide(1, 1, queue=gang, runs=runs, rules=rules)
    assert decided.waits[0].evidence["starts_by"] == NOW + 700


def test_a_teams_own_priorities_are_its_own_affair() -> None:
    runs = [job("low", "n0g0", priority=0, since=NOW - 5 * HOUR)]
    assert victims(decide(1, queue=[allocated("a")], runs=runs, rules=Rules(loss_budget=0.0)))


def test_idle_sessions_and_guarantees_cost_the_budget_nothing_that_stops_them() -> None:
    rules = Rules(loss_budget=0.0)
    assert victims(decide(1, queue=[allocated("a")], runs=[idle("s", "n0g0")], rules=rules))
    rules = Rules(loss_budget=0.0, teams={"red": TeamRules(guaranteed=1), "blue": TeamRules()})
    for is_allocated in (True, False):
        runs = [job("lent", "n0g0", team="blue", is_allocated=is_allocated)]
        assert victims(decide(1, queue=[allocated("claim")], runs=runs, rules=rules))


# -- headroom --------------------------------------------------------------------------------


def test_the_last_gpus_are_left_to_debug_work() -> None:
    rules = Rules(headroom=1)
    queue = [allocated("a"), allocated("b", since=1), pending("short", since=2, min_runtime=900.0)]
    decided = decide(2, queue=queue, rules=rules)
    assert placed(decided) == ["a", "short"]
    assert reasons(decided) == {"b": WaitReason.HEADROOM}


def test_nobody_is_preempted_for_what_headroom_alone_keeps_from_starting() -> None:
    runs = [idle("s", "n0g0")]
    decided = decide(2, queue=[allocated("a")], runs=runs, rules=Rules(headroom=1))
    assert victims(decided) == [] and reasons(decided) == {"a": WaitReason.HEADROOM}


# -- victims ---------------------------------------------------------------------------------


def test_the_victim_is_who_loses_least() -> None:
    runs = [
        job("saved", "n0g0", priority=0, since=NOW - 5 * HOUR, saved_at=NOW - 60),
        job("young", "n0g1", priority=0, since=NOW - 600),
        job("never", "n0g2", priority=0, since=NOW - 5 * HOUR),
    ]
    assert [v for v, _ in victims(decide(3, queue=[allocated("a")], runs=runs))] == ["saved"]


def test_who_never_reports_is_not_spared_for_it() -> None:
    """Beyond an hour it counts like somebody who reported an hour ago."""
    runs = [
        job("never", "n0g0", priority=0, since=NOW - 50 * HOUR),
        job("reports", "n0g1", priority=0, since=NOW - 50 * HOUR, saved_at=NOW - 2 * HOUR),
    ]
    assert [v for v, _ in victims(decide(2, queue=[allocated("a")], runs=runs))] == ["never"]


def test_one_large_victim_rather_than_two_that_lose_more() -> None:
    runs = [
        job("one", "n0g0", priority=0, saved_at=NOW - 500),
        job("two", "n0g1", priority=0, saved_at=NOW - 500),
        job("both", "n1g0", "n1g1", priority=0, saved_at=NOW - 100),
    ]
    decided = decide(2, 2, queue=[allocated("a", gpus=2)], runs=runs)
    assert [v for v, _ in victims(decided)] == ["both"]


def test_a_gang_yields_as_a_whole() -> None:
    gang = job("gang", "n0g0", "n1g0", priority=0)
    decided = decide(1, 1, queue=[allocated("a")], runs=[gang])
    assert [v for v, _ in victims(decided)] == ["gang"]


def test_a_gangs_victims_are_looked_for_in_each_cluster() -> None:
    """The cheapest machines of all are of no use to it when they lie in two clusters."""
    nodes = [machine(f"{c}{n}", 1, cluster=c) for c in ("west", "east") for n in range(4)]
    runs = [
        job(f"r-{node.name}", *node.gpus, priority=0, saved_at=NOW - (100 if number % 2 else 200))
        for number, node in enumerate(nodes)
    ]
    holders = {gpu: it.id for it in runs for gpu in it.gpus}
    gang = allocated("gang", nodes=4)
    decided = plan(FleetState(tuple(nodes), holders), [gang], runs, Rules(), NOW)
    assert len({name.removeprefix("r-")[:4] for name, _ in victims(decided)}) == 1
    assert len(victims(decided)) == 4


# -- reservation and backfill ----------------------------------------------------------------


def protected(name: str, *gpus: str, until: float, **more: Any) -> Running:
    return job(name, *gpus, team="blue", is_allocated=False, yields_from=until, **more)


def test_a_blocked_gang_is_told_when_protection_ends() -> None:
    runs = [protected("a", "n0g0", until=NOW + 50), protected("b", "n0g1", until=NOW + 900)]
    decided = decide(2, queue=[allocated("gang", gpus=2)], runs=runs)
    assert decided.waits[0].evidence["starts_by"] == NOW + 900


BACKFILL = [
    ("without protection", {"min_runtime": 0.0}, True),
    ("protected until before", {"min_runtime": 800.0}, True),
    ("protected for longer", {"min_runtime": 1000.0}, False),
    ("which ends before", {"min_runtime": 1000.0, "max_runtime": 600.0}, True),
]


@pytest.mark.parametrize(("what", "more", "may"), BACKFILL, ids=[b[0] for b in BACKFILL])
def test_reserved_gpus_meanwhile_serve_work(what: str, more: dict[str, Any], may: bool) -> None:
    runs = [protected("b", "n0g1", until=NOW + 900)]
    small = pending("small", since=5, **more)
    decided = decide(2, queue=[allocated("gang", gpus=2), small], runs=runs)
    assert placed(decided) == (["small"] if may else [])
    if not may:
        assert reasons(decided)["small"] is WaitReason.RESERVED


def test_what_is_reserved_for_one_is_not_reserved_for_another() -> None:
    runs = [protected(f"r{n}", f"n{n}g0", until=NOW + 100 * n) for n in range(1, 5)]
    queue = [allocated("first", nodes=2), allocated("second", nodes=2, team="x")]
    queue.append(allocated("like the first", nodes=2, since=1))
    holders = tuple(job("r0", "n0g0", team="blue", preemptible=False) for _ in range(1))
    decided = decide(1, 1, 1, 1, 1, queue=queue, runs=(*holders, *runs))
    told = {w.id: w.evidence.get("starts_by", 0) - NOW for w in decided.waits}
    assert told == {"first": 200, "second": 400, "like the first": -NOW}


def test_a_reservation_holds_when_only_an_arrival_is_looked_at() -> None:
    columns = Columns(fleet(2).nodes)
    columns.start(protected("b", until=NOW + 900), ((0, 1),))
    columns.submit(allocated("gang", gpus=2))
    first = run(columns)
    columns.reservations = first.reservations
    columns.submit(long := allocated("long", since=5))
    assert run(columns, only=[group_of(long)]).placements == ()
    columns.submit(short := pending("short", since=6, min_runtime=600.0))
    assert [name for name, _ in run(columns, only=[group_of(short)]).placements] == ["short"]


def test_each_team_has_one_reservation() -> None:
    runs = [protected(f"r{n}", f"n{n}g0", until=NOW + 100) for n in range(3)]
    queue = [
        allocated("a"),
        allocated("b", min_runtime=2 * HOUR, since=1),
        allocated("c", team="x"),
    ]
    decided = decide(1, 1, 1, queue=queue, runs=runs)
    assert {w.id for w in decided.waits if "starts_by" in w.evidence} == {"a", "c"}


def test_only_those_who_may_ask_make_others_yield() -> None:
    columns = Columns(fleet(1).nodes)
    columns.start(idle("s"), ((0, 1),))
    columns.submit(item := pending("p"))
    assert run(columns, asking=[]).preemptions == ()
    assert len(run(columns, asking=[group_of(item)]).preemptions) == 1


def test_nobody_knows_when_if_nothing_ever_yields() -> None:
    runs = [running("busy", "n0g1", preemptible=False)]
    decided = decide(2, queue=[allocated("gang", gpus=2), allocated("small", since=5)], runs=runs)
    assert placed(decided) == ["small"], "a reservation without a time would keep GPUs for nobody"
    assert "starts_by" not in decided.waits[0].evidence


# -- where -----------------------------------------------------------------------------------


def machine(name: str, gpus: int = 2, *, model: str = "", **more: Any) -> NodeState:
    names = tuple(f"{name}g{g}" for g in range(gpus))
    kinds = dict.fromkeys(names, GpuKind(model)) if model else {}
    return NodeState(name, names, kinds=kinds, **more)


def where(*nodes: NodeState, item: Any, runs: tuple[Running, ...] = ()) -> list[str]:
    holders = {gpu: it.id for it in runs for gpu in it.gpus}
    decided = plan(FleetState(nodes, holders), [item], runs, Rules(), NOW)
    return [a.node for p in decided.placements for a in p.assignments]


def test_only_the_models_and_clusters_asked_for() -> None:
    nodes = (
        machine("a", model="L4"),
        machine("b", model="H200", cluster="west"),
        machine("c", model="H200", cluster="east"),
    )
    assert where(*nodes, item=pending("p", models=("H200",))) == ["b"]
    assert where(*nodes, item=pending("p", models=("H200", "L4"), clusters=("east",))) == ["c"]
    assert where(*nodes, item=pending("p", clusters=("north",))) == []


def test_a_gang_stays_in_one_cluster() -> None:
    nodes = (machine("a", cluster="west"), machine("b", cluster="east"))
    assert where(*nodes, item=pending("gang", 2, nodes=2)) == []
    more = (*nodes, machine("c", cluster="east"))
    assert where(*more, item=pending("gang", 2, nodes=2)) == ["b", "c"]


def test_a_gang_takes_the_smallest_rack_that_holds_it() -> None:
    nodes = [
        machine(f"{rack}{n}", rack=rack) for rack, many in (("x", 3), ("y", 2)) for n in range(many)
    ]
    assert where(*nodes, item=pending("gang", 2, nodes=2)) == ["y0", "y1"]
    assert where(*nodes, item=pending("gang", 2, nodes=4)) == ["x0", "x1", "x2", "y0"]


def test_small_work_goes_to_the_rack_that_is_broken_already() -> None:
    racks = {"a": "whole", "b": "broken", "c": "broken", "d": "whole"}
    nodes = [machine(name, rack=rack) for name, rack in racks.items()]
    assert where(*nodes, item=pending("p"), runs=(running("r", "cg0", "cg1"),)) == ["b"]


def test_a_place_is_of_one_kind_of_gpu() -> None:
    mixed = NodeState("m", ("m0", "m1"), kinds={"m0": GpuKind("L4"), "m1": GpuKind("H200")})
    assert where(mixed, item=pending("p", 2)) == []
    assert where(mixed, item=pending("p", 1)) == ["m"]


# -- columns that are kept -------------------------------------------------------------------


def run(columns: Columns, **more: Any) -> Decided:
    return Desk(columns, Rules(), NOW).run(**more)


def test_columns_that_are_kept_decide_as_new_ones_do() -> None:
    columns = Columns(fleet(4, 4).nodes)
    for item in (allocated("a", gpus=4), allocated("b", gpus=2, since=1)):
        columns.submit(item)
    for name, takes in run(columns).placements:
        columns.start(job(name, since=NOW, yields_from=NOW + HOUR), takes)
    assert list(columns.free) == [0, 2]
    columns.submit(allocated("c", gpus=4, since=2))
    first = run(columns)
    assert not first.placements and columns.queue.groups.keys() == first.stuck
    columns.end("a")
    assert [name for name, _ in run(columns).placements] == ["c"]


def test_an_idle_session_that_is_told_makes_room() -> None:
    columns = Columns(fleet(1).nodes)
    columns.start(running("s"), ((0, 1),))
    columns.submit(pending("p"))
    assert not run(columns).preemptions
    columns.change(idle("s"))
    decided = run(columns)
    assert [p.victim for p in decided.preemptions] == ["s"]
    assert decided.promised == {"p": ((0, 1),)}
