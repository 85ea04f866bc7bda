"""What may be asked for: through the form, through REST, whatever the fleet."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest

from scheduler_bridge.model.workload import FleetView, Gpu, Node
from spawner import options
from spawner.options import BadOptions, choose, form_html, from_form
from spawner.profiles_model import DEFAULT_PROFILES, BadProfiles, Profile, check_profiles


def fleet(*sizes: int, taken: int = 0, queued: int = 0, ready: bool = True) -> FleetView:
    """Machines of these sizes; the first `taken` GPUs are in use."""
    nodes = tuple(
        Node(
            f"n{n}",
            tuple(Gpu(f"{n}-{i}", f"n{n}", i, "A100", "", True) for i in range(size)),
            ready,
        )
        for n, size in enumerate(sizes)
    )
    uuids = [gpu.uuid for node in nodes for gpu in node.gpus]
    return FleetView(nodes, dict.fromkeys(uuids[:taken], "somebody"), queued)


@pytest.mark.parametrize(
    ("asked", "profile", "gpus"),
    [
        ({}, "cpu", 0),
        ({"profile": "gpu-1"}, "gpu-1", 1),
        ({"profile": "gpu-1", "gpus": 2}, "gpu-1", 2),
        ({"profile": "gpu-1", "gpus": " 2 "}, "gpu-1", 2),
        ({"gpus": 0}, "cpu", 0),
    ],
)
def test_a_valid_request_is_taken_as_it_is(asked: dict[str, Any], profile: str, gpus: int) -> None:
    choice = choose(asked, DEFAULT_PROFILES, fleet(2))
    assert (choice.profile.slug, choice.gpus) == (profile, gpus)
    assert choose(choice.as_options(), DEFAULT_PROFILES, fleet(2)) == choice


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"profile": "gpu-9"}, "cpu, gpu-1, gpu-2, gpu-4"),
        ({"profile": ["gpu-1"]}, "cpu, gpu-1"),
        ({"profile": None}, "no profile"),
        ({"profile": "gpu-4"}, "at most 2"),
        ({"gpus": 3}, "at most 2"),
        ({"gpus": -1}, "0 or more"),
        ({"gpus": "-1"}, "0 or more"),
        ({"gpus": True}, "whole number"),
        ({"gpus": 1.5}, "whole number"),
        ({"gpus": "many"}, "whole number"),
        ({"gpus": "٣"}, "whole number"),
        ({"image": "x"}, "gpus, profile"),
    ],
)
def test_a_bad_request_is_refused_with_the_real_limit(asked: dict[str, Any], named: str) -> None:
    with pytest.raises(BadOptions, match=re.escape(named)):
        choose(asked, DEFAULT_PROFILES, fleet(2, 1))


def test_a_request_without_gpu_fits_a_machine_without_gpus() -> None:
    assert choose({"profile": "cpu"}, DEFAULT_PROFILES, fleet()).gpus == 0
    with pytest.raises(BadOptions, match="there is none"):
        choose({"profile": "gpu-1"}, DEFAULT_PROFILES, fleet())


def test_machines_that_are_not_ready_do_not_count() -> None:
    with pytest.raises(BadOptions, match="there is none"):
        choose({"gpus": 1}, DEFAULT_PROFILES, fleet(4, ready=False))


def test_gpus_of_two_machines_are_not_added_up() -> None:
    with pytest.raises(BadOptions, match="largest machine has 2 virtual GPUs"):
        choose({"profile": "gpu-4"}, DEFAULT_PROFILES, fleet(2, 2))


def test_a_profile_with_a_model_counts_only_that_model() -> None:
    wanted = (Profile("h", "H200", "", gpus=1, gpu_model="H200"),)
    with pytest.raises(BadOptions, match="of model H200"):
        choose({"profile": "h"}, wanted, fleet(4))


def test_nobody_knows_the_fleet_only_the_table_is_checked() -> None:
    assert choose({"gpus": 9}, DEFAULT_PROFILES, None).gpus == 9
    with pytest.raises(BadOptions):
        choose({"profile": "x"}, DEFAULT_PROFILES, None)


@pytest.mark.parametrize(
    ("teams", "asked", "team"),
    [
        (("default",), {}, "default"),
        (("default",), {"team": "default"}, "default"),
        (("vision",), {}, "vision"),
        (("vision", "audio"), {"team": "vision"}, "vision"),
    ],
)
def test_the_team_is_one_of_the_users(
    teams: tuple[str, ...], asked: dict[str, Any], team: str
) -> None:
    choice = choose(asked, DEFAULT_PROFILES, fleet(2), teams=teams)
    assert choice.team == team
    assert choose(choice.as_options(), DEFAULT_PROFILES, fleet(2), teams=teams) == choice


@pytest.mark.parametrize(
    ("teams", "asked", "told"),
    [
        (("default",), {"team": "vision"}, "not in a team 'vision'. Your team is: default."),
        (("vision",), {"team": "default"}, "not in a team 'default'. Your team is: vision."),
        (("a", "b"), {"team": ["a"]}, "Your teams are: a, b."),
        (("a", "b"), {"team": "c"}, "Your teams are: a, b."),
        (("a", "b"), {}, "You are in several teams. Say which one with team: a, b."),
    ],
)
def test_a_team_that_is_not_the_users_is_refused(
    teams: tuple[str, ...], asked: dict[str, Any], told: str
) -> None:
    with pytest.raises(BadOptions, match=re.escape(told)):
        choose(asked, DEFAULT_PROFILES, fleet(2), teams=teams)


def test_the_form_asks_for_the_team_only_who_is_in_several() -> None:
    assert 'name="team"' not in form_html(DEFAULT_PROFILES, fleet(2), teams=("vision",))
    html = form_html(DEFAULT_PROFILES, fleet(2), teams=("a", "<b>"), team="<b>")
    assert '<option value="&lt;b&gt;" selected>' in html and "<b>" not in html
    assert 'for="hubernate-team"' in html


def test_the_form_is_turned_into_options_without_judging() -> None:
    assert from_form({"profile": ["x"], "_xsrf": ["secret"], "gpus": [], "team": ["t"]}) == {
        "profile": "x",
        "team": "t",
    }


@pytest.mark.parametrize(
    ("view", "sentence"),
    [
        (fleet(2), "Starts now: 2 of 2 virtual GPUs free."),
        (fleet(2, taken=2), "Will wait: 0 of 2 virtual GPUs free."),
        (fleet(2, queued=3), "Will wait: 2 of 2 virtual GPUs free, 3 waiting."),
        (fleet(), "Not available: there is no virtual GPU."),
        (None, "unknown right now"),
    ],
)
def test_the_form_says_what_is_free(view: FleetView | None, sentence: str) -> None:
    if view is not None and not view.nodes:
        sentence = "Not available: there is no GPU."
    assert sentence in options.availability(DEFAULT_PROFILES[1], view)[0]


def test_two_free_gpus_on_two_machines_do_not_start_a_pair() -> None:
    view = dataclasses.replace(fleet(2, 2), holders={"0-0": "x", "1-0": "y"})
    assert options.availability(DEFAULT_PROFILES[2], view)[0].startswith("Will wait")


def test_the_form_can_be_used_without_a_mouse_and_escapes_what_admins_wrote() -> None:
    profiles = (Profile("a", "<b>", 'says "hi" & <i>'), Profile("big", "Big", "", gpus=8))
    html = form_html(profiles, fleet(1), chosen="big")
    assert "<b>" not in html and "&lt;b&gt;" in html and "&amp; &lt;i&gt;" in html
    assert 'for="profile-a"' in html and 'id="profile-a"' in html and "<legend>" in html
    assert re.search(r'id="profile-big"[^>]* disabled', html), "what can never start is greyed out"
    assert re.search(r'id="profile-a"[^>]* checked', html), "and not chosen, although it was last"


@pytest.mark.parametrize(
    ("table", "named"),
    [
        ((), "empty"),
        ((Profile("a", "", ""), Profile("a", "", "")), "used twice"),
        ((Profile("", "", ""),), "empty"),
        ((Profile("a", "", "", gpus=-1),), "gpus is -1"),
        ((Profile("a", "", "", memory_bytes=-1),), "memory_bytes"),
    ],
)
def test_a_wrong_table_is_refused(table: tuple[Profile, ...], named: str) -> None:
    with pytest.raises(BadProfiles, match=named):
        check_profiles(table)
