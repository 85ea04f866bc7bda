"""The command line against the real scheduler service."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hub_config.paths import StateFolder
from scheduler_bridge.model.phases import Desired, Phase
from scheduler_bridge.model.workload import Idleness, Workload
from tests.hub_config.cli_bench import Cli, Service, running_service, state_at
from tests.reclaimer.bench import quiet, working


@pytest.fixture
def service() -> Iterator[Service]:
    with running_service() as found:
        yield found


@pytest.fixture
def cli(service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    cli = Cli(service, state_at(tmp_path / "state", service.port), monkeypatch)
    cli.as_root()
    return cli


# -- who runs it -----------------------------------------------------------------------------


def test_nothing_set_up_says_what_to_do(cli: Cli, tmp_path: Path) -> None:
    cli.monkeypatch.setenv("HUBERNATE_STATE", str(tmp_path / "nothing"))
    said = cli.fails("sessions", "list")
    assert "nothing is set up" in said
    assert "hubernate up" in said


def test_without_root_and_without_a_session_it_says_what_to_set(cli: Cli) -> None:
    cli.monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "HUBERNATE_URL" in cli.fails("jobs")


def test_an_address_without_a_token(cli: Cli) -> None:
    cli.monkeypatch.setenv("HUBERNATE_URL", cli.service.url)
    assert "no token" in cli.fails("jobs")


@pytest.mark.parametrize("rest", ["", "/", "/services/hubernate", "/services/hubernate/"])
def test_the_hubs_address_is_enough(cli: Cli, rest: str) -> None:
    cli.in_a_session()
    cli.monkeypatch.setenv("HUBERNATE_URL", f"http://127.0.0.1:{cli.service.port}{rest}")
    assert cli.ok("jobs") == "No jobs.\n"


def test_an_address_that_is_none(cli: Cli) -> None:
    cli.in_a_session()
    cli.monkeypatch.setenv("HUBERNATE_URL", "localhost:8000")
    assert "is no address" in cli.fails("jobs")


def test_a_wrong_token_is_refused_in_one_line(cli: Cli) -> None:
    cli.in_a_session(token="not-a-token-of-anybody")
    assert "token" in cli.fails("jobs")


def test_a_scheduler_that_is_away(cli: Cli) -> None:
    cli.state.ports_file.write_text(json.dumps({"public": 5}))
    assert "hubernate: " in cli.fails("sessions", "list")


def test_a_broken_ports_file_is_named(cli: Cli) -> None:
    cli.state.ports_file.write_text("{")
    assert "ports.json cannot be read" in cli.fails("queue")


def test_a_user_sees_only_what_is_their_own(cli: Cli) -> None:
    cli.service.job("ada", "mine")
    cli.service.job("bob", "theirs")
    assert {j["spec"]["name"] for j in cli.json("jobs")} == {"mine", "theirs"}
    cli.in_a_session()
    assert [j["spec"]["name"] for j in cli.json("jobs")] == ["mine"]
    assert "there is no theirs" in cli.fails("why", "theirs")
    assert "somebody else" in cli.ok("nodes")


def test_version(cli: Cli) -> None:
    assert cli.ok("--version").startswith("hubernate 0.")


# -- sessions --------------------------------------------------------------------------------


def test_sessions_are_listed_with_their_countdown(cli: Cli) -> None:
    assert cli.ok("sessions", "list") == "No sessions.\n"
    session = cli.service.run(cli.service.session())
    waiting = cli.service.session("bob", "big", gpus=2)
    idle = Idleness(time.time() - 100, time.time() + 20.4, "rule everybody")
    cli.service.do(lambda s: s.set_idleness(session.id, idle))
    shown = cli.ok("sessions", "list")
    ada, bob = (
        next(line for line in shown.splitlines() if w.id in line) for w in (session, waiting)
    )
    assert "running" in ada
    assert "local:0 (virtual)" in ada
    assert "1m40s" in ada
    assert "suspends in 20s: rule everybody" in ada
    assert "bob/big" in bob
    assert "queued, number 1" in bob
    listed = cli.json("sessions", "list")
    assert [w["id"] for w in listed] == [session.id, waiting.id]
    assert listed[0]["idleness"]["reason"] == "rule everybody"


def test_show_prints_the_timeline_the_error_its_remedy_and_the_log(cli: Cli) -> None:
    session = cli.service.run(cli.service.session())
    cli.service.move(session, Phase.SUSPENDING)
    evidence = {"error": "the store is full", "remedy": "Make room.", "log_path": "/run/s/x.log"}
    cli.service.move(session, Phase.RUNNING, evidence=evidence)
    shown = cli.ok("sessions", "show", "ada")
    for words in (
        session.id,
        "last error    the store is full",
        "remedy        Make room.",
        "log           /run/s/x.log",
        "running → suspending",
        "suspending → running",
        "In all: ",
    ):
        assert words in shown
    found = cli.json("sessions", "show", session.id[:8])
    assert found["workload"]["id"] == session.id
    assert len(found["history"]) >= 4
    assert set(found["seconds_in_phases"]) >= {"queued", "starting", "running", "suspending"}


def test_suspend_waits_for_the_commit_and_resume_for_the_session(cli: Cli) -> None:
    session = cli.service.run(cli.service.session())
    thread = cli.service.when(
        session, lambda w: w.desired is Desired.SUSPENDED, lambda: cli.service.freeze(session)
    )
    assert cli.ok("suspend", "ada").startswith("ada is suspended")
    thread.join()
    assert cli.ok("suspend", "ada").startswith("ada is suspended")

    suspended = cli.service.do(lambda s: s.get(session.id))
    thread = cli.service.when(
        session, lambda w: w.phase is Phase.RESUMING, lambda: cli.service.run(suspended)
    )
    assert cli.ok("resume", "ada").startswith("ada is running")
    thread.join()
    history = cli.service.do(lambda s: s.history(session.id))
    assert "root" in {event.actor for event in history}


def test_a_suspend_that_fails_says_why_and_what_to_do(cli: Cli) -> None:
    session = cli.service.run(cli.service.session())

    def fail() -> None:
        cli.service.move(session, Phase.SUSPENDING)
        evidence = {"error": "train.py has an io_uring open", "remedy": "Close it."}
        cli.service.move(session, Phase.RUNNING, evidence=evidence)

    thread = cli.service.when(session, lambda w: w.desired is Desired.SUSPENDED, fail)
    said = cli.fails("suspend", "ada")
    thread.join()
    assert "was not suspended and is running: train.py has an io_uring open" in said
    assert "Close it." in said


def test_without_waiting(cli: Cli) -> None:
    session = cli.service.run(cli.service.session())
    asked = cli.json("suspend", "ada", "--no-wait", "--reason", "lunch")
    assert (asked["desired"], asked["desired_by"]) == ("suspended", "root")
    assert asked["desired_reason"] == "lunch"
    assert cli.json("resume", session.id, "--no-wait")["desired"] == "running"


def test_a_user_suspends_their_own_session_under_their_own_name(cli: Cli) -> None:
    cli.service.run(cli.service.session())
    cli.in_a_session()
    assert cli.json("suspend", "ada", "--no-wait")["desired_by"] == "ada"


def test_a_session_that_has_ended_cannot_be_suspended(cli: Cli) -> None:
    session = cli.service.run(cli.service.session())
    cli.service.move(session, Phase.STOPPED)
    assert "has ended (stopped)" in cli.fails("suspend", "ada")
    assert "has ended (stopped)" in cli.fails("resume", session.id)


def test_names_that_mean_several_things_list_them(cli: Cli) -> None:
    one = cli.service.session("ada", "", gpus=0)
    two = cli.service.session("ada", "big", gpus=0)
    said = cli.fails("sessions", "show", "ada")
    assert one.id in said
    assert two.id in said
    assert two.id in cli.ok("sessions", "show", "ada/big")
    assert one.id in cli.ok("sessions", "show", "ada/")
    assert "there is no cleo" in cli.fails("sessions", "show", "cleo")


# -- jobs ------------------------------------------------------------------------------------


def test_root_must_say_whose_job_it_is(cli: Cli) -> None:
    said = cli.fails("submit", "--gpus", "1", "--", "python", "x.py", code=2)
    assert "--user NAME" in said
    assert cli.json("jobs") == []


def test_submit_passes_everything_on(cli: Cli) -> None:
    job = cli.json(
        *("submit", "--user", "bob", "--gpus", "1", "--nodes", "1", "--name", "train"),
        *("--priority", "high", "--env", "A=1", "--env", "B=x=y", "--workdir", "work"),
        *("--min-runtime", "15m", "--max-runtime", "8h", "--cluster", "local"),
        *(
            "--gpu-model",
            "Virtual GPU",
            "--grace",
            "1m",
            "--",
            "python",
            "-u",
            "train.py",
            "--epochs",
            "3",
        ),
    )
    spec = job["spec"]
    assert spec["command"] == ["python", "-u", "train.py", "--epochs", "3"]
    assert spec["environment"] == {"A": "1", "B": "x=y"}
    assert (spec["user"], spec["name"], spec["priority"]) == ("bob", "train", 2)
    assert (spec["folder"], spec["grace_seconds"]) == ("work", 60.0)
    assert (spec["min_runtime_seconds"], spec["max_runtime_seconds"]) == (900.0, 28800.0)
    assert (spec["clusters"], spec["gpu_models"]) == (["local"], ["Virtual GPU"])


def test_a_user_submits_as_themselves_from_where_they_stand(cli: Cli, tmp_path: Path) -> None:
    cli.in_a_session()
    cli.monkeypatch.chdir(tmp_path)
    job = cli.json("submit", "--", "./run.sh")
    assert (job["spec"]["user"], job["spec"]["name"]) == ("ada", "run.sh")
    assert job["spec"]["folder"] == str(tmp_path)
    assert "cannot be submitted by ada" in cli.fails("submit", "--user", "bob", "--", "true")


def test_the_same_key_twice_is_one_job(cli: Cli) -> None:
    first = cli.json("submit", "--user", "bob", "--key", "k", "--", "true")
    again = cli.json("submit", "--user", "bob", "--key", "k", "--", "true")
    assert first["id"] == again["id"]


@pytest.mark.parametrize(
    ("arguments", "words", "code"),
    [
        (
            ("--priority", "top"),
            "priority top is not known; known are low, normal, high, urgent",
            2,
        ),
        (("--env", "A"), "--env A is not KEY=VALUE", 2),
        (("--grace", "soon"), "--grace: `soon` is not a time", 2),
        (("--gpus", "3"), "2", 1),
    ],
)
def test_submit_refuses_at_once(
    cli: Cli, arguments: tuple[str, ...], words: str, code: int
) -> None:
    assert words in cli.fails("submit", "--user", "bob", *arguments, "--", "true", code=code)


@pytest.mark.parametrize(
    "arguments", [("--gpus", "-1", "--", "x"), ("--nodes", "0", "--", "x"), ()]
)
def test_misuse_is_told_apart(cli: Cli, arguments: tuple[str, ...]) -> None:
    assert cli("submit", "--user", "bob", *arguments).exit_code == 2


def test_jobs_queue_why_and_cancel(cli: Cli) -> None:
    running = cli.service.run(cli.service.job("ada", "first", gpus=2))
    waiting = cli.service.job("bob", "second", gpus=1)
    shown = cli.ok("jobs")
    assert "first" in shown
    assert "second" in shown
    queue = cli.json("queue")
    assert [row["work"]["workload_id"] for row in queue["rows"]] == [waiting.id]
    line = cli.ok("queue").splitlines()[1]
    assert line.startswith("1")
    assert waiting.wait_reason in line
    why = cli.ok("why", "second")
    assert why.splitlines()[0] == cli.json("why", "second")["text"]

    assert cli.json("cancel", "second")["phase"] == "cancelled"
    assert "has already ended (cancelled)" in cli.fails("cancel", waiting.id)
    assert cli.json("cancel", "first")["phase"] == "cancelling"
    assert [j["id"] for j in cli.json("jobs")] == [running.id]
    assert len(cli.json("jobs", "--all")) == 2
    assert cli.ok("queue") == "Nothing waits.\n"


def test_nodes_show_who_holds_what(cli: Cli) -> None:
    cli.service.run(cli.service.session())
    shown = cli.ok("nodes").splitlines()
    assert "session ada of ada" in shown[1]
    assert "free" in shown[2]
    assert all("virtual" in line.lower() for line in shown[1:])
    assert len(cli.json("nodes")["nodes"][0]["gpus"]) == 2


# -- logs ------------------------------------------------------------------------------------


def running_job(cli: Cli, user: str = "ada", name: str = "train") -> Workload:
    job = cli.service.job(user, name)
    log = output_of(cli.state, job.id)
    return cli.service.run(job, evidence={"log_path": str(log)})


def output_of(state: StateFolder, workload_id: str) -> Path:
    folder = state.run / workload_id / "run"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / "output.log"


def test_logs_of_a_job(cli: Cli) -> None:
    job = running_job(cli)
    output_of(cli.state, job.id).write_bytes(b"epoch 1\nepoch 2 \xff\n")
    result = cli("logs", "train")
    assert result.exit_code == 0
    assert result.stdout_bytes == b"epoch 1\nepoch 2 \xff\n"


def test_logs_of_a_job_that_waits_say_so(cli: Cli) -> None:
    cli.service.job("bob", "first", gpus=2)
    cli.service.job()
    result = cli("logs", "train")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "train has not started" in result.stderr


def test_following_ends_with_the_job_and_misses_nothing(cli: Cli) -> None:
    job = running_job(cli)
    path = output_of(cli.state, job.id)
    path.write_text("begin\n")

    def finish() -> None:
        with path.open("a") as handle:
            handle.write("end\n")
        cli.service.move(job, Phase.SUCCEEDED, exit_code=0)

    thread = cli.service.when(job, lambda w: w.phase is Phase.RUNNING, finish)
    result = cli("logs", "-f", "train")
    thread.join()
    assert result.stdout == "begin\nend\n"


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_logs_that_are_no_ordinary_file_are_not_read(cli: Cli, tmp_path: Path, kind: str) -> None:
    """The job's user owns the folder and may have put anything there."""
    job = running_job(cli)
    path = output_of(cli.state, job.id)
    secret = tmp_path / "secret"
    secret.write_text("root's own")
    if kind == "link":
        path.symlink_to(secret)
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    result = cli("logs", "train")
    assert result.exit_code == 1
    assert "not an ordinary file" in result.stderr
    assert "root's own" not in result.output


def test_an_owner_reads_the_output_in_a_session_and_others_do_not(cli: Cli) -> None:
    job = running_job(cli)
    output_of(cli.state, job.id).write_text("epoch 1\n")
    others = running_job(cli, "bob", "other")
    output_of(cli.state, others.id).write_text("secret\n")
    cli.in_a_session()
    assert cli("logs", "train").stdout == "epoch 1\n"
    assert "secret" not in cli.fails("logs", others.id)


# -- pause, policy ---------------------------------------------------------------------------


def test_the_red_button(cli: Cli) -> None:
    assert cli.ok("pause") == "Nothing is paused.\n"
    made = cli.ok("pause", "reclaim", "--for", "2h", "--reason", "store moves")
    assert "reclaim is paused until" in made
    assert "by root: store moves" in made
    (shown,) = cli.json("pause")
    assert shown["until"] - time.time() == pytest.approx(7200, abs=60)
    assert cli.ok("pause", "--end") == "No longer paused: reclaim.\n"
    assert cli.ok("pause", "--end") == "Nothing was paused.\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("everything", "--for", "2h", "--reason", "x"), "Known: reclaim, preempt, all"),
        (("all", "--reason", "x"), "needs an end and a reason"),
        (("all", "--for", "2h"), "needs an end and a reason"),
        (("all", "--for", "2", "--reason", "x"), "no unit"),
        (("all", "--for", "400d", "--reason", "x"), "at most 30d"),
        (("all", "--for", "0", "--reason", "x"), "more than 0"),
    ],
)
def test_a_pause_needs_its_parts(cli: Cli, arguments: tuple[str, ...], words: str) -> None:
    assert words in cli.fails("pause", *arguments, code=2)


def test_a_user_cannot_pause(cli: Cli) -> None:
    cli.in_a_session()
    assert "may not" in cli.fails("pause", "all", "--for", "1h", "--reason", "x")


def test_policy_show(cli: Cli) -> None:
    assert "this is the policy that is shipped" in cli.ok("policy", "show")
    cli.state.policy_file.write_text("version: 1 # mine\n")
    assert cli.ok("policy", "show") == "version: 1 # mine\n"
    assert "idle_after: 2m" in cli.ok("policy", "show", "--default")


def test_policy_check_names_line_key_and_what_is_allowed(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text("version: 1\nrules:\n  - name: a\n    idle_aftr: 2m\n    warn_before: -3s\n")
    result = cli("policy", "check", str(path))
    assert result.exit_code == 1
    first, second = result.stderr.strip().splitlines()
    assert first.startswith(f"{path}:4: idle_aftr: unknown key; did you mean idle_after?; allowed:")
    assert second == f"{path}:5: warn_before: a time cannot be negative"
    found = json.loads(cli("policy", "check", str(path), "--json").stdout)
    assert [m["line"] for m in found["mistakes"]] == [4, 5]
    assert "cannot be read" in cli("policy", "check", str(tmp_path / "none")).stderr


POLICY = """\
version: 1
rules:
  - name: ada first
    match: {user: ada}
    idle_after: 10m
  - name: rest
    idle_after: 2h
"""


def test_policy_check_says_which_rule_fires_for_whom_and_when(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY)
    ada = cli.service.run(cli.service.session("ada"))
    bob = cli.service.run(cli.service.session("bob"))
    now = time.time()
    cli.service.report(ada, quiet(now, since=now - 60))
    cli.service.report(bob, working(now))
    shown = cli.ok("policy", "check", str(path))
    lines = {line.split()[0]: line for line in shown.splitlines() if line}
    assert "is good; 2 rule(s)" in shown
    assert "ada first" in lines["ada"]
    assert "suspend" in lines["ada"]
    assert "kernel python3 (k1): idle" in lines["ada"]
    assert "CPU" not in lines["ada"], "one sample measures no CPU use"
    assert "rest" in lines["bob"]
    assert "keep" in lines["bob"]
    assert "is running a cell" in lines["bob"]
    sessions = cli.json("policy", "check", str(path))["sessions"]
    assert sessions[0]["at"] == pytest.approx(now + 600, abs=30)
    assert sessions[1]["at"] is None


def test_policy_check_without_a_file_is_about_the_one_in_force(cli: Cli) -> None:
    cli.state.policy_file.write_text(POLICY)
    assert cli.ok("policy", "check").startswith(f"{cli.state.policy_file} is good; 2 rule(s).")


def test_policy_check_works_without_a_scheduler(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY)
    cli.state.ports_file.write_text(json.dumps({"public": 5}))
    result = cli("policy", "check", str(path))
    assert result.exit_code == 0
    assert "is good" in result.stdout
    assert "is not known" in result.stderr
