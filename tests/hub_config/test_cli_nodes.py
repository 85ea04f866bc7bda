"""`nodes` and `sessions force-stop`: what is shown, what is given up, and who is asked."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hub_config.cli import app
from hub_config.commands.losses import loss_lines
from scheduler_bridge.model.nodes import GivenUp, Losses
from scheduler_bridge.model.phases import Desired, Kind, Phase
from tests.hub_config.cli_bench import Cli, running_service, state_at


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cli]:
    with running_service() as service:
        made = Cli(service, state_at(tmp_path / "state", service.port), monkeypatch)
        made.as_root()
        yield made


def test_machines_are_listed_with_what_they_hold(cli: Cli) -> None:
    cli.service.run(cli.service.session())
    cli.service.run(cli.service.job("bob", "train"))
    line = cli.ok("nodes", "list").splitlines()[1]
    assert re.match(r"local +ready +0 of 2 +", line)
    assert "session ada of ada, job train of bob" in line
    (node,) = cli.json("nodes", "list")
    assert [holder["gpus"] for holder in node["holders"]] == [1, 1]


def test_a_user_sees_how_much_others_hold_and_nothing_else(cli: Cli) -> None:
    cli.service.run(cli.service.session())
    cli.service.run(cli.service.job("bob", "train"))
    waiting = cli.service.job("bob", "more", gpus=2)
    cli.service.session(server="second")
    cli.in_a_session()
    assert "session ada of ada, somebody's work" in cli.ok("nodes", "list")
    shown = cli.ok("queue")
    assert "1 of others" in shown and "ada/second" in shown
    told = shown + cli.ok("nodes", "list") + cli.ok("queue", "--json") + cli.ok("nodes")
    assert "bob" not in told and "train" not in told and waiting.id not in told
    assert "may not do this" in cli.fails(
        "nodes", "declare-dead", "local", "--reason", "x", "--now"
    )
    assert "may not do this" in cli.fails("sessions", "force-stop", "ada/second", "--reason", "x")


def test_a_machine_that_may_still_run_something_is_not_dead_yet(cli: Cli) -> None:
    cli.service.run(cli.service.job("bob", "train"))
    said = cli.fails("nodes", "declare-dead", "local", "--reason", "fire")
    assert "local may still run 1 of its workloads for 11 min" in said
    assert "add --now" in said


def test_what_is_given_up_is_listed_and_has_to_be_confirmed(cli: Cli) -> None:
    train = cli.service.run(cli.service.job("bob", "train"))
    new = cli.service.run(cli.service.session())
    asked = ("nodes", "declare-dead", "local", "--reason", "fire", "--now")
    refused = cli.runner.invoke(app, list(asked), input="y\n")
    assert refused.exit_code == 1
    assert f"job train of bob ({train.id}) is running and becomes queued" in refused.output
    assert f"session ada of ada ({new.id}) is running and becomes stopped" in refused.output
    assert "its processes may still run, and are halted in " in refused.output
    assert "its GPU may then be used twice, if the machine is alive" in refused.output
    assert "all of its memory is lost: there is no snapshot of it" in refused.output
    assert f"--give-up {train.id} --give-up {new.id}" in refused.stderr
    assert cli.json("sessions", "list")[0]["phase"] == "running"

    missing = cli.fails(*asked, "--give-up", train.id, code=2)
    assert f"--give-up does not name {new.id}" in missing
    done = cli.runner.invoke(app, list(asked), input="local\n")
    assert done.exit_code == 0, done.output
    assert "local is dead and gets no work until `hubernate nodes revive local`" in done.output
    assert cli.json("sessions", "list") == []
    assert [j["phase"] for j in cli.json("jobs")] == ["queued"]
    assert re.search(r"local +dead .*declared dead by root at .*: fire", cli.ok("nodes", "list"))


def test_a_machine_is_given_up_by_a_program_and_revived(cli: Cli) -> None:
    train = cli.service.run(cli.service.job("bob", "train"))
    record = cli.json(
        "nodes", "declare-dead", "local", "--reason", "fire", "--now", "--give-up", train.id
    )  # fmt: skip
    assert record["death"]["reason"] == "fire"
    assert cli.ok("nodes", "revive", "local") == "local may have work again.\n"
    assert cli.json("nodes", "list")[0]["state"] == "ready"


def test_unsaved_work_is_counted_from_the_last_snapshot(cli: Cli) -> None:
    first = cli.service.freeze(cli.service.run(cli.service.session()))
    saved = time.strftime("%H:%M", time.localtime(first.snapshot.created_at))  # type: ignore[union-attr]
    again = cli.service.do(lambda s: s.desire(first.id, Desired.RUNNING, actor="a", reason="r"))
    cli.service.run(again)
    refused = cli.runner.invoke(
        app, ["nodes", "declare-dead", "local", "--reason", "fire", "--now"], input="\n"
    )
    assert re.search(f"what it did since the last snapshot at {saved}:.. is lost", refused.output)


def test_a_session_that_answers_is_not_stopped_by_force(cli: Cli) -> None:
    work = cli.service.run(cli.service.session())
    said = cli.fails("sessions", "force-stop", "ada", "--reason", "hangs")
    assert f"The supervisor of {work.id} answered" in said


def test_an_unknown_machine_is_named(cli: Cli) -> None:
    said = cli.fails("nodes", "declare-dead", "gpu-7", "--reason", "x")
    assert "There is no machine gpu-7. There are: local." in said


def given_up(**more: object) -> GivenUp:
    values = {
        "workload_id": "s-1",
        "kind": Kind.SESSION,
        "name": "ada",
        "user": "ada",
        "phase": Phase.LOST,
        "becomes": Phase.SUSPENDED,
        "gpus": 2,
        "since": 0.0,
        "fenced_at": 100.0,
        "is_fenced": True,
        "halts_itself": True,
        "saved_at": 50.0,
        **more,
    }
    return GivenUp(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("item", "said"),
    [
        (given_up(), "its processes have halted by now, if they are alive"),
        (given_up(), "its 2 GPUs may still be full of its memory, if the machine is alive"),
        (given_up(is_fenced=False, fenced_at=300.0), "may still run, and are halted in 3m20s"),
        (given_up(is_fenced=False), "its 2 GPUs may then be used twice"),
        (given_up(gpus=0, halts_itself=False), "nothing halts it: its processes may still run"),
        (given_up(is_elsewhere=True), "its supervisor is on another machine, and is told"),
        (given_up(saved_at=None), "what it did since its snapshot is lost"),
        (given_up(becomes=Phase.STOPPED), "all of its memory is lost"),
        (given_up(kind=Kind.JOB, becomes=Phase.QUEUED), "since its own last checkpoint is lost"),
        (given_up(fenced_at=None, becomes=Phase.QUEUED), "nothing is lost: it waits"),
    ],
)
def test_each_loss_is_said_in_plain_words(item: GivenUp, said: str) -> None:
    assert said in "\n".join(loss_lines(Losses((item,)), now=100.0))
